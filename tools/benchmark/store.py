"""Measure how fast a token store opens and how fast random windows are read from it.

By default the store is simulated. The tokens of every shard are a sparse file, which has the size
of a real one but no blocks on disk, and every shard links to one real file of document ends. The
page cache is empty at first, so every window includes the costs of opening its file and of reading
it through the file system.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import resource
import shutil
import statistics
import sys
import tempfile
import time

import numpy as np

from t5x_like.data import loader, task
from t5x_like.errors import UserError
from t5x_like.store import ids
from t5x_like.store import manifest as manifests
from t5x_like.store.shards import Shard, array_directories
from t5x_like.store.tokens import TokenStore
from t5x_like.store.writer import build_metadata
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

from .data import synthetic_store

_INPUTS_LENGTH = 512
_WINDOW = 568
_SMALL_STORE_TOKENS = 10**7  # tokens of the small store, to which the large one is compared
_SPLIT = "train"


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's flags."""
  parser.add_argument(
    "--tokens", type=_count, default=10**12, help="tokens of the simulated store (default: 1e12)"
  )
  parser.add_argument(
    "--shards", type=_count, default=10**5, help="shards of the simulated store (default: 1e5)"
  )
  parser.add_argument(
    "--documents",
    type=_count,
    default=10**10,
    help="documents of the simulated store (default: 1e10)",
  )
  parser.add_argument(
    "--directory",
    help="directory for the simulated store, which is removed afterwards (default: a temporary "
    "directory)",
  )
  parser.add_argument(
    "--store",
    help="measure this store instead, local or remote: the --output of tools.prepare_data",
  )
  parser.add_argument("--split", default=_SPLIT, help="split of --store (default: train)")
  parser.add_argument(
    "--open_files", type=_count, default=1024, help="limit of open files (default: 1024)"
  )
  parser.add_argument(
    "--batch_size", type=_count, default=128, help="examples in a batch (default: 128)"
  )
  parser.add_argument(
    "--steps", type=_count, default=400, help="batches measured in each repeat (default: 400)"
  )
  parser.add_argument("--repeats", type=_count, default=3, help="repeats (default: 3)")


def _count(text: str) -> int:
  """Parse the value of a flag that takes a whole number of at least 1, such as 1e5."""
  value = float(text)
  if value < 1 or value != int(value):
    raise argparse.ArgumentTypeError(
      f"found {text}, expected a whole number of at least 1, such as 100000 or 1e5"
    )
  return int(value)


def main(args: argparse.Namespace) -> None:
  """Measure and print the result; refuse a store that cannot be made or used."""
  limits = resource.getrlimit(resource.RLIMIT_NOFILE)
  directory = pathlib.Path(tempfile.mkdtemp(prefix="t5x_like_store.", dir=args.directory))
  try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (args.open_files, limits[1]))
    begin = time.perf_counter()
    # In another process, so that the memory it needs is not measured.
    process = multiprocessing.get_context("spawn").Process(target=_make, args=(directory, args))
    process.start()
    process.join()
    if process.exitcode:
      raise UserError(
        f"{directory}: no store could be made there; see above, or choose another --directory"
      )
    creation_seconds = None if args.store else time.perf_counter() - begin
    _measure(
      args, args.store or str(directory / "large"), str(directory / "small"), creation_seconds
    )
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    shutil.rmtree(directory, ignore_errors=True)


def _make(directory: pathlib.Path, args: argparse.Namespace) -> None:
  """Make the small store and, unless `--store` names another, the simulated one."""
  try:
    synthetic_store(directory / "small" / _SPLIT, _SMALL_STORE_TOKENS)
    if args.store is None:
      simulate(directory / "large" / _SPLIT, args.tokens, args.shards, args.documents)
  except UserError as error:
    sys.exit(f"error: {error}")


def simulate(path: str | os.PathLike, tokens: int, shards: int, documents: int) -> None:
  """Make a store of sparse files.

  Args:
    path: directory of the new store.
    tokens, documents: sizes of the store, rounded down to a multiple of the shards.
    shards: number of shards.

  Raises:
    UserError: there are fewer documents than shards, fewer tokens than documents, or the files
      cannot be made.
  """
  path = pathlib.Path(path)
  per_shard = tokens // shards
  ends = documents // shards
  if not 1 <= ends <= per_shard:
    raise UserError(
      f"--documents={documents}: found {ends} a shard, expected 1 to {per_shard}, its tokens"
    )
  vocabulary = ByteVocabulary(extra_ids=32_100 - ByteVocabulary(extra_ids=0).size)
  array = ids.array(vocabulary)
  values, item_ends = array_directories(array.name)
  cuts = np.random.default_rng(0).choice(per_shard - 1, ends - 1, replace=False) + 1
  ends_D = np.append(np.sort(cuts), per_shard).astype("<i8")
  size = per_shard * np.dtype(array.dtype).itemsize
  try:
    for directory in (values, item_ends):
      (path / directory).mkdir(parents=True)
    written_file = None
    for shard in range(shards):
      with open(path / values / f"{shard:08d}", "wb") as stream:
        stream.truncate(size)
      file = path / item_ends / f"{shard:08d}"
      if written_file is None or not _link(written_file, file):
        file.write_bytes(ends_D.tobytes())
        written_file = file
    digests = {values: "0" * 64, item_ends: "0" * 64}  # as long as real digests; not checked
    contents = build_metadata(
      [Shard(f"{shard:08d}", ends, {array.name: per_shard}, digests) for shard in range(shards)],
      name="simulated",
      split=_SPLIT,
      arrays=[array],
      facts=ids.facts(vocabulary, False),
      skipped={},
      source={},
    )
    vocabulary.save(path / manifests.VOCABULARY)
    for file, content in contents.items():
      (path / file).write_bytes(content)
  except OSError as error:
    raise UserError(f"{path}: cannot be written ({error}): choose another --directory") from error


