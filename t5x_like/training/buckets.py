"""Training batches that are cut to few lengths, and a step compiled for each of them.

Rows of short texts are mostly padding. With `config.task.buckets=8`, a batch is cut to the fewest eighths of a row that
hold its longest text, rounded up to a multiple of 8. Both sides of an encoder-decoder are cut to the same share. Losses
are those of whole rows, up to rounding; dropout draws other numbers, as the shape is another.

The length follows from the rows of the global batch, so it is a function of the step, as the batch is: a resumed run
takes the same, and so do all processes, each of which makes the whole batch. A length is compiled when it first comes,
in the time of its step; the whole row is compiled before the first step, as its memory bounds that of the others.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from ml_collections import ConfigDict

from t5x_like.data.features import Feature, Features
from t5x_like.runtime import process
from t5x_like.training.build import Parts, abstract_batch
from t5x_like.training.compilation import Cost, compile_step

MULTIPLE = 8  # of a length, for the sake of the matrix units
_TOLD = {"encoder": "encoder_input_tokens", "decoder": "decoder_target_tokens"}  # the feature that shows padding


def lengths(longest: int, buckets: int) -> list[int]:
  """Return the length of each share 1 / buckets, 2 / buckets, … of a row: ascending, the last is `longest`."""
  return [min(longest, -(-longest * share // (buckets * MULTIPLE)) * MULTIPLE) for share in range(1, buckets + 1)]


def cut(batch: dict[str, np.ndarray], features: Features, buckets: int, pad_id: int | None) -> dict[str, np.ndarray]:
  """Cut the rows of a batch to the least share that holds every token.

  Args:
    batch: rows of a task, each feature [B, *shape].
    features: the task's.
    buckets: the number of shares.
    pad_id: the id of padding in features without segments; None for none.
  """
  share = 0
  for side, name in _TOLD.items():
    if name in batch:
      segments = batch.get(f"{side}_segment_ids")
      real = batch[name] != pad_id if segments is None else segments != 0
      used = real.reshape(-1, real.shape[-1]).any(axis=0).nonzero()[0]
      fits = [length > used.max(initial=0) for length in lengths(real.shape[-1], buckets)]
      share = max(share, fits.index(True))
  shorter = shortened(features, buckets, share)
  return {name: x[..., : shorter[name].shape[-1]] if shorter[name].shape else x for name, x in batch.items()}


def shortened(features: Features, buckets: int, share: int) -> Features:
  """Return the features of rows that are cut to a share, counted from 0."""

  def short(name: str, feature: Feature) -> Feature:
    tokens = features.get(f"{name.partition('_')[0]}_input_tokens")
    if tokens is None or feature.shape != tokens.shape:
      return feature
    return dataclasses.replace(feature, shape=(*feature.shape[:-1], lengths(feature.shape[-1], buckets)[share]))

  return {name: short(name, feature) for name, feature in features.items()}


class Steps:
  """The steps of a phase, one for each length of its batches: `(state, batch) -> (state, metrics)`.

  A model whose attention core is made for one length has whole rows.
  """

  def __init__(self, config: ConfigDict, parts: Parts, task):
    self._config, self._parts, self._task = config, parts, task
    self._made: dict[tuple[int, ...], tuple[Callable, Cost]] = {}
    core = parts.model.variant.design.core
    self._buckets = task.buckets if core in ("auto", "dense") else 1
    if self._buckets < task.buckets:
      process.say(f"config.task.buckets: the core {core} is made for one length; batches are not cut")
    self.longest = self._of(task.features)

  def __call__(self, state, batch):
    return self._of(batch)[0](state, batch)

  def cost(self, batch: dict[str, np.ndarray]) -> Cost:
    """Return the cost of the step of a batch, or of this host's rows of it."""
    return self._of(batch)[1]

  def cut(self, batches: Iterator[dict[str, np.ndarray]], rows: Sequence[int]) -> Iterator[dict[str, np.ndarray]]:
    """Cut whole batches, and yield the rows of this host."""
    for batch in batches:
      shorter = cut(batch, self._task.features, self._buckets, self._task.vocabulary.pad_id)
      yield {name: x[rows] for name, x in shorter.items()}

  def _of(self, given) -> tuple[Callable, Cost]:
    """Return the step for a batch or features of some length, compiled for it when it first comes."""
    sides = [given[name].shape[-1] for name in _TOLD.values() if name in given]
    if (key := tuple(sides)) not in self._made:
      found = (shortened(self._task.features, self._buckets, share) for share in range(self._buckets))
      fitting = (one for one in found if [one[name].shape[-1] for name in _TOLD.values() if name in one] == sides)
      task = dataclasses.replace(self._task, features=next(fitting))
      if self._made:
        process.say(f"the first batch of rows of {' + '.join(map(str, sides))} tokens")
      self._made[key] = compile_step(self._config, self._parts, abstract_batch(self._config, self._parts.rules, task))
    return self._made[key]


def compiled(config: ConfigDict, parts: Parts, task) -> tuple[Steps, Cost]:
  """Return the steps for batches of a task, and the cost of the longest."""
  steps = Steps(config, parts, task)
  return steps, steps.longest[1]
