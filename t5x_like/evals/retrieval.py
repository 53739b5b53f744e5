"""Retrieval of an image's text among all texts, and of a text's image among all images."""

import dataclasses
import functools

import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import BaseEvaluator, EvalResult
from t5x_like.evals._embeddings import embed_texts
from t5x_like.slots import PositiveInt

_BLOCK_ROWS = 256
_DIRECTIONS = ("image_to_text", "text_to_image")  # in the order in which `match_ranks` returns them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(BaseEvaluator):
  """An evaluator of recall at k by cosine, in percent, as in Radford et al. 2021, table 13.

  An image is a hit if one of its texts is among the k nearest, and a text if its image is. Others
  at the same distance count as nearer.

  Attributes:
    at: the values of k.
    max_examples: the number of images, from the first, with their captions; None means all.

  Raises:
    UserError: the task has no captions, or the model has no embeddings of texts.
  """

  at: tuple[PositiveInt, ...] = (1, 5, 10)
  max_examples: PositiveInt | None = None

  def __post_init__(self):
    task = self.context.task
    if task.captions is None or not hasattr(self.context.model, "embed_texts"):
      raise UserError(
        f"evaluator retrieval: found task {task.name}, expected images with captions (task "
        "image_text) and a model that embeds texts"
      )
    _ = self._captions  # read before the first step

  @functools.cached_property
  def _captions(self):
    """The captions to score, int32 [C, T], and the example of each, int [C]."""
    tokens_CT, image_C = self.context.task.captions()
    is_scored_C = image_C < (self.max_examples or np.inf)
    return tokens_CT[is_scored_C], image_C[is_scored_C]

  @functools.cached_property
  def _embed_texts(self):
    return self.context.jit(lambda model, batch: (model.embed_texts(batch)[0],))

  def compute(self, model, batch):
    """Return the embeddings of images [B, P] and the indices of the examples."""
    return model.embed_images(batch)[0], batch["example_index"]

  def metric_names(self):
    recalls = [f"{direction}_r{k}" for direction in _DIRECTIONS for k in self.at]
    return (*recalls, "images", "texts")

  def __call__(self, arrays):
    """Return `image_to_text_r1`, `text_to_image_r1`, … and the numbers of `images` and `texts`."""
    tokens_CT, image_C = self._captions
    batches = self.context.batches(self.max_examples)
    image_NP, index_N = self.context.run_batches(self.run, arrays, batches)
    image_NP = image_NP[index_N >= 0]  # without padding; images are in order
    text_CP = embed_texts(self.context, self._embed_texts, arrays, tokens_CT)
    ranks = match_ranks(image_NP, text_CP, image_C)
    scores = {}
    for direction, ranks_of_direction in zip(_DIRECTIONS, ranks, strict=True):
      for k in self.at:
        scores[f"{direction}_r{k}"] = 100 * float((ranks_of_direction < k).mean())
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
  for first in range(0, len(image_NP), _BLOCK_ROWS):
    cosine_nC = image_NP[first : first + _BLOCK_ROWS] @ text_CP.T
    is_own_nC = image_C == np.arange(first, first + len(cosine_nC))[:, None]
    best_n = np.max(cosine_nC, axis=1, initial=-np.inf, where=is_own_nC)
    is_nearer_nC = (cosine_nC >= best_n[:, None]) & ~is_own_nC
    of_image[first : first + len(cosine_nC)] = np.sum(is_nearer_nC, axis=1)
  for first in range(0, len(text_CP), _BLOCK_ROWS):
    cosine_cN = text_CP[first : first + _BLOCK_ROWS] @ image_NP.T
    image_c = image_C[first : first + len(cosine_cN)]
    own_cosine_c1 = np.take_along_axis(cosine_cN, image_c[:, None], axis=1)
    # A text's own image is not nearer than itself.
    of_text[first : first + len(cosine_cN)] = np.sum(cosine_cN >= own_cosine_c1, axis=1) - 1
  return of_image, of_text
