"""Apply a compiled function to token rows of unequal lengths, in batches of few shapes.

Rows of similar length share a batch: lengths are padded to powers of two, and a program is compiled
for each padded length. A row's padding depends only on its own length, so its result does not
depend on the rest of the batch.
"""

import collections
import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from t5x_like.nn import params
from t5x_like.parallel.rules import Rules, fetch, from_local_rows, local_rows

SHORTEST = 32

_report: contextvars.ContextVar[Callable[[int, int], None] | None] = contextvars.ContextVar(
  "report", default=None
)


@contextlib.contextmanager
def reporting(report: Callable[[int, int], None]) -> Iterator[None]:
  """Call `report(rows done, rows in all)` after every batch within the block."""
  token = _report.set(report)
  try:
    yield
  finally:
    _report.reset(token)


def padded_length(length: int, longest: int | None) -> int:
  """Return the smallest power of two that holds `length` tokens, at least `SHORTEST` and at most
  `longest`."""
  size = max(SHORTEST, 1 << (length - 1).bit_length())
  return size if longest is None else min(size, longest)


def merged_lengths(lengths: Sequence[int], batch_size: int) -> list[int]:
  """Raise padded lengths with less than a batch of rows to the next length in use, so that fewer
  programs compile."""
  raised = {}
  waiting = []
  rows = collections.Counter(lengths)
  for length in sorted(rows):
    waiting.append(length)
    if sum(rows[one] for one in waiting) >= batch_size or length == max(rows):
      raised |= dict.fromkeys(waiting, length)
      waiting = []
  return [raised[length] for length in lengths]


@dataclasses.dataclass(frozen=True)
class Runner:
  """A runner of functions of a model and a batch, on rows of any length.

  Attributes:
    model: the abstract model.
    rules: mesh and sharding rules.
    arrays: the parameters by name.
    batch_size: the most rows in a batch, rounded up to a multiple of the mesh's batch shards.
  """

  model: object
  rules: Rules
  arrays: dict[str, jax.Array]
  batch_size: int
  # kept by function
  _made: dict[Callable, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

  def changed(self, change: Callable) -> "Runner":
    """Return a runner of `change(model)`, computed once instead of at every call."""
    if change not in self._made:
      found = lambda arrays: change(params.with_arrays(self.model, arrays))  # noqa: E731
      with self.rules.activate():
        model = jax.eval_shape(found, self.arrays)
      compute = jax.jit(lambda x: params.arrays(found(x)))
      self._made[change] = Runner(model, self.rules, {}, self.batch_size), compute
    runner, compute = self._made[change]
    if not runner.arrays:
      with self.rules.activate():
        runner.arrays.update(compute(self.arrays))
    return runner

  @contextlib.contextmanager
  def holding(self, arrays: dict[str, jax.Array]) -> Iterator[None]:
    """Hold other parameters within the block; a runner that began without any compiles nothing
    twice."""
    self.arrays.update(arrays)
    try:
      yield
    finally:
      self.arrays.clear()
      for made in self._made.values():
        if isinstance(made, tuple):
          made[0].arrays.clear()

  def __call__(
    self,
    function: Callable,
    ids: Sequence[Sequence[int]],
    extras: dict[str, np.ndarray],
    padded: Callable[[int], int],
  ) -> list[tuple[np.ndarray, ...]]:
    """Apply `function` to every row; return the results in the order of the rows.

    Args:
      function: `(model, batch) -> arrays`, each with a leading axis B. The batch has `tokens` int32
        [B, P], padded on the right, `valid` int32 [B, P], 0 for padding, and the extras. Rows that
        complete a batch are all padding. A function that is given again is not traced again.
      ids: the token ids of each row.
      extras: other inputs, with a leading axis over all rows.
      padded: maps the length of a row to its padded length.
    """

    def features(chosen: list[int], length: int) -> dict[str, np.ndarray]:
      shape = (len(chosen), length)
      made = {"tokens": np.full(shape, pad, np.int32), "valid": np.zeros(shape, np.int32)}
      for row, number in enumerate(chosen):
        tokens = ids[number]
        made["tokens"][row, : len(tokens)], made["valid"][row, : len(tokens)] = tokens, 1
      return made | {name: x[chosen] for name, x in extras.items()}

    pad = self.model.variant.tokens.pad or 0
    apply = lambda batch: self._program(function)(self.arrays, batch)  # noqa: E731
    return in_batches(
      apply, self.rules, self.batch_size, [padded(len(row)) for row in ids], features
    )

  def of_features(
    self, function: Callable, features: dict[str, np.ndarray], lengths: Sequence[int], longest: int
  ) -> list[tuple[np.ndarray, ...]]:
    """Apply `function` to rows of features; return the results in the order of the rows.

    Args:
      function: `(model, batch) -> arrays`, each with a leading axis B; traced once.
      features: the features of all rows, each [N, …]; those with a last axis of `longest` are cut
        to the rows' length.
      lengths: the padded length of each row.
      longest: the length of the features' rows.
    """

    def batch_of(chosen: list[int], length: int) -> dict[str, np.ndarray]:
      rows = {name: x[chosen] for name, x in features.items()}
      return {name: x[..., :length] if x.shape[-1] == longest else x for name, x in rows.items()}

    program = self._program(function)
    return in_batches(
      lambda batch: program(self.arrays, batch), self.rules, self.batch_size, lengths, batch_of
    )

  def _program(self, function: Callable) -> Callable:
    """Return the compiled form of a function of the model and a batch."""

    def run(arrays, batch):
      with self.rules.activate():
        return function(params.with_arrays(self.model, arrays), batch)

    return self._made.setdefault(function, jax.jit(run))


def in_batches(
  run: Callable, rules: Rules, batch_size: int, lengths: Sequence[int], features: Callable
) -> list[tuple[np.ndarray, ...]]:
  """Apply `run` to every row, in batches of equal padded length; return the results in the order of
  the rows.

  Args:
    run: `(batch of global arrays) -> a tuple of arrays`, each with a leading axis B.
    batch_size: the most rows in a batch, rounded up to a multiple of the mesh's batch shards.
    lengths: the padded length of each row.
    features: `(numbers of some rows, their padded length) -> arrays` with a leading axis over these
      rows. Every process makes them for all rows and contributes its share; rows of zeros complete
      a batch.
  """
  members: dict[int, list[int]] = {}
  for number, length in enumerate(lengths):
    members.setdefault(length, []).append(number)
  ways = rules.ways("batch")
  results = {}
  sharding = rules.batch()

  def place(x: np.ndarray, B: int) -> jax.Array:
    x = np.concatenate([x, np.zeros((B - len(x), *x.shape[1:]), x.dtype)])
    rows = local_rows(sharding, B)
    return from_local_rows(sharding, rows, x[rows], B)

  for length, numbers in sorted(members.items()):
    B = -(-min(batch_size, len(numbers)) // ways) * ways
    for start in range(0, len(numbers), B):
      chosen = numbers[start : start + B]
      outputs = run({name: place(x, B) for name, x in features(chosen, length).items()})
      outputs = [fetch(x) for x in outputs]
      results |= {n: tuple(x[row] for x in outputs) for row, n in enumerate(chosen)}
      if (report := _report.get()) is not None:
        report(len(results), len(lengths))
  return [results[number] for number in range(len(lengths))]
