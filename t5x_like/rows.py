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

import jax
import numpy as np

from t5x_like.nn import params
from t5x_like.parallel.rules import Rules, fetch, from_local_rows, local_rows

MIN_PADDED_LENGTH = 32

_report: contextvars.ContextVar[Callable[[int, int], None] | None] = contextvars.ContextVar(
  "report", default=None
)


@contextlib.contextmanager
def report_progress(report: Callable[[int, int], None]) -> Iterator[None]:
  """Call `report(finished rows, all rows)` after every batch within the block."""
  token = _report.set(report)
  try:
    yield
  finally:
    _report.reset(token)


def padded_length(length: int, longest: int | None) -> int:
  """Return the smallest power of two that holds `length` tokens.

  It is at least `MIN_PADDED_LENGTH` and at most `longest`.
  """
  size = max(MIN_PADDED_LENGTH, 1 << (length - 1).bit_length())
  return size if longest is None else min(size, longest)


def pad_rows(
  ids: Sequence[Sequence[int]], length: int, pad_id: int = 0
) -> tuple[np.ndarray, np.ndarray]:
  """Return token rows padded on the right and 1 for their tokens, both int32 [B, length]."""
  tokens_BP = np.full((len(ids), length), pad_id, np.int32)
  valid_BP = np.zeros((len(ids), length), np.int32)
  for row, row_ids in enumerate(ids):
    tokens_BP[row, : len(row_ids)] = row_ids
    valid_BP[row, : len(row_ids)] = 1
  return tokens_BP, valid_BP


def merge_lengths(lengths: Sequence[int], batch_size: int) -> list[int]:
  """Raise padded lengths with less than a batch of rows to the next length in use.

  This reduces the number of programs to compile.
  """
  merged = {}
  pending_lengths = []
  num_pending_rows = 0
  rows_of_length = collections.Counter(lengths)
  longest = max(rows_of_length, default=0)
  for length in sorted(rows_of_length):
    pending_lengths.append(length)
    num_pending_rows += rows_of_length[length]
    if num_pending_rows >= batch_size or length == longest:
      merged.update(dict.fromkeys(pending_lengths, length))
      pending_lengths = []
      num_pending_rows = 0
  return [merged[length] for length in lengths]


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
  # The compiled form of each function.
  _programs: dict[Callable, Callable] = dataclasses.field(
    default_factory=dict, compare=False, repr=False
  )
  # For each change of the model, its runner and the function that computes its parameters.
  _transformed: dict[Callable, tuple["Runner", Callable]] = dataclasses.field(
    default_factory=dict, compare=False, repr=False
  )

  def transform(self, change: Callable) -> "Runner":
    """Return a runner of `change(model)`, computed once instead of at every call."""
    if change not in self._transformed:

      def changed_model(arrays: dict[str, jax.Array]) -> object:
        return change(params.with_arrays(self.model, arrays))

      with self.rules.activate():
        model = jax.eval_shape(changed_model, self.arrays)
      compute = jax.jit(lambda arrays: params.arrays(changed_model(arrays)))
      self._transformed[change] = Runner(model, self.rules, {}, self.batch_size), compute
    runner, compute = self._transformed[change]
    if not runner.arrays:
      with self.rules.activate():
        runner.arrays.update(compute(self.arrays))
    return runner

  @contextlib.contextmanager
  def use_arrays(self, arrays: dict[str, jax.Array]) -> Iterator[None]:
    """Use these parameters within the block, in a runner without parameters of its own.

    Its compiled programs are kept from one block to the next.
    """
    self.arrays.update(arrays)
    try:
      yield
    finally:
      self.arrays.clear()
      for runner, _ in self._transformed.values():
        runner.arrays.clear()

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
        complete a batch are all padding. The same function is traced only once.
      ids: the token ids of each row.
      extras: other inputs, with a leading axis over all rows.
      padded: maps the length of a row to its padded length.
    """

    pad_id = self.model.variant.tokens.pad or 0

    def make_batch(numbers: list[int], length: int) -> dict[str, np.ndarray]:
      tokens_BP, valid_BP = pad_rows([ids[number] for number in numbers], length, pad_id)
      batch = {"tokens": tokens_BP, "valid": valid_BP}
      return batch | {name: array[numbers] for name, array in extras.items()}

    lengths = [padded(len(row_ids)) for row_ids in ids]
    return self._run(function, lengths, make_batch)

  def run_on_features(
    self, function: Callable, features: dict[str, np.ndarray], lengths: Sequence[int], longest: int
  ) -> list[tuple[np.ndarray, ...]]:
    """Apply `function` to rows of features; return the results in the order of the rows.

    Args:
      function: `(model, batch) -> arrays`, each with a leading axis B; traced once.
      features: the features of all rows, each [N, …]; features with a last axis of `longest` are
        cut to the rows' length.
      lengths: the padded length of each row.
      longest: the length of the features' rows.
    """

    def make_batch(numbers: list[int], length: int) -> dict[str, np.ndarray]:
      batch = {}
      for name, array in features.items():
        rows = array[numbers]
        batch[name] = rows[..., :length] if rows.shape[-1] == longest else rows
      return batch

    return self._run(function, lengths, make_batch)

  def _run(
    self, function: Callable, lengths: Sequence[int], make_batch: Callable
  ) -> list[tuple[np.ndarray, ...]]:
    """Apply the compiled form of a function to all rows."""
    program = self._program(function)
    return run_in_batches(
      lambda batch: program(self.arrays, batch), self.rules, self.batch_size, lengths, make_batch
    )

  def _program(self, function: Callable) -> Callable:
    """Return the compiled form of a function of the model and a batch."""

    def run(arrays, batch):
      with self.rules.activate():
        return function(params.with_arrays(self.model, arrays), batch)

    return self._programs.setdefault(function, jax.jit(run))


def run_in_batches(
  run: Callable, rules: Rules, batch_size: int, lengths: Sequence[int], features: Callable
) -> list[tuple[np.ndarray, ...]]:
  """Apply `run` to every row, in batches of equal padded length.

  The results are in the order of the rows.

  Args:
    run: `(batch of global arrays) -> a tuple of arrays`, each with a leading axis B.
    rules: mesh and sharding rules.
    batch_size: the most rows in a batch, rounded up to a multiple of the mesh's batch shards.
    lengths: the padded length of each row.
    features: `(numbers of some rows, their padded length) -> arrays` with a leading axis over these
      rows. Every process makes them for all rows and contributes its share; rows of zeros complete
      a batch.
  """
  numbers_of_length: dict[int, list[int]] = {}
  for number, length in enumerate(lengths):
    numbers_of_length.setdefault(length, []).append(number)
  num_shards = rules.ways("batch")
  sharding = rules.batch()
  results = {}

  def shard(array: np.ndarray, B: int) -> jax.Array:
    padding = np.zeros((B - len(array), *array.shape[1:]), array.dtype)
    array = np.concatenate([array, padding])
    rows = local_rows(sharding, B)
    return from_local_rows(sharding, rows, array[rows], B)

  for length, numbers in sorted(numbers_of_length.items()):
    B = -(-min(batch_size, len(numbers)) // num_shards) * num_shards
    for start in range(0, len(numbers), B):
      batch_numbers = numbers[start : start + B]
      arrays = features(batch_numbers, length)
      outputs = run({name: shard(array, B) for name, array in arrays.items()})
      outputs = [fetch(output) for output in outputs]
      for row, number in enumerate(batch_numbers):
        results[number] = tuple(output[row] for output in outputs)
      report = _report.get()
      if report is not None:
        report(len(results), len(lengths))
  return [results[number] for number in range(len(lengths))]
