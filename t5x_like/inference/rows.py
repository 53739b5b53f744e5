"""Token rows of unequal lengths through one compiled function, in batches of few shapes.

Rows of similar length share a batch: lengths are padded to a power of two, and a program is compiled for each that
occurs. The padding of a row depends only on its own length, so its answer does not depend on the rest of the batch.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np

from t5x_like.evals import fetch
from t5x_like.nn import params
from t5x_like.parallel.rules import Rules, from_local_rows, local_rows

SHORTEST = 32


def padded_length(length: int, longest: int | None) -> int:
  """The smallest power of two that holds `length` tokens, at least `SHORTEST` and at most `longest`."""
  size = max(SHORTEST, 1 << (length - 1).bit_length())
  return size if longest is None else min(size, longest)


@dataclasses.dataclass(frozen=True)
class Runner:
  """Applies functions of a model and a batch to rows of any length.

  Attributes:
    model: the abstract model.
    rules: mesh and sharding rules.
    arrays: the parameters by name.
    batch_size: the most rows in a batch, rounded up to a multiple of the parts into which the mesh splits a batch.
  """

  model: object
  rules: Rules
  arrays: dict[str, jax.Array]
  batch_size: int

  def __call__(
    self, function: Callable, ids: Sequence[Sequence[int]], extras: dict[str, np.ndarray], padded: Callable[[int], int]
  ) -> list[tuple[np.ndarray, ...]]:
    """`function` of every row, in the order of the rows.

    Args:
      function: `(model, batch) -> arrays`, each with a leading axis B. The batch has `tokens` int32 [B, P], padded with
        0 on the right, `valid` int32 [B, P], 0 for padding, and the extras. Rows that fill up a batch are all padding.
      ids: the token ids of each row.
      extras: other inputs, with a leading axis over all rows.
      padded: maps the length of a row to its padded length.
    """

    @jax.jit
    def run(arrays, batch):
      with self.rules.activate():
        return function(params.with_arrays(self.model, arrays), batch)

    members: dict[int, list[int]] = {}
    for number, row in enumerate(ids):
      members.setdefault(padded(len(row)), []).append(number)
    ways, results = self.rules.split("batch"), {}
    for length, numbers in sorted(members.items()):
      B = -(-min(self.batch_size, len(numbers)) // ways) * ways
      for start in range(0, len(numbers), B):
        chosen = numbers[start : start + B]
        batch = _batch([ids[n] for n in chosen], {name: x[chosen] for name, x in extras.items()}, (B, length))
        outputs = [fetch(x) for x in run(self.arrays, self._placed(batch))]
        results |= {n: tuple(x[row] for x in outputs) for row, n in enumerate(chosen)}
    return [results[number] for number in range(len(ids))]

  def _placed(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """Global arrays; every process has all rows and contributes its own."""
    sharding = self.rules.batch()

    def place(x):
      rows = local_rows(sharding, len(x))
      return from_local_rows(sharding, rows, x[rows], len(x))

    return {name: place(x) for name, x in batch.items()}


def _batch(ids, extras: dict[str, np.ndarray], shape: tuple[int, int]) -> dict[str, np.ndarray]:
  batch = {"tokens": np.zeros(shape, np.int32), "valid": np.zeros(shape, np.int32)}
  for row, tokens in enumerate(ids):
    batch["tokens"][row, : len(tokens)], batch["valid"][row, : len(tokens)] = tokens, 1
  for name, x in extras.items():
    batch[name] = np.concatenate([x, np.zeros((shape[0] - len(x), *x.shape[1:]), x.dtype)])
  return batch
