"""Few-shot linear evaluation: how well a frozen model's features separate classes."""

import dataclasses
import functools

import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import BaseEvaluator, EvalResult
from t5x_like.evals._image_features import ImageFeatures
from t5x_like.parallel.rules import local_rows
from t5x_like.slots import NonNegativeInt, PositiveFloat, PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(BaseEvaluator):
  """An evaluator of ridge regression on a few images per class (Dosovitskiy et al. 2021, 4.1).

  The regression, in closed form, maps a frozen model's features to targets of 1 and -1. It is
  scored on the evaluation split, with several draws of the few images, as in the authors'
  big_vision. Features are the inputs of the model's head, standardised with the statistics of the
  few images.

  Attributes:
    shots: images per class.
    support_split: the split to draw these images from.
    l2: weight of the squared norm of the solution; the bias is not penalised.
    draws: the number of draws, whose scores are averaged.
    seed: the seed of the first draw; the next numbers are the seeds of the others.
    max_examples: the number of images to score, from the first; None means all.

  Raises:
    UserError: the model is not for images, a class has fewer images, or the two splits share
      images.
  """

  shots: PositiveInt = 10
  support_split: str = "train"
  l2: PositiveFloat = 1024.0
  draws: PositiveInt = 3
  seed: NonNegativeInt = 0
  max_examples: PositiveInt | None = None

  def __post_init__(self):
    _ = self._drawn_examples  # raises UserError for too few images

  @functools.cached_property
  def _features(self):
    return ImageFeatures(self.context, self.support_split, "few_shot")

  @functools.cached_property
  def _drawn_examples(self):
    """The indices of the few images of each draw."""
    task = self._features.support.task
    classes = len(self.context.task.classes)
    drawn_examples = []
    for seed in range(self.seed, self.seed + self.draws):
      drawn_examples.append(draw_examples(task.labels, classes, self.shots, seed, task))
    return drawn_examples

  def metric_names(self):
    return tuple(f"{self.shots}_shot_{name}" for name in ("top1", "spread", "images"))

  def __call__(self, arrays):
    """Return the mean accuracy over the draws, its spread and the number of images scored.

    The accuracy, in percent, is `<shots>_shot_top1`; `<shots>_shot_spread` is its standard
    deviation over the draws. Images of a draw and their copies are not scored.
    """
    support, test = self._features(arrays, self._read_draws(), self.max_examples)
    classes = len(self.context.task.classes)
    scores = []
    for draw in self._drawn_examples:
      draw_features = support.select(np.isin(support.index_N, draw))
      guess_M = classify_by_ridge(
        draw_features.features_ND, draw_features.label_N, test.features_ND, classes, self.l2
      )
      scores.append(100 * float((guess_M == test.label_N).mean()))
    values = (float(np.mean(scores)), float(np.std(scores)), len(test.label_N))
    return EvalResult(dict(zip(self.metric_names(), values, strict=True)))

  def _read_draws(self):
    """Read the images of all draws, each once."""
    from t5x_like.data import loader  # tensorflow: only where data is read

    context = self._features.support
    indices = np.unique(np.concatenate(self._drawn_examples))
    rows = local_rows(context.rules.batch(), context.batch_size)
    return loader.eval_batches(
      context.task, batch_size=context.batch_size, rows=rows, indices=indices
    )


def draw_examples(labels: np.ndarray, classes: int, shots: int, seed: int, task) -> np.ndarray:
  """Draw `shots` examples of every class; return ascending indices.

  Raises:
    UserError: a class has fewer examples.
  """
  order = np.random.default_rng(seed).permutation(len(labels))
  draws_of_classes = []
  for number in range(classes):
    numbers = order[labels[order] == number][:shots]
    if len(numbers) < shots:
      raise UserError(
        f"evaluator few_shot: class {task.classes[number]!r} has {len(numbers)} images in "
        f"{task.name}, expected {shots}; set shots to fewer"
      )
    draws_of_classes.append(numbers)
  return np.sort(np.concatenate(draws_of_classes))


def classify_by_ridge(
  few_ND: np.ndarray, label_N: np.ndarray, test_MD: np.ndarray, classes: int, l2: float
) -> np.ndarray:
  """Predict the class of each test row, int [M], by ridge regression on the few rows.

  Standardised columns have mean 0, so the bias is the mean of the targets, and the weights are
  `X^T (X X^T + l2 I)^-1 (Y - mean(Y))`.
  """
  mean = few_ND.mean(0, dtype=np.float64)
  std = few_ND.std(0, dtype=np.float64) + 1e-5
  few_ND = (few_ND - mean) / std
  test_MD = (test_MD - mean) / std
  target_NV = np.where(label_N[:, None] == np.arange(classes), 1.0, -1.0)
  bias_V = target_NV.mean(0)
  kernel_NN = few_ND @ few_ND.T + l2 * np.eye(len(few_ND))
  weights_DV = few_ND.T @ np.linalg.solve(kernel_NN, target_NV - bias_V)
  return np.argmax(test_MD @ weights_DV + bias_V, axis=1)
