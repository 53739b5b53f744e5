"""Cut training batches to one of a few lengths, and compile a step for each length.

Rows of short texts are mostly padding. With `config.task.buckets=8`, a batch is cut to the fewest
eighths of a row that hold its longest text, rounded up to a multiple of 8. Both sides of an
encoder-decoder are cut to the same share. Losses equal the losses of whole rows, up to rounding,
except for dropout, whose random numbers depend on the shape.

The length depends only on the global batch, which is a function of the step. So a resumed run cuts
to the same lengths, and so do all processes, each of which makes the whole batch. The step for
whole rows, which needs the most memory, is compiled before the first step. The step for any other
length is compiled when a batch first has this length.

Evaluation batches are not cut. A task without texts names another module in `bucket_module`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from t5x_like.data.features import Feature, Features
from t5x_like.runtime import process
from t5x_like.training.build import Parts
from t5x_like.training.compilation import StepCost, compile_step

MULTIPLE = 8  # lengths are multiples of it, which suit the matrix units
# Side of the model -> the feature whose tokens show where its padding begins.
_PADDED_FEATURES = {"encoder": "encoder_input_tokens", "decoder": "decoder_target_tokens"}


def lengths(longest: int, buckets: int, multiple: int = MULTIPLE) -> list[int]:
  """Return the length of each share 1 / buckets, 2 / buckets, … of a row; the last is `longest`."""
  lengths_of_shares = []
  for share in range(1, buckets + 1):
    multiples = -(-longest * share // (buckets * multiple))  # rounded up
    lengths_of_shares.append(min(longest, multiples * multiple))
  return lengths_of_shares


def cut_batch(
  batch: dict[str, np.ndarray], features: Features, buckets: int, pad_id: int | None
) -> dict[str, np.ndarray]:
  """Cut the rows of a batch to the smallest share of their length that holds every token.

  Args:
    batch: rows of a task, each feature [B, *shape].
    features: the features of the task.
    buckets: the number of shares.
    pad_id: the id of padding in features without segments; None if they have no padding.
  """
  share = 0
  for side, name in _PADDED_FEATURES.items():
    if name in batch:
      segments = batch.get(f"{side}_segment_ids")
      is_token = batch[name] != pad_id if segments is None else segments != 0
      columns = is_token.reshape(-1, is_token.shape[-1]).any(axis=0).nonzero()[0]
      last_column = columns.max(initial=0)
      fits = [length > last_column for length in lengths(is_token.shape[-1], buckets)]
      share = max(share, fits.index(True))
  shorter = cut_features(features, buckets, share)
  cut = {}
  for name, x in batch.items():
    shape = shorter[name].shape
    cut[name] = x[..., : shape[-1]] if shape else x
  return cut


def cut_features(features: Features, buckets: int, share: int) -> Features:
  """Return the features of rows cut to a share, an index of `lengths`."""

  def cut_feature(name: str, feature: Feature) -> Feature:
    tokens = features.get(f"{name.partition('_')[0]}_input_tokens")
    if tokens is None or feature.shape != tokens.shape:
      return feature
    return dataclasses.replace(
      feature, shape=(*feature.shape[:-1], lengths(feature.shape[-1], buckets)[share])
    )

  return {name: cut_feature(name, feature) for name, feature in features.items()}


@dataclasses.dataclass(frozen=True)
class TextBuckets:
  """The buckets of a task with texts, each named by its shape: the length of every side."""

  features: Features
  buckets: int
  pad_id: int | None

  def shape(self, features: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a batch, or of features."""
    return tuple(features[name].shape[-1] for name in _PADDED_FEATURES.values() if name in features)

  def cut_features(self, shape: tuple[int, ...]) -> Features:
    """Return the features of rows of a shape."""
    for share in range(self.buckets):
      candidate = cut_features(self.features, self.buckets, share)
      if self.shape(candidate) == shape:
        return candidate
    raise ValueError(f"no share of a row has the shape {shape}")

  def cut(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return cut_batch(batch, self.features, self.buckets, self.pad_id)

  def describe(self, shape: tuple[int, ...]) -> str:
    return f"rows of {' + '.join(map(str, shape))} tokens"


class BucketedStep:
  """A step `(state, batch) -> (state, metrics)`, compiled once for each length of batches.

  Args:
    features: the features of the task, for whole rows.
    buckets: the cutting of the batches, such as `TextBuckets`.
  """

  def __init__(self, config: ConfigDict, parts: Parts, features: Features, buckets):
    self._config = config
    self._parts = parts
    self._buckets = buckets
    self._compiled: dict[tuple[int, ...], tuple[Callable, StepCost]] = {}
    _, self.longest_cost = self._compiled_step(features)

  def __call__(self, state, batch):
    step, _ = self._compiled_step(batch)
    return step(state, batch)

  def cost(self, batch: dict[str, np.ndarray]) -> StepCost:
    """Return the cost of the step of a batch, or of this host's rows of it."""
    _, cost = self._compiled_step(batch)
    return cost

  def cut(
    self, batches: Iterator[dict[str, np.ndarray]], rows: Sequence[int]
  ) -> Iterator[dict[str, np.ndarray]]:
    """Cut whole batches, and yield the rows of this host."""
    for batch in batches:
      shorter = self._buckets.cut(batch)
      yield {name: x[rows] for name, x in shorter.items()}

  def _compiled_step(self, batch: Mapping[str, Any]) -> tuple[Callable, StepCost]:
    """Return the step for a batch or features of some length, compiled on first use."""
    shape = self._buckets.shape(batch)
    if shape not in self._compiled:
      if self._compiled:
        process.log(f"the first batch of {self._buckets.describe(shape)}")
      features = self._buckets.cut_features(shape)
      abstract = self._parts.rules.abstract_batch(features, self._config.batch_size)
      self._compiled[shape] = compile_step(self._config, self._parts, abstract)
    return self._compiled[shape]


def whole_rows_reason(model) -> str | None:
  """Return why a model needs whole rows, such as an attention core for one length; else None."""
  core = model.variant.design.core
  if core in ("auto", "dense"):
    return None
  return f"the core {core} works for one length only"


def count_buckets(task, reason: str | None) -> int:
  """Return a task's number of buckets, or 1 and log the reason if the model needs whole rows."""
  if reason is None:
    return task.buckets
  process.log(f"config.task.buckets: {reason}; batches are not cut")
  return 1


def build_buckets(model, task) -> TextBuckets:
  """Return the buckets by which a model's batches of a task are cut."""
  count = count_buckets(task, whole_rows_reason(model))
  return TextBuckets(task.features, count, task.vocabulary.pad_id)


def compile_run_step(config: ConfigDict, parts: Parts, task) -> tuple[BucketedStep, StepCost]:
  """Return the steps for batches of a task, and the cost of the longest."""
  steps = BucketedStep(config, parts, task.features, build_buckets(parts.model, task))
  return steps, steps.longest_cost
