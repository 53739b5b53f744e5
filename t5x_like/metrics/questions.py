"""Scores of questions that a model answers without training, as sums over questions.

The first number of each row is 1, so that the sums hold the number of questions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like.metrics.metric import AdditiveMetric

_MAX_NATS = 700.0  # exp of more overflows


class QuestionMetric(AdditiveMetric):
  """The scores of one kind of questions.

  Its rows come from a model's answers (`inference/questions.py`), not from texts.

  Attributes:
    columns: the names of the numbers of a row, after the 1.
    counted: the columns whose sums are numbers of questions or of their parts, not scores.
  """

  columns: tuple[str, ...]
  counted: tuple[str, ...]

  @property
  def count_names(self) -> tuple[str, ...]:
    """The names of `counts`."""
    return ("examples", *self.counted)

  def rows(self, references: Sequence[Any], predictions: Sequence[Any]) -> np.ndarray:
    """Return the rows [N, 1 + C] of predictions that are tuples in the order of `columns`."""
    del references
    values_NC = np.array(predictions, np.float64).reshape(len(predictions), len(self.columns))
    return np.concatenate([np.ones((len(values_NC), 1)), values_NC], axis=1)

  def counts(self, rows_NC: np.ndarray) -> dict[str, int]:
    """Return the sums of `counted`, after the number of examples."""
    sums_C = rows_NC.sum(axis=0)
    counts = {"examples": len(rows_NC)}
    for name in self.counted:
      counts[name] = int(sums_C[1 + self.columns.index(name)])
    return counts


def _mean(sums_XC: np.ndarray, column: int) -> np.ndarray:
  """Return the mean of a column over questions."""
  return sums_XC[..., column] / sums_XC[..., 0]


class Choices(QuestionMetric):
  """Accuracies of multiple choice, in percent.

  Attributes:
    names: `accuracy` of the likeliest choice, and `accuracy_norm` of the likeliest by
      log-probability per character.
  """

  names = ("accuracy", "accuracy_norm")
  columns = ("right", "right_norm", "truncated")
  counted = ("truncated",)

  def scores_of_sums(self, sums_XC):
    return {
      "accuracy": 100.0 * _mean(sums_XC, 1),
      "accuracy_norm": 100.0 * _mean(sums_XC, 2),
    }


class Accuracy(QuestionMetric):
  """The accuracy of a frozen suite's task, in percent, by the suite's own rule."""

  names = ("accuracy",)
  columns = ("right", "truncated")
  counted = ("truncated",)

  def scores_of_sums(self, sums_XC):
    return {"accuracy": 100.0 * _mean(sums_XC, 1)}


class Words(QuestionMetric):
  """Accuracy, in percent, and perplexity of the next words."""

  names = ("accuracy", "perplexity")
  columns = ("greedy", "nats", "truncated")
  counted = ("truncated",)

  def scores_of_sums(self, sums_XC):
    return {
      "accuracy": 100.0 * _mean(sums_XC, 1),
      "perplexity": np.exp(np.minimum(_mean(sums_XC, 2), _MAX_NATS)),
    }


class Answers(QuestionMetric):
  """Exact match of generated answers, in percent."""

  names = ("exact_match",)
  columns = ("right", "truncated", "empty", "unfinished")
  counted = ("truncated", "empty", "unfinished")

  def scores_of_sums(self, sums_XC):
    return {"exact_match": 100.0 * _mean(sums_XC, 1)}


class Texts(QuestionMetric):
  """Perplexities and bits per byte of whole texts; resampling draws texts."""

  names = ("perplexity_per_token", "perplexity_per_word", "bits_per_byte")
  columns = ("nats", "tokens", "words", "bytes")
  counted = ("tokens", "words", "bytes")

  def scores_of_sums(self, sums_XC):
    nats, tokens, words, num_bytes = np.moveaxis(sums_XC[..., 1:], -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):  # a sample may have texts without words
      return {
        "perplexity_per_token": np.exp(np.minimum(nats / tokens, _MAX_NATS)),
        "perplexity_per_word": np.exp(np.minimum(nats / words, _MAX_NATS)),
        "bits_per_byte": nats / np.log(2) / num_bytes,
      }
