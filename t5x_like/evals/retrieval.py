"""Retrieval: find the text of an image among all texts, and the image of a text among all
images."""

import jax
import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import EvalContext, EvalResult
from t5x_like.evals._embeddings import embed_texts
from t5x_like.parallel.rules import fetch
from t5x_like.slots import PositiveInt

_AT_ONCE = 256


class Evaluator:
  """An evaluator of recall at k by cosine, in percent, over all images and captions (Radford et al.
  2021, table 13).

  A hit is an image with one of its texts, or a text with its image, among the k nearest; ties count
  against it.

  Args:
    at: the values of k.
    max_examples: the number of images, from the first, with their captions; None means all.

  Raises:
    UserError: the task has no captions, or the model has no embeddings of texts.
  """

  def __init__(
    self,
    context: EvalContext,
    *,
    at: tuple[PositiveInt, ...] = (1, 5, 10),
    max_examples: PositiveInt | None = None,
  ):
    if context.task.captions is None or not hasattr(context.model, "embed_texts"):
      raise UserError(
        "evaluator retrieval: is for images with captions (task image_text), not task "
        f"{context.task.name}"
      )
    self._context = context
    self._at = at
    self._most = max_examples
    tokens_CT, image_C = context.task.captions()
    is_scored_C = image_C < (max_examples or len(tokens_CT))
    self._tokens_CT = tokens_CT[is_scored_C]
    self._image_C = image_C[is_scored_C]
    self._images = context.jit(
      lambda model, batch: (model.embed_images(batch)[0], batch["example_index"])
    )
    self._texts = context.jit(lambda model, batch: (model.embed_texts(batch)[0],))

  def metric_names(self) -> tuple[str, ...]:
    recalls = (f"{way}_r{k}" for way in ("image_to_text", "text_to_image") for k in self._at)
    return (*recalls, "images", "texts")

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Return `image_to_text_r1`, `text_to_image_r1`, …, and the numbers of `images` and `texts`."""
    outputs = [
      [fetch(x) for x in self._images(arrays, batch)]
      for batch in self._context.global_batches(self._most)
    ]
    image_NP, index_N = (np.concatenate(parts) for parts in zip(*outputs, strict=True))
    image_NP = image_NP[index_N >= 0]
    text_CP = embed_texts(self._context, self._texts, arrays, self._tokens_CT)
    ranks = match_ranks(image_NP, text_CP, self._image_C)
    scores = {
      f"{name}_r{k}": 100 * float((rank < k).mean())
      for name, rank in zip(("image_to_text", "text_to_image"), ranks)
      for k in self._at
    }
    return EvalResult(scores | {"images": len(image_NP), "texts": len(text_CP)})


def match_ranks(
  image_NP: np.ndarray, text_CP: np.ndarray, image_C: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Rank the matches from 0, with ties counted as nearer.

  Returns:
    (for each image, the number of texts nearer than its own nearest text, int [N]; for each text,
    the number of images nearer than its own, int [C])
  """
  of_image = np.zeros(len(image_NP), int)
  of_text = np.zeros(len(text_CP), int)
  for first in range(0, len(image_NP), _AT_ONCE):
    cosine_nC = image_NP[first : first + _AT_ONCE] @ text_CP.T
    own_nC = image_C == np.arange(first, first + len(cosine_nC))[:, None]
    best_n = np.max(cosine_nC, axis=1, initial=-np.inf, where=own_nC)
    of_image[first : first + len(cosine_nC)] = np.sum(
      (cosine_nC >= best_n[:, None]) & ~own_nC, axis=1
    )
  for first in range(0, len(text_CP), _AT_ONCE):
    cosine_cN = text_CP[first : first + _AT_ONCE] @ image_NP.T
    own_c = image_C[first : first + len(cosine_cN)]
    own_cos = np.take_along_axis(cosine_cN, own_c[:, None], axis=1)
    of_text[first : first + len(cosine_cN)] = np.sum(cosine_cN >= own_cos, axis=1) - 1
  return of_image, of_text
