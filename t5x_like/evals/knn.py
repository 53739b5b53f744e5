"""Nearest neighbours: how well a frozen model's features of an image find images of its class."""

import jax
import numpy as np

from t5x_like.evals import EvalContext, EvalResult
from t5x_like.evals._image_features import ImageFeatures
from t5x_like.slots import PositiveFloat, PositiveInt

_ROWS = 256  # images that are compared with all others at once


class Evaluator:
  """The weighted vote of the nearest images of another split (Wu et al. 2018; Caron et al. 2021,
  section 4.1).

  Each of the `neighbours` with the largest cosine votes for its class, with the weight `exp(cosine
  / temperature)`.

  Args:
    neighbours: number of images that vote, or all if there are fewer.
    temperature: of the votes.
    support_split: the split whose images vote.
    support_examples: the number of these images, from the first; None means all.
    max_examples: the number of images to score, from the first; None means all.

  Raises:
    UserError: the model is not for images, or the two splits share images.
  """

  def __init__(
    self,
    context: EvalContext,
    *,
    neighbours: PositiveInt = 20,
    temperature: PositiveFloat = 0.07,
    support_split: str = "train",
    support_examples: PositiveInt | None = None,
    max_examples: PositiveInt | None = None,
  ):
    self._features = ImageFeatures(context, support_split, "knn")
    self._context = context
    self._most = max_examples
    self._support_most = support_examples
    self._neighbours = neighbours
    self._temperature = temperature

  def metric_names(self) -> tuple[str, ...]:
    return ("knn_top1", "knn_images")

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Return `knn_top1`, in percent, and `knn_images`, the number of images scored.

    Images that are also among those that vote, under any name, are not scored.
    """
    support = self._features.support
    voters = self._features(arrays, support, support.batches(self._support_most))
    test = self._features(arrays, self._context, self._context.batches(self._most))
    test = self._features.without_copies(test, voters)
    classes = len(self._context.task.classes)
    guess_M = classify_by_neighbours(
      voters.features_ND,
      voters.label_N,
      test.features_ND,
      classes,
      self._neighbours,
      self._temperature,
    )
    return EvalResult(
      {"knn_top1": 100 * float((guess_M == test.label_N).mean()), "knn_images": len(guess_M)}
    )


def classify_by_neighbours(
  voter_ND: np.ndarray,
  label_N: np.ndarray,
  test_MD: np.ndarray,
  classes: int,
  neighbours: int,
  temperature: float,
) -> np.ndarray:
  """Predict the class of each test row, int [M], by the vote of the known rows that point most
  nearly its way."""
  voter_ND = _normalize(voter_ND)
  test_MD = _normalize(test_MD)
  k = min(neighbours, len(voter_ND))
  predictions = []
  for start in range(0, len(test_MD), _ROWS):
    cosine_RN = test_MD[start : start + _ROWS] @ voter_ND.T
    near_Rk = np.argpartition(-cosine_RN, k - 1, axis=1)[:, :k]
    near_cosine_Rk = np.take_along_axis(cosine_RN, near_Rk, axis=1)
    weight_Rk = np.exp((near_cosine_Rk - near_cosine_Rk.max(axis=1, keepdims=True)) / temperature)
    votes_RV = np.zeros((len(near_Rk), classes))
    np.add.at(votes_RV, (np.arange(len(near_Rk))[:, None], label_N[near_Rk]), weight_Rk)
    predictions.append(votes_RV.argmax(1))
  return np.concatenate(predictions)


def _normalize(x_ND: np.ndarray) -> np.ndarray:
  return x_ND / np.maximum(np.linalg.norm(x_ND, axis=1, keepdims=True), 1e-12)
