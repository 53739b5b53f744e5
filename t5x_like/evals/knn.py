"""Accuracy of the nearest neighbours by a frozen model's image features."""

import dataclasses
import functools

import numpy as np

from t5x_like.evals import BaseEvaluator, EvalResult
from t5x_like.evals._image_features import ImageFeatures
from t5x_like.slots import PositiveFloat, PositiveInt

_BLOCK_ROWS = 256  # test images that are compared with all support images at once


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(BaseEvaluator):
  """An evaluator of images' classes by a weighted vote of the nearest images of another split.

  Each of the `neighbours` with the largest cosine votes for its class, with the weight `exp(cosine
  / temperature)` (Wu et al. 2018; Caron et al. 2021, section 4.1).

  Attributes:
    neighbours: the number of images that vote, or all if there are fewer.
    temperature: the divisor of the cosine in the weight of a vote.
    support_split: the split whose images vote.
    support_examples: the number of images of this split, from the first; None means all.
    max_examples: the number of images to score, from the first; None means all.

  Raises:
    UserError: the model does not read images, or the two splits share images.
  """

  neighbours: PositiveInt = 20
  temperature: PositiveFloat = 0.07
  support_split: str = "train"
  support_examples: PositiveInt | None = None
  max_examples: PositiveInt | None = None

  def __post_init__(self):
    _ = self._features  # raises UserError for splits with the same images

  @functools.cached_property
  def _features(self):
    return ImageFeatures(self.context, self.support_split, "knn")

  def metric_names(self):
    return ("knn_top1", "knn_images")

  def __call__(self, arrays):
    """Return `knn_top1`, in percent, and `knn_images`, the number of images scored.

    Images with a copy among the support images, under any name, are not scored.
    """
    support_batches = self._features.support.batches(self.support_examples)
    support, test = self._features(arrays, support_batches, self.max_examples)
    guess_M = classify_by_neighbours(
      support.features_ND,
      support.label_N,
      test.features_ND,
      classes=len(self.context.task.classes),
      neighbours=self.neighbours,
      temperature=self.temperature,
    )
    return EvalResult(
      {"knn_top1": 100 * float((guess_M == test.label_N).mean()), "knn_images": len(guess_M)}
    )


def classify_by_neighbours(
  support_ND: np.ndarray,
  label_N: np.ndarray,
  test_MD: np.ndarray,
  classes: int,
  neighbours: int,
  temperature: float,
) -> np.ndarray:
  """Predict the class of each test row, int [M], by the vote of its nearest support rows.

  Args:
    support_ND, label_N: the features and classes of the support images.
    test_MD: the features of the test images.
    classes: the number of classes.
    neighbours, temperature: as in `Evaluator`.
  """
  support_ND = _normalize_rows(support_ND)
  test_MD = _normalize_rows(test_MD)
  k = min(neighbours, len(support_ND))
  guesses = []
  for start in range(0, len(test_MD), _BLOCK_ROWS):
    cosine_RN = test_MD[start : start + _BLOCK_ROWS] @ support_ND.T
    near_Rk = np.argpartition(-cosine_RN, k - 1, axis=1)[:, :k]
    near_cosine_Rk = np.take_along_axis(cosine_RN, near_Rk, axis=1)
    weight_Rk = np.exp((near_cosine_Rk - near_cosine_Rk.max(axis=1, keepdims=True)) / temperature)
    votes_RV = np.zeros((len(near_Rk), classes))
    np.add.at(votes_RV, (np.arange(len(near_Rk))[:, None], label_N[near_Rk]), weight_Rk)
    guesses.append(votes_RV.argmax(1))
  return np.concatenate(guesses)


def _normalize_rows(features_ND: np.ndarray) -> np.ndarray:
  """Scale every row to length 1."""
  norm_N1 = np.linalg.norm(features_ND, axis=1, keepdims=True)
  return features_ND / np.maximum(norm_N1, 1e-12)
