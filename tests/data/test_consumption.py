"""Every example of an epoch is read exactly once, over any phases and numbers of hosts."""

import collections
import itertools

import numpy as np
import pytest

import more
from refusals import refuses
from t5x_like.data import consumption, loader, mixture, random, task
from t5x_like.data.consumption import Phase
from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

SEED = 7
NAMES = "abcdefgh"


def number_task(name: str, size: int, objective: str = "") -> task.Task:
  """Return a task whose features are the numbers of its corpus, an example and the epoch."""

  def batch(example_index_B, epoch_B, seed):
    corpus_B = tf.fill(tf.shape(example_index_B), NAMES.index(name))
    return {"corpus": corpus_B, "example": tf.cast(example_index_B, tf.int32), "epoch": epoch_B}

  features = {"corpus": "int32", "example": "int32", "epoch": "int64"}
  features = {name: task.Feature((), dtype) for name, dtype in features.items()}
  return task.Task(
    name, ByteVocabulary(), f"{name}{size}{objective}", size, features, batch, numbering=name
  )


SIZES = {"a": 53, "b": 30, "c": 11, "d": 26}
CORPORA = {name: number_task(name, size) for name, size in SIZES.items()}
A = CORPORA["a"]


def build_mixture(period=20, **rates):
  return mixture.mix({name: CORPORA[name] for name in rates}, rates, period=period, name="m")


SCENARIOS = {
  "a ramp of one task": [Phase(A, 8, 5), Phase(A, 16, 3), Phase(A, 32, 3)],
  "another objective on the same windows": [
    Phase(A, 16, 5),
    Phase(number_task("a", 53, "later"), 16, 6),
  ],
  "another length, and back": [Phase(A, 16, 3), Phase(CORPORA["d"], 8, 12), Phase(A, 16, 8)],
  "a ramp of a mixture": [
    Phase(build_mixture(a=5, b=3, c=2), 8, 6),
    Phase(build_mixture(a=5, b=3, c=2), 24, 15),
  ],
  "other rates": [
    Phase(build_mixture(a=5, b=3, c=2), 16, 7),
    Phase(build_mixture(a=1, b=3, c=2, period=17), 8, 9),
    Phase(build_mixture(a=5, b=3, c=2), 24, 8),
    Phase(build_mixture(a=9, b=1, c=1, period=30), 8, 5),
  ],
  "other parts": [
    Phase(build_mixture(a=2, b=1), 8, 11),
    Phase(build_mixture(b=1, c=1), 16, 5),
    Phase(build_mixture(a=1, c=3), 8, 13),
    Phase(build_mixture(a=1, b=1, c=1), 24, 9),
  ],
}


def read_rows(phases, start=0, stop=None, hosts=1):
  """Return (corpus, epoch, example) of every row of the steps from `start` to before `stop`."""
  rows = []
  first = 0
  for number, phase in enumerate(phases):
    begin = max(start, first)
    end = min(first + phase.steps, first + phase.steps if stop is None else stop)
    first += phase.steps
    if begin >= end:
      continue
    parts = []
    for rows_of_host in np.split(np.arange(phase.batch_size), hosts):
      batches = loader.train_batches(
        phase.task,
        batch_size=phase.batch_size,
        seed=SEED,
        start_step=begin,
        rows=rows_of_host,
        earlier=phases[:number],
      )
      parts.append(itertools.islice(batches, end - begin))
    for batches_of_hosts in zip(*parts, strict=True):
      for batch in batches_of_hosts:
        rows += zip(batch["corpus"].tolist(), batch["epoch"].tolist(), batch["example"].tolist())
  return rows


