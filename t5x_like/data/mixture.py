"""Mixtures of tasks: a schedule maps a global index to a task and one of its examples.

The schedule is periodic. A period has P slots, each for one example, of which task t has
exactly `counts[t]`: its rate times P, rounded so that the counts add up to P. The slots of a
task are spread evenly, and the loader shuffles the slots of each period by the seed. Before the
shuffle, the k-th slot of task t in period p is draw `p * counts[t] + k` of that task. So the
draws of a task are counted without gaps, at whatever step a run starts. They fill the task's
epochs: each epoch visits every example of the task once, in its own order.

Worked example, counts (2, 1), so P = 3: the slots of period 0, before the shuffle, are (task 0,
draw 0), (1, 0), (0, 1); period 5 has (0, 10), (1, 5), (0, 11).

Rates follow Raffel et al. 2020, section 3.5.2:

- equal rates;
- rates proportional to the number of examples, limited to `maximum` (K in the paper);
- rates by temperature: the proportional ones to the power 1 / T, normalised again. T = 1 is
  proportional, and T -> infinity is equal. Multilingual BERT and mT5 use the exponents 0.7 and 0.3.

UniMax rates (Chung et al. 2023) are as equal as a limit on the epochs of each task allows.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from t5x_like.data import random
from t5x_like.data.stream import Stream, part_seed
from t5x_like.data.task import Feature, Task
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf

MAX_PERIOD = 2**24  # slots; a schedule takes 24 bytes of memory for each while it is made


def temperature_rates(
  num_examples: Sequence[int], temperature: float, maximum: int | None = None
) -> list[float]:
  """Return normalised rates, proportional to numbers of examples to the power 1 / temperature.

  Args:
    num_examples: examples of each task.
    temperature: 1 is proportional, larger is more equal.
    maximum: a task with more examples counts as having this many.

  Raises:
    UserError: a temperature or maximum that is not positive.
  """
  if not temperature > 0:
    raise UserError(
      f"temperature: found {temperature}, expected more than 0 (1 is proportional, "
      "larger is more equal)"
    )
  if maximum is not None and maximum < 1:
    raise UserError(f"maximum: found {maximum}, expected at least 1 example, or None for no limit")
  sizes = np.array(num_examples, np.float64)
  if maximum is not None:
    sizes = np.minimum(sizes, maximum)
  powers = (sizes / sizes.max()) ** (1.0 / temperature)
  return (powers / powers.sum()).tolist()


def unimax_draws(num_examples: Sequence[float], draws: int, epochs: float) -> list[float]:
  """Return the draws of each task (Chung et al. 2023, arXiv:2304.09151, algorithm 1).

  From the smallest task to the largest, each gets an equal share of the remaining draws, but at
  most `epochs` times its examples. Worked example: 90 draws of at most 1 epoch of (1, 10, 100)
  examples are 1, 10 and 79.
  """
  draws_of_task = [0.0] * len(num_examples)
  draws_left = float(draws)
  tasks_left = len(num_examples)
  for task in sorted(range(len(num_examples)), key=lambda i: num_examples[i]):
    draws_of_task[task] = min(draws_left / tasks_left, epochs * num_examples[task])
    draws_left -= draws_of_task[task]
    tasks_left -= 1
  return draws_of_task


def counts_per_period(rates: Mapping[str, float], period: int) -> list[int]:
  """Convert rates, of any sum, to each task's count in a period; the counts add up to `period`.

  The largest remainders are rounded up; among equal remainders, the first.

  Raises:
    UserError: a rate that is negative or not a number, a task that would never be drawn, or a
      period below 1 or above `MAX_PERIOD`.
  """
  if not 1 <= period <= MAX_PERIOD:
    raise UserError(f"period: found {period}, expected 1 to {MAX_PERIOD}, the slots of a schedule")
  for name, rate in rates.items():
    if not 0 < rate < float("inf"):
      raise UserError(
        f"rate of {name}: found {rate}, expected a positive number; leave out a "
        "task that is not wanted"
      )
  total = sum(rates.values())
  shares = [rate / total * period for rate in rates.values()]
  counts = [int(share) for share in shares]
  # Rounding makes remainders that differ only by floating-point errors equal.
  by_remainder = sorted(range(len(shares)), key=lambda i: (round(counts[i] - shares[i], 9), i))
  for i in by_remainder[: period - sum(counts)]:
    counts[i] += 1
  for name, share, count in zip(rates, shares, counts, strict=True):
    if not count:
      raise UserError(
        f"rate of {name}: found {share:.3g} examples in a period of {period}, expected at least "
        f"one; set period to at least {int(period / share) + 1}, or a larger rate"
      )
  return counts


class Schedule:
  """A map from the slots of periods to tasks and the numbers of their draws.

  Args:
    counts: slots of each task in a period.

  Attributes:
    counts: slots of each task in a period.
    period: the sum of the counts.
  """

  def __init__(self, counts: Sequence[int]):
    self.counts = tuple(counts)
    self.period = sum(counts)
    task_P = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    draw_P = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
    # A task with c slots has one in the middle of each of c equal parts of the period, so any part
    # of a period has the tasks at about their rates.
    order_P = np.argsort((draw_P + 0.5) / np.asarray(counts)[task_P], kind="stable")
    self._task_P = task_P[order_P]
    self._draw_P = draw_P[order_P]

  def locate(self, slot_B: tf.Tensor, period_B: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (task int32 [B], number of the task's draw int64 [B]) of unshuffled slots.

    Args:
      slot_B: int64 [B], in 0..period-1.
      period_B: int64 [B], the number of the period.
    """
    task_B = tf.gather(self._task_P, slot_B)
    count_B = tf.gather(tf.constant(self.counts, tf.int64), task_B)
    return task_B, period_B * count_B + tf.gather(self._draw_P, slot_B)

  def draws(self, global_index_B: tf.Tensor, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the task and the number of its draw for shuffled global indices, int64 [B]."""
    slot_B = global_index_B % self.period
    period_B = global_index_B // self.period
    return self.locate(random.shuffle(slot_B, period_B, seed, self.period), period_B)

  def draws_before(self, examples: int, seed: int) -> list[tuple[int, np.ndarray]]:
    """Return each task's draws among the first `examples` global indices.

    Returns:
      For each task (n, later draws): draws 0 to n - 1, and later draws, int64 ascending, from the
      unfinished period.
    """
    periods = examples // self.period
    unfinished_B = tf.range(periods * self.period, examples, dtype=tf.int64)
    task_B, draw_B = self.draws(unfinished_B, seed)
    draws = []
    for task, count in enumerate(self.counts):
      later_draws = np.sort(draw_B.numpy()[task_B.numpy() == task])
      draws.append((periods * count, later_draws))
    return draws


@dataclasses.dataclass(frozen=True)
class Mixture(Task):
  """A task made of several tasks by `mix`.

  Attributes:
    parts: the tasks by label, in the schedule's order; none is a mixture.
    schedule: the slots of each part in a period.
    make_rows: (unshuffled slot int64 [B], period int64 [B], a stream for each part) ->
      features. It replaces `batch` where earlier phases have drawn from the parts.
  """

  parts: dict[str, Task] = dataclasses.field(kw_only=True)
  schedule: Schedule = dataclasses.field(kw_only=True)
  make_rows: Callable[[tf.Tensor, tf.Tensor, Sequence[Stream]], dict[str, tf.Tensor]] = (
    dataclasses.field(kw_only=True)
  )

  @property
  def leaves(self) -> dict[str, Task]:
    return self.parts

  @property
  def counts(self) -> tuple[int, ...]:
    return self.schedule.counts

  def draw(
    self, index_B: tf.Tensor, seed: int, streams: tuple[Stream, ...]
  ) -> dict[str, tf.Tensor]:
    period = self.schedule.period
    slot_B = index_B % period
    period_B = index_B // period
    return self.make_rows(random.shuffle(slot_B, period_B, seed, period), period_B, streams)

  def advance(self, examples: int, seed: int, streams: tuple[Stream, ...]) -> tuple[Stream, ...]:
    draws = self.schedule.draws_before(examples, seed)
    return tuple(
      stream.advance(num_draws, later_draws)
      for stream, (num_draws, later_draws) in zip(streams, draws, strict=True)
    )


def count_corpus_examples(task: Task) -> int:
  """Return the number of distinct examples, for rates that depend on it.

  A mixture counts the sum of its parts.
  """
  if isinstance(task, Mixture):
    return sum(part.num_examples for part in task.parts.values())
  return task.num_examples


def mix(
  parts: Mapping[str, Task], rates: Mapping[str, float], *, period: int, name: str
) -> Mixture:
  """Mix several tasks into one that draws each at its rate.

  Its epoch is a period of the schedule, so `num_examples` is `period`, and the loader's order of an
  epoch is the shuffle of that period. Each part makes only its own rows of a batch. Shorter
  features are padded at the end of every axis; see `pad_features`.

  A part that is a mixture divides its rate among its own parts by their counts in its period. They
  become parts of the new mixture, labelled `<part>/<its part>`.

  Args:
    parts: at least one task, by label; the mixture sorts them by label.
    rates: a rate for each label, of any sum.
    period: slots in a period.
    name: the mixture's name in metrics.

  Raises:
    UserError: a part's features, dtypes or vocabulary differ from the first part's; or see
      `counts_per_period`.
  """
  parts, rates = _flatten(parts, rates)
  parts = dict(sorted(parts.items()))
  tasks = list(parts.values())
  features = _common_features(parts)
  schedule = Schedule(counts_per_period({label: rates[label] for label in parts}, period))

  def make_rows(
    slot_B: tf.Tensor, period_B: tf.Tensor, streams: Sequence[Stream]
  ) -> dict[str, tf.Tensor]:
    task_B, draw_B = schedule.locate(slot_B, period_B)
    rows = tf.dynamic_partition(tf.range(tf.size(task_B)), task_B, len(tasks))
    draws = tf.dynamic_partition(draw_B, task_B, len(tasks))
    features_of_parts = []
    for part, stream, draw_N in zip(tasks, streams, draws, strict=True):
      part_features = part.set_shapes(part.batch(*stream.locate(draw_N), stream.seed))
      features_of_parts.append(pad_features(part_features, features, tasks[0].vocabulary.pad_id))
    # The rows of all parts, in the order of the batch.
    return {
      name: tf.dynamic_stitch(rows, [values[name] for values in features_of_parts])
      for name in features
    }

  def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    streams = []
    for label, part in parts.items():
      streams.append(Stream(part_seed(seed, label), part.num_examples, repeats=part.repeats))
    return make_rows(example_index_B, epoch_B, streams)

  content = []
  for (label, part), count in zip(parts.items(), schedule.counts, strict=True):
    content.append([label, part.fingerprint, count])
  return Mixture(
    name=name,
    vocabulary=tasks[0].vocabulary,
    fingerprint=hashlib.sha256(repr(["mixture.v1", content]).encode()).hexdigest(),
    num_examples=schedule.period,
    features=features,
    batch=batch,
    parts=parts,
    schedule=schedule,
    make_rows=make_rows,
    buckets=max(part.buckets for part in tasks),
    bucket_module=tasks[0].bucket_module,
  )


def _flatten(
  parts: Mapping[str, Task], rates: Mapping[str, float]
) -> tuple[dict[str, Task], dict[str, float]]:
  """Return parts and rates, with every mixture replaced by its parts."""
  leaves = {}
  leaf_rates = {}
  for label, part in parts.items():
    if isinstance(part, Mixture):
      inner_parts = {f"{label}/{name}": leaf for name, leaf in part.parts.items()}
      inner_counts = part.schedule.counts
    else:
      inner_parts = {label: part}
      inner_counts = (1,)
    repeated_labels = leaves.keys() & inner_parts.keys()
    if repeated_labels:
      raise UserError(
        f"mixture: found two parts called {min(repeated_labels)}, expected another label for one "
        "of them"
      )
    leaves |= inner_parts
    for name, count in zip(inner_parts, inner_counts, strict=True):
      leaf_rates[name] = rates[label] * count / sum(inner_counts)
  return leaves, leaf_rates


def pad_features(
  values: dict[str, tf.Tensor], features: dict[str, Feature], pad_id: int | None = 0
) -> dict[str, tf.Tensor]:
  """Pad values [B, ...] at the end of every axis to the shapes of `features`.

  Tokens are padded with `pad_id`, if there is one, and everything else with 0.
  """
  padded = {}
  for name, value in values.items():
    sizes = zip(features[name].shape, value.shape[1:], strict=True)
    missing = [target - size for target, size in sizes]
    if any(missing):
      padding = tf.zeros([], value.dtype)
      if pad_id and name.endswith("_tokens"):
        padding = pad_id
      paddings = [[0, 0]] + [[0, n] for n in missing]
      value = tf.pad(value, paddings, constant_values=padding)
    padded[name] = value
  return padded


def _common_features(parts: dict[str, Task]) -> dict[str, Feature]:
  """Return the features of the parts, each with its greatest size on every axis.

  Raises:
    UserError: the parts' features, dtypes or vocabularies differ.
  """
  first_label = next(iter(parts))
  first = parts[first_label]
  for label, part in parts.items():
    differing_names = sorted(set(part.features) ^ set(first.features))
    if differing_names:
      raise UserError(
        f"mixture: found {', '.join(differing_names)} in only one of the parts {first_label} and "
        f"{label}, expected equal features; mix tasks for one architecture, with the same options "
        "of packing"
      )
    if part.vocabulary.fingerprint != first.vocabulary.fingerprint:
      raise UserError(
        f"mixture: part {label} has vocabulary {part.vocabulary.fingerprint[:12]}, part "
        f"{first_label} {first.vocabulary.fingerprint[:12]}, expected one: prepare their stores "
        "with the same"
      )
    for name, feature in part.features.items():
      expected = first.features[name]
      rank = len(feature.shape)
      expected_rank = len(expected.shape)
      if feature.dtype != expected.dtype or rank != expected_rank:
        raise UserError(
          f"mixture: {name} is {feature.dtype} of {rank} axes in part {label} and "
          f"{expected.dtype} of {expected_rank} in part {first_label}, expected the same in all"
        )
  common = {}
  for name, feature in first.features.items():
    shapes = [part.features[name].shape for part in parts.values()]
    common[name] = Feature(tuple(max(sizes) for sizes in zip(*shapes)), feature.dtype)
  return common
