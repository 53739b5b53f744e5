"""`python -m tools.benchmark data`: how many raw tokens a second the span-corruption pipeline makes into batches."""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import tempfile
import time

import numpy as np

from t5x_like.data import loader, task, vocabularies
from t5x_like.data.preprocessors.span_corruption import random_spans_lengths
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.token_store_writer import TokenStoreWriter
from t5x_like.errors import UserError

_FAR_STEP = 1_000_000_000
_SENTINELS = 100
_SIZE = 32_100
_DOCUMENT = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the command's flags."""
  parser.add_argument("--store", help="a store made by tools.prepare_data (default: a synthetic one of random tokens, "
                      "in a temporary directory)")
  parser.add_argument("--split", default="train", help="the split of --store (default: train)")
  parser.add_argument("--tokens", type=int, default=100_000_000, help="size of the synthetic store (default: 1e8)")
  parser.add_argument("--inputs_length", type=int, default=512)
  parser.add_argument("--batch_size", type=int, default=128)
  parser.add_argument("--steps", type=int, default=2000, help="batches measured in each repeat (default: 2000)")
  parser.add_argument("--repeats", type=int, default=3)
  parser.add_argument("--start_step", type=int, default=0)


def main(args: argparse.Namespace) -> None:
  """Measures and prints; raises UserError for a store that cannot be used."""
  if min(args.steps, args.repeats, args.tokens) < 1:
    raise UserError("--steps, --repeats and --tokens: expected at least 1 each")
  with tempfile.TemporaryDirectory() as directory:
    if args.store is None:
      _synthetic_store(pathlib.Path(directory, args.split), args.tokens)
    begin = time.perf_counter()
    span_corruption = task.build("span_corruption", args.split, store=args.store or directory,
                                 inputs_length=args.inputs_length)
    opened = time.perf_counter() - begin
    _measure(args, span_corruption, opened)


def _measure(args: argparse.Namespace, span_corruption: task.Task, opened: float) -> None:
  window, targets_length = random_spans_lengths(args.inputs_length, 0.15, 3.0)
  _first_batch(span_corruption, args.batch_size, 0)  # TensorFlow's own start-up is not the pipeline's
  first = {}
  for step in (0, _FAR_STEP) * args.repeats:
    first.setdefault(step, []).append(_first_batch(span_corruption, args.batch_size, step))
  batches = loader.train_batches(span_corruption, batch_size=args.batch_size, seed=0, start_step=args.start_step)
  for _ in range(50):
    next(batches)
  rates, load = [], os.getloadavg()[0]
  for _ in range(args.repeats):
    begin = time.perf_counter()
    for _ in range(args.steps):
      next(batches)
    rates.append(args.steps * args.batch_size * window / (time.perf_counter() - begin))
  where = args.store or f"a synthetic store of {args.tokens:,} random tokens"
  print(f"Method: T5 span corruption from {where}, windows of {window} raw tokens to {args.inputs_length} inputs and "
        f"{targets_length} targets, shuffled, batches of {args.batch_size} as numpy arrays on the host, consumed as "
        f"fast as they come by one process. After 50 batches of warm-up, {args.repeats} repeats of {args.steps} "
        f"batches; the figure is the median repeat. Raw tokens are tokens of the store, {args.batch_size} * {window} "
        "a batch.")
  print(f"Opening is the time from asking for a step to having its batch, median of {args.repeats}; the store itself "
        f"was opened and checked in {opened:.2f} s.")
  print(f"Load average when measuring began: {load:.2f} on {os.cpu_count()} cores; the figure needs idle cores.")
  print(json.dumps({
    "raw_tokens_per_second": round(statistics.median(rates)),
    "raw_tokens_per_second_repeats": [round(rate) for rate in rates],
    "batches_per_second": round(statistics.median(rates) / (args.batch_size * window), 2),
    "open_seconds_step_0": round(statistics.median(first[0]), 4),
    "open_seconds_step_1e9": round(statistics.median(first[_FAR_STEP]), 4),
    "store_open_seconds": round(opened, 4),
    "inputs_length": args.inputs_length, "targets_length": targets_length, "window": window,
    "batch_size": args.batch_size, "steps": args.steps, "start_step": args.start_step, "cpu_count": os.cpu_count(),
    "load_average": round(load, 2), "python": platform.python_version(), "tensorflow": tf.__version__,
    "numpy": np.__version__, "tensorstore": importlib.metadata.version("tensorstore"),
  }), flush=True)


def _first_batch(span_corruption: task.Task, batch_size: int, step: int) -> float:
  begin = time.perf_counter()
  next(loader.train_batches(span_corruption, batch_size=batch_size, seed=0, start_step=step))
  return time.perf_counter() - begin


def _synthetic_store(path: pathlib.Path, tokens: int) -> None:
  """Random ids in documents of 500, under a byte vocabulary with as many ids as T5's (32,100)."""
  vocabulary = vocabularies.ByteVocabulary(extra_ids=_SIZE - vocabularies.ByteVocabulary(extra_ids=0).size)
  generator = np.random.default_rng(0)
  with TokenStoreWriter(path, name="synthetic", split=path.name, vocabulary=vocabulary) as writer:
    for start in range(0, tokens, 10_000_000):
      count = min(10_000_000, tokens - start)
      ids = generator.integers(3, _SIZE - _SENTINELS, count, dtype=np.uint16)
      lengths = np.full(-(-count // _DOCUMENT), _DOCUMENT)
      lengths[-1] -= lengths.sum() - count
      writer.add(ids, lengths)
