"""Measure the randomness and the cost of an epoch's order, compared with TensorFlow's."""

import argparse
import json
import os
import platform
import time

import numpy as np

from t5x_like.data import random
from t5x_like.quiet_tensorflow import tf

from . import randomness

# The smallest size is 1,000: TensorFlow's cipher permutes at least 2^16 positions and repeats until
# a position is in the corpus, which takes minutes for fewer.
_SIZES = (
  1_000,
  4_097,
  65_537,
  10**6,
  2**24 + 1,
  976_562_500,
  17_000_000_000,
  10**12,
  2**50,
  2**62 - 1,
)
_BATCHES = (128, 4_096, 10**6)
_COST_SIZES = (200, 10**6 + 3, 976_562_500)
_REPEATS = 9


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's flags."""
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument(
    "--tensorflow_rounds", type=int, default=4, help="rounds of TensorFlow's cipher (default: 4)"
  )


def main(args: argparse.Namespace) -> None:
  """Print the results as two Markdown tables and as JSON."""

  def shuffle_index(index_B: tf.Tensor, key_B: tf.Tensor, size: int) -> tf.Tensor:
    last_B = tf.fill(tf.shape(index_B), np.int64(size - 1))
    return tf.raw_ops.RandomIndexShuffle(
      index=index_B, seed=random.bits(key_B, 3), max_index=last_B, rounds=args.tensorflow_rounds
    )

  permutations = {
    f"RandomIndexShuffle, {args.tensorflow_rounds} rounds": shuffle_index,
    "ours": random.permute,
  }
  print(
    "Method: the first 50,000 positions of 8 epochs' orders (4 of each of two seeds; more for "
    "small corpora) and the first, second and last positions under 4,096 seeds. The figure is the "
    "largest deviation in each group of tests, in standard deviations; a random order exceeds 6.4 "
    f"in any of 90 sizes with a probability of 1e-6. Seed {args.seed}."
  )
  scores = {name: _measure_scores(permute, args.seed) for name, permute in permutations.items()}
  for name, by_size in scores.items():
    rows = {f"{size:,}": _format_cells(row, "{:.1f}") for size, row in by_size.items()}
    _print_table(name, rows)
  print(
    "Method: processor time per index, summed over threads, of calls inside tf.function. Repeats "
    f"alternate between the permutations; the figure is the lower quartile of {_REPEATS}. All "
    "indices are of one epoch."
  )
  costs = _measure_costs(permutations)
  rows = {case: _format_cells(row, "{:,.0f}") for case, row in costs.items()}
  _print_table("ns per index", rows)
  versions = {
    "python": platform.python_version(),
    "tensorflow": tf.__version__,
    "numpy": np.__version__,
  }
  print(
    json.dumps({"scores": scores, "nanoseconds": costs, "cpu_count": os.cpu_count(), **versions}),
    flush=True,
  )


def _measure_scores(permute: randomness.Permute, seed: int) -> dict[int, dict[str, float]]:
  """Return the largest deviation of each group of tests by size of the corpus."""
  largest: dict[int, dict[str, float]] = {}
  for size in _SIZES:
    largest[size] = {}
    for name, scores in randomness.study(permute, size, seed).items():
      largest[size][name] = round(float(scores[np.abs(scores).argmax()]), 1)
  return largest


def _format_cells(row: dict[str, float], template: str) -> dict[str, str]:
  """Format the numbers of a row, such as with "{:.1f}"."""
  return {column: template.format(number) for column, number in row.items()}


def _print_table(title: str, rows: dict[str, dict[str, str]]) -> None:
  """Print a Markdown table; `rows` holds the cells of each row by column."""
  columns = list(dict.fromkeys(column for row in rows.values() for column in row))
  print()
  print(f"| {' | '.join([title, *columns])} |")
  print(f"|{'---|' * (len(columns) + 1)}")
  for name, row in rows.items():
    cells = [row.get(column, "") for column in columns]
    print(f"| {' | '.join([name, *cells])} |")
  print()


def _measure_costs(permutations: dict[str, randomness.Permute]) -> dict[str, dict[str, float]]:
  """Return nanoseconds per index by case and permutation."""
  costs = {}
  for size in _COST_SIZES:
    for batch in _BATCHES:
      costs[f"{batch:,} of {size:,}"] = _measure_case(permutations, size, batch)
  return costs


def _measure_case(
  permutations: dict[str, randomness.Permute], size: int, batch: int
) -> dict[str, float]:
  """Return nanoseconds per index by permutation, for batches of indices below `size`."""
  index_B = tf.constant(np.random.default_rng(0).integers(0, size, batch))
  epoch_B = tf.zeros([batch], tf.int64)
  num_calls = max(1, 100_000 // batch)
  calls = {name: _trace(permute, size) for name, permute in permutations.items()}
  nanoseconds = {name: [] for name in calls}
  for _ in range(_REPEATS):
    for name, call in calls.items():
      start = time.process_time()
      for _ in range(num_calls):
        call(index_B, epoch_B)
      seconds = time.process_time() - start
      nanoseconds[name].append(1e9 * seconds / num_calls / batch)
  return {name: round(np.quantile(repeats, 0.25), 1) for name, repeats in nanoseconds.items()}


def _trace(permute: randomness.Permute, size: int):
  """Return a traced function that permutes indices [B] of epochs [B]."""
  call = tf.function(lambda index_B, epoch_B: permute(index_B, random.row_keys(0, epoch_B), size))
  call(tf.zeros([1], tf.int64), tf.zeros([1], tf.int64))
  return call
