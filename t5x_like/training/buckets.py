"""Training batches that are cut to few lengths, and a step compiled for each of them.

Rows of short texts are mostly padding. With `config.task.buckets=8`, a batch is cut to the fewest
eighths of a row that hold its longest text, rounded up to a multiple of 8. Both sides of an
encoder-decoder are cut to the same share. Losses are those of whole rows, up to rounding; dropout
draws other numbers, as the shape is another.

The length follows from the rows of the global batch, so it is a function of the step, as the batch
is: a resumed run takes the same, and so do all processes, each of which makes the whole batch. A
length is compiled when it first comes, in the time of its step; the whole row is compiled before
the first step, as its memory bounds that of the others.

Images of a detector, padded to `resolution`, are cut to the fewest shares of the height and of the
width that hold the largest of the batch, rounded up to a multiple of 32. Their padding is masked;
as in DETR's code, which pads to the largest too, the cells next to it see it through the
convolutions. Evaluations are not cut.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from t5x_like.data.features import Feature, Features
from t5x_like.runtime import process
from t5x_like.training.build import Parts, abstract_batch
from t5x_like.training.compilation import StepCost, compile_step

MULTIPLE = 8  # of a length, for the sake of the matrix units
STRIDE = 32  # of a height or width: the stride of most backbones
# the feature that shows padding
_SHOWS_PADDING = {"encoder": "encoder_input_tokens", "decoder": "decoder_target_tokens"}


def lengths(longest: int, buckets: int, multiple: int = MULTIPLE) -> list[int]:
  """Return the length of each share 1 / buckets, 2 / buckets, … of a row: ascending, the last is
  `longest`."""
  return [
    min(longest, -(-longest * share // (buckets * multiple)) * multiple)
    for share in range(1, buckets + 1)
  ]


def cut_batch(
  batch: dict[str, np.ndarray], features: Features, buckets: int, pad_id: int | None
) -> dict[str, np.ndarray]:
  """Cut the rows of a batch to the least share that holds every token.

  Args:
    batch: rows of a task, each feature [B, *shape].
    features: the task's.
    buckets: the number of shares.
    pad_id: the id of padding in features without segments; None for none.
  """
  share = 0
  for side, name in _SHOWS_PADDING.items():
    if name in batch:
      segments = batch.get(f"{side}_segment_ids")
      real = batch[name] != pad_id if segments is None else segments != 0
      used = real.reshape(-1, real.shape[-1]).any(axis=0).nonzero()[0]
      fits = [length > used.max(initial=0) for length in lengths(real.shape[-1], buckets)]
      share = max(share, fits.index(True))
  shorter = cut_features(features, buckets, share)
  return {
    name: x[..., : shorter[name].shape[-1]] if shorter[name].shape else x
    for name, x in batch.items()
  }


def cut_features(features: Features, buckets: int, share: int) -> Features:
  """Return the features of rows that are cut to a share, counted from 0."""

  def short(name: str, feature: Feature) -> Feature:
    tokens = features.get(f"{name.partition('_')[0]}_input_tokens")
    if tokens is None or feature.shape != tokens.shape:
      return feature
    return dataclasses.replace(
      feature, shape=(*feature.shape[:-1], lengths(feature.shape[-1], buckets)[share])
    )

  return {name: short(name, feature) for name, feature in features.items()}


@dataclasses.dataclass(frozen=True)
class TextBuckets:
  """Rows of texts; their shape is the lengths of both sides."""

  features: Features
  buckets: int
  pad_id: int | None

  def shape(self, given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a batch, or of features."""
    return tuple(given[name].shape[-1] for name in _SHOWS_PADDING.values() if name in given)

  def of(self, shape: tuple[int, ...]) -> Features:
    """Return the features of rows of a shape."""
    found = (cut_features(self.features, self.buckets, share) for share in range(self.buckets))
    return next(one for one in found if self.shape(one) == shape)

  def cut(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return cut_batch(batch, self.features, self.buckets, self.pad_id)

  def words(self, shape: tuple[int, ...]) -> str:
    return f"rows of {' + '.join(map(str, shape))} tokens"


@dataclasses.dataclass(frozen=True)
class ImageBuckets:
  """Images that are padded below and on the right; their shape is height and width."""

  features: Features
  buckets: int

  def shape(self, given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a batch, or of features."""
    return tuple(given["image"].shape[-3:-1])

  def of(self, shape: tuple[int, ...]) -> Features:
    """Return the features of images of a shape."""
    image = self.features["image"]
    return self.features | {"image": dataclasses.replace(image, shape=(*shape, *image.shape[-1:]))}

  def cut(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Cut the padding of images to the least shares that hold the largest; its `image_size` is [B,
    2]."""
    wanted = zip(self.shape(self.features), batch["image_size"].max(axis=0))
    y, x = (
      next(n for n in lengths(side, self.buckets, STRIDE) if n >= used) for side, used in wanted
    )
    return batch | {"image": batch["image"][:, :y, :x]}

  def words(self, shape: tuple[int, ...]) -> str:
    return f"images of {' x '.join(map(str, shape))} pixels"


class BucketedStep:
  """The steps of a phase, one for each length of its batches: `(state, batch) -> (state, metrics)`.

  A model whose attention core is made for one length has whole rows, and so has a detector whose
  backbone sees padding from afar: one with group norm, or of images of one size.
  """

  def __init__(self, config: ConfigDict, parts: Parts, task):
    self._config = config
    self._parts = parts
    self._task = task
    self._made: dict[tuple[int, ...], tuple[Callable, StepCost]] = {}
    core = parts.model.variant.design.core
    backbone = getattr(parts.model, "backbone", None)
    images = "image_size" in task.features
    fixed = f"the core {core} is made for one length" if core not in ("auto", "dense") else ""
    if images and not getattr(backbone, "local", False):
      fixed = f"in the backbone {type(backbone).__name__}, cells far from the padding depend on it"
    buckets = 1 if fixed else task.buckets
    if fixed:
      process.log(f"config.task.buckets: {fixed}; batches are not cut")
    self._rows = (
      ImageBuckets(task.features, buckets)
      if images
      else TextBuckets(task.features, buckets, task.vocabulary.pad_id)
    )
    self.longest = self._of(task.features)

  def __call__(self, state, batch):
    return self._of(batch)[0](state, batch)

  def cost(self, batch: dict[str, np.ndarray]) -> StepCost:
    """Return the cost of the step of a batch, or of this host's rows of it."""
    return self._of(batch)[1]

  def cut(
    self, batches: Iterator[dict[str, np.ndarray]], rows: Sequence[int]
  ) -> Iterator[dict[str, np.ndarray]]:
    """Cut whole batches, and yield the rows of this host."""
    for batch in batches:
      shorter = self._rows.cut(batch)
      yield {name: x[rows] for name, x in shorter.items()}

  def _of(self, given) -> tuple[Callable, StepCost]:
    """Return the step for a batch or features of some length, compiled for it when it first
    comes."""
    if (key := self._rows.shape(given)) not in self._made:
      task = dataclasses.replace(self._task, features=self._rows.of(key))
      if self._made:
        process.log(f"the first batch of {self._rows.words(key)}")
      self._made[key] = compile_step(
        self._config, self._parts, abstract_batch(self._config, self._parts.rules, task)
      )
    return self._made[key]


def compile_run_step(config: ConfigDict, parts: Parts, task) -> tuple[BucketedStep, StepCost]:
  """Return the steps for batches of a task, and the cost of the longest."""
  steps = BucketedStep(config, parts, task)
  return steps, steps.longest[1]