@pytest.mark.parametrize("name", more.beyond(4, SCENARIOS))
def test_every_example_is_read_once_an_epoch(name):
  phases = SCENARIOS[name]
  steps = sum(phase.steps for phase in phases)
  # The run resumes at these steps with another number of hosts.
  cuts = [0, steps // 4, steps // 2 + 1, 3 * steps // 4, steps]
  rows = []
  for begin, end, hosts in zip(cuts[:-1], cuts[1:], (1, 2, 8, 4), strict=True):
    rows += read_rows(phases, begin, end, hosts)
  assert len(rows) == sum(phase.steps * phase.batch_size for phase in phases)
  counts = collections.Counter(rows)
  assert max(counts.values()) == 1
  periods = [phase.task.num_examples for phase in phases if isinstance(phase.task, mixture.Mixture)]
  unsettled = max(periods, default=0)  # examples that the last period has skipped so far
  for number in {row[0] for row in rows}:
    size = SIZES[NAMES[number]]
    corpus_rows = [row for row in rows if row[0] == number]
    epochs = collections.Counter(row[1] for row in corpus_rows)
    assert all(epochs[epoch] == size for epoch in range((len(corpus_rows) - unsettled) // size))
    assert max(epochs) <= (len(corpus_rows) + unsettled) // size
    if name.startswith("a ramp") or name.startswith("another"):
      assert len(corpus_rows) > 3 * size


@pytest.mark.parametrize("name", ["a ramp of one task", "a ramp of a mixture"])
def test_ramp_of_the_batch_size_does_not_change_the_order_of_examples(name):
  phases = SCENARIOS[name]
  examples = sum(phase.steps * phase.batch_size for phase in phases)
  assert read_rows(phases) == read_rows([Phase(phases[0].task, 1, examples)])


def test_skipped_examples_of_an_earlier_period_come_first():
  """A later mixture first draws the smallest numbers that the earlier schedule has not drawn."""
  earlier = build_mixture(a=2, b=1, period=3)
  later = build_mixture(a=1, b=1, period=2)
  schedule = earlier.schedule
  for examples in range(12):
    parts, draws = schedule.draws(tf.range(examples, dtype=tf.int64), SEED)
    phases = [Phase(earlier, examples, 1)] if examples else []
    start = consumption.phase_start(later, SEED, phases)
    for part, (name, stream) in enumerate(zip("ab", start.streams, strict=True)):
      size = SIZES[name]
      drawn = draws.numpy()[parts.numpy() == part]
      remaining = tf.constant(np.setdiff1d(np.arange(60), drawn)[:20])
      example, epoch = stream.locate(tf.range(20, dtype=tf.int64))
      np.testing.assert_array_equal(epoch, remaining // size)
      seed = mixture.part_seed(SEED, name)
      expected = random.shuffle(remaining % size, remaining // size, seed, size)
      np.testing.assert_array_equal(example, expected)


def test_huge_phases_are_counted_in_closed_form():
  first_mixture = build_mixture(a=5, b=3, c=2)
  second_mixture = build_mixture(a=1, b=1)
  phases = [
    Phase(first_mixture, 10**6 + 1, 10**9),
    Phase(second_mixture, 3, 10**9),
    Phase(first_mixture, 10**6, 10**8),
  ]
  start = consumption.phase_start(A, SEED, phases)
  assert start.streams[0].next == 0  # a single task shares no stream with parts of mixtures
  start = consumption.phase_start(second_mixture, SEED, phases)
  total = 10**9 * (10**6 + 1) // 2 + 3 * 10**9 // 2 + 10**14 // 2
  assert abs(start.streams[0].next - total) <= 30
  assert start.streams[0].skipped.size <= 30
  steps = 2 * 10**9 + 10**8
  batches = loader.train_batches(
    second_mixture, batch_size=4, seed=SEED, start_step=steps, earlier=phases
  )
  before = next(batches)
  assert abs(int(before["epoch"][before["corpus"] == 0][0]) - total // 53) <= 1


def test_start_in_an_earlier_phase_and_a_phase_without_steps_are_refused():
  with refuses("start_step: found 4, expected at least 5"):
    loader.train_batches(A, batch_size=4, seed=0, start_step=4, earlier=[Phase(A, 8, 5)])
  with refuses("phase: found 0 steps of 8 examples"):
    loader.train_batches(A, batch_size=4, seed=0, earlier=[Phase(A, 8, 0)])