def _link(source: pathlib.Path, path: pathlib.Path) -> bool:
  """Make a hard link; return whether the file system's limit of links to a file allows it."""
  try:
    os.link(source, path)
  except OSError:
    return False
  return True


def _measure(
  args: argparse.Namespace, store: str, small: str, creation_seconds: float | None
) -> None:
  """Measure the store, and the data pipeline on it and on the small store; print the figures."""
  path = f"{store}/{args.split}"
  megabytes_before = _megabytes("VmHWM")
  begin = time.perf_counter()
  tokens = TokenStore.open(path, verify="size")
  open_seconds = time.perf_counter() - begin
  shards = tokens.manifest.num_shards
  creation = f", made of sparse files in {creation_seconds:.1f} s" if creation_seconds else ""
  print(
    f"Store: {path}, {tokens.num_tokens:,} tokens in {shards:,} shards and "
    f"{tokens.num_documents:,} documents{creation}; {tokens.verification}."
  )
  window_rates = _windows_rates(args, tokens)
  lookup_rate = _lookup_rate(args, tokens)
  large_task = _span_corruption(store, args.split)
  small_task = _span_corruption(small, _SPLIT)
  first_rate = _pipeline_rate(args, large_task)
  large_rates = []
  small_rates = []
  for _ in range(args.repeats):  # alternating, so that other load on the machine affects both
    large_rates.append(_pipeline_rate(args, large_task))
    small_rates.append(_pipeline_rate(args, small_task))
  store_rate = statistics.median(large_rates)
  small_rate = statistics.median(small_rates)
  _print_method(args)
  manifest_bytes = None
  if "://" not in path:
    manifest_bytes = len((pathlib.Path(path) / manifests.FILE).read_bytes())
  figures = {
    "tokens": tokens.num_tokens,
    "shards": shards,
    "documents": tokens.num_documents,
    "open_seconds": round(open_seconds, 3),
    "manifest_bytes": manifest_bytes,
    "window_tokens_per_second_first": round(window_rates[0]),
    "window_tokens_per_second_again": round(statistics.median(window_rates[1:])),
    "document_lookups_per_second": round(lookup_rate),
    "raw_tokens_per_second_first": round(first_rate),
    "raw_tokens_per_second_again": round(store_rate),
    "raw_tokens_per_second_small_store": round(small_rate),
    "of_small_store": round(store_rate / small_rate, 3),
    "open_files_limit": args.open_files,
    "open_files": len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None,
    "peak_megabytes": _megabytes("VmHWM"),
    "peak_megabytes_before_opening": megabytes_before,
    "load_average": round(os.getloadavg()[0], 2),
  }
  print(json.dumps(figures), flush=True)


def _span_corruption(store: str, split: str) -> task.Task:
  return task.build(
    "span_corruption", split, store=store, inputs_length=_INPUTS_LENGTH, verify="size"
  )


def _print_method(args: argparse.Namespace) -> None:
  """Print how the figures of `_measure` are obtained."""
  print(
    f"Method: at most {args.open_files} open files. Windows of {_WINDOW} tokens at random "
    f"positions, {args.batch_size} in a batch, {args.steps} batches, read by {os.cpu_count()} "
    "threads: for the first time, then the same ones again, from the page cache. Documents of "
    f"random tokens, {args.batch_size} in a batch. Span corruption {_INPUTS_LENGTH}/114 as in "
    "training, also for the first time and again, the latter alternating with a store of one shard "
    f"of {_SMALL_STORE_TOKENS:,} tokens; medians of {args.repeats} repeats. Load average "
    f"{os.getloadavg()[0]:.2f} on {os.cpu_count()} cores."
  )


def _windows_rates(args: argparse.Namespace, tokens: TokenStore) -> list[float]:
  """Return tokens per second of random windows, first from the disk and then from the cache."""
  starts = np.random.default_rng(0).integers(
    0, tokens.num_tokens - _WINDOW, (args.steps, args.batch_size)
  )
  rates = []
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for _ in range(1 + args.repeats):
      begin = time.perf_counter()
      for window_BW in pool.map(lambda starts_B: tokens.windows(starts_B, _WINDOW), starts):
        assert window_BW.shape == (args.batch_size, _WINDOW)
      rates.append(starts.size * _WINDOW / (time.perf_counter() - begin))
  return rates


def _lookup_rate(args: argparse.Namespace, tokens: TokenStore) -> float:
  """Return the number of documents per second that are found by one of their tokens."""
  positions = np.random.default_rng(0).integers(0, tokens.num_tokens, (args.steps, args.batch_size))
  begin = time.perf_counter()
  for positions_B in positions:
    _, starts_B, ends_B = tokens.documents_at(positions_B)
    if not ((starts_B <= positions_B) & (positions_B < ends_B)).all():
      raise UserError(
        f"{tokens.path}: found documents that do not contain the token by which they were found"
      )
  return positions.size / (time.perf_counter() - begin)


def _pipeline_rate(args: argparse.Namespace, built: task.Task) -> float:
  """Return raw tokens per second of a task's first batches."""
  batches = loader.train_batches(built, batch_size=args.batch_size, seed=0)
  next(batches)  # traces the graph
  begin = time.perf_counter()
  for _ in range(args.steps):
    next(batches)
  return args.steps * args.batch_size * _WINDOW / (time.perf_counter() - begin)


def _megabytes(key: str) -> float | None:
  """Return a figure of this process's memory; `VmHWM` is its peak."""
  try:
    status = pathlib.Path("/proc/self/status").read_text()
  except OSError:
    return None
  return round(int(status.partition(f"{key}:")[2].split()[0]) / 1e3, 1)
