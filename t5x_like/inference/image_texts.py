"""Zero-shot classification: rank captions for an image (Radford et al. 2021, section 3.1)."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.data.images import prompts
from t5x_like.errors import UserError
from t5x_like.inference.images import ImageClassification
from t5x_like.nn import params
from t5x_like.rows import Runner, run_in_batches


class TextChoice(ImageClassification):
  """An `ImageClassification` whose classes are texts.

  Probabilities are the softmax over the texts of the scaled cosines, or their sigmoid if the model
  has a bias.

  Args:
    model, vocabulary, task, flags: see `images.build_predictor`.
    texts: the texts to choose from, such as 'a photo of a cat'.
  Raises:
    UserError: there are fewer than two texts, or a flag does not apply to images.
  """

  def __init__(
    self, model, vocabulary, task: Mapping[str, Any], flags: dict[str, Any], texts: Sequence[str]
  ):
    if len(texts) < 2:
      raise UserError(
        f"--texts: found {len(texts)}, expected a file of at least two texts to "
        "choose from, a line each"
      )
    self.read_options(model.variant.image, task, flags)
    self.names = list(texts)
    self.top_k = min(self.top_k, len(texts))
    self._tokens_CT = prompts.encode_rows(texts, vocabulary, task.get("length", 77))

  def __call__(self, run: Runner, paths: Sequence[str]) -> list[dict[str, Any]]:
    C, T = self._tokens_CT.shape

    @jax.jit
    def embed(arrays, batch):
      with run.rules.activate():
        return (params.with_arrays(run.model, arrays).embed_texts(batch)[0],)

    def embed_batch(batch):
      return embed(run.arrays, batch)

    def read_rows(numbers, _):
      return {"text_input_tokens": self._tokens_CT[numbers]}

    outputs = run_in_batches(embed_batch, run.rules, run.batch_size, [T] * C, read_rows)
    self._texts_CP = np.stack([text_P for (text_P,) in outputs])
    return super().__call__(run, paths)

  def probabilities(self, model, batch: dict[str, jax.Array]) -> jax.Array:
    cosine_BC = model.embed_images(batch)[0] @ self._texts_CP.T
    logits_BC = cosine_BC * jnp.exp(model.scale[...])
    if model.bias is None:
      return jax.nn.softmax(logits_BC)
    return jax.nn.sigmoid(logits_BC + model.bias[...])
