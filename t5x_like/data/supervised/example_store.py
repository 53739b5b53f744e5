"""Examples of token streams and labels, prepared once from the records of a source; supervised tasks read them.

    <cache>/<name>-<split>-<key>/examples.json      the manifest: source, counts, checksums, fingerprint
    <cache>/<name>-<split>-<key>/streams/inputs/    a token store (see `data/store/`); example i is document i
    <cache>/<name>-<split>-<key>/streams/targets/
    <cache>/<name>-<split>-<key>/arrays/label.npy   numbers, one per example, or per token of a stream
    <cache>/<name>-<split>-<key>/plans/             packing plans, see `packing.cached`

A task prepares its examples when it first needs them, under a key of all they depend on (the source's files and sizes,
the modification times of local ones, templates, vocabulary), and reuses them from then on; training never tokenises.
They are made in pieces by several processes (`pieces.py`), and a killed preparation goes on with the pieces that are
there. Other processes wait during preparation. Records that cannot be used are counted by reason in `examples.json` and
reported.
"""

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from t5x_like import file_names
from t5x_like.data.sources import Record, Skip, Source, check_split, first_records, open_source, parted
from t5x_like.data.store import builtin
from t5x_like.data.store.reader import TokenStore, Verify
from t5x_like.data.store.writer import TokenStoreWriter
from t5x_like.data.supervised import pieces
from t5x_like.data.supervised.pieces import Example, Piece
from t5x_like.data.vocabularies import Vocabulary
from t5x_like.errors import UserError, one_line

FORMAT = "t5x_like.examples.v1"
FILE = "examples.json"


@dataclasses.dataclass(frozen=True)
class ExampleStore:
  """Prepared examples, opened by `open_store`.

  Attributes:
    path: the directory.
    name: of the corpus.
    streams: token stores by name, each with one document per example.
    arrays: numbers by name, [N, …] or one per token of a stream.
    skipped: how many records were skipped, by reason.
    fingerprint: SHA-256 of the streams and arrays.
  """

  path: str
  name: str
  streams: dict[str, TokenStore]
  arrays: dict[str, np.ndarray]
  skipped: dict[str, int]
  fingerprint: str

  @property
  def num_examples(self) -> int:
    return next(iter(self.streams.values())).num_documents

  @property
  def vocabulary(self) -> Vocabulary:
    return next(iter(self.streams.values())).vocabulary

  @functools.cached_property
  def ends(self) -> dict[str, np.ndarray]:
    """Where each example ends in each stream: int64 [N]."""
    return {name: store.document_ends() for name, store in self.streams.items()}

  @functools.cached_property
  def lengths(self) -> dict[str, np.ndarray]:
    """Tokens of each example in each stream: int64 [N]."""
    return {name: np.diff(ends, prepend=0) for name, ends in self.ends.items()}

  def read(
    self, stream: str, example_n: np.ndarray, length_n: np.ndarray, skip_n: np.ndarray | int = 0
  ) -> tuple[np.ndarray, np.ndarray]:
    """The first `length_n` tokens of some examples, after skipping `skip_n`.

    Returns:
      (int32 [n, L], bool [n, L]): tokens, and which of them belong to the example; L is the longest of `length_n`.
    """
    store = self.streams[stream]
    L = max(int(length_n.max(initial=0)), 1)
    start_n = self.ends[stream][example_n] - self.lengths[stream][example_n] + skip_n
    shift_n = np.maximum(start_n + L - store.num_tokens, 0)  # near the end, a window begins before its example
    if not shift_n.any():
      tokens_nL = store.windows(start_n, L)
    elif L <= store.num_tokens:
      tokens_nL = store.windows(start_n - shift_n, L)
      places_nL = np.minimum(np.arange(L) + shift_n[:, None], L - 1)
      tokens_nL = np.take_along_axis(tokens_nL, places_nL, axis=1)
    else:
      raise ValueError(f"{L} tokens of a stream of {store.num_tokens}")
    return tokens_nL, np.arange(L) < length_n[:, None]


def open_store(
  source: str,
  split: str,
  *,
  task: str,
  fields: tuple[str, ...],
  facts: dict[str, Any],
  vocabulary: Vocabulary,
  streams: dict[str, bool],
  examples: Callable[[Iterator[tuple[str, Record]]], Iterator[Example | Skip]],
  cache: str,
  data_dir: str | None = None,
  verify: Verify = "auto",
) -> ExampleStore:
  """Opens the examples of a task, preparing them first if necessary.

  Args:
    source, split, data_dir: where the records come from, see `data/sources/__init__.py`; of `validation[:200]`, the
      first 200.
    task: its name and version.
    fields: the fields of the records that are used.
    facts: what else the examples depend on besides the vocabulary; JSON-serialisable.
    vocabulary: of the ids.
    streams: the names of the token streams, and whether their examples end with EOS.
    examples: turns (where, record) pairs into examples, each by itself; a `Skip` is counted. Called only for
      preparation, and in other processes.
    cache: the local directory of all prepared examples.
    verify: what opening checks, see `TokenStore.open`.

  Raises:
    UserError: an unusable source, an unwritable cache, no usable record, or a file changed since preparation.
  """
  opened = open_source(source, fields=tuple(dict.fromkeys(fields)), data_dir=data_dir)
  whole, most = parted(split)
  check_split(opened, whole)
  facts = {"task": task, "rows": opened.split_facts(whole), "split": split, **facts}
  content = {"format": FORMAT, "facts": facts, "vocabulary": vocabulary.fingerprint, "streams": streams}
  key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
  if opened.name == builtin.NAME:
    cache = builtin.prepared() + "_examples"
  path = pathlib.Path(cache) / f"{opened.name}-{whole}{most or ''}-{key[:16]}"
  if not (path / FILE).exists():
    with lock(path):
      if not (path / FILE).exists():
        try:
          _prepare(path, opened, split, content, vocabulary, examples)
        except OSError as error:
          raise UserError(
            f"config.task.cache: {path} cannot be written ({one_line(error)}); free some space or choose "
            "another directory"
          ) from error
  return _open(path, opened.name, verify)


@contextlib.contextmanager
def lock(path: pathlib.Path):
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_CREAT | os.O_RDWR)
  except OSError as error:
    raise UserError(
      f"config.task.cache: {path.parent} cannot be written ({one_line(error)}); choose another directory"
    ) from error
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
  finally:
    os.close(descriptor)


def _prepare(path: pathlib.Path, source: Source, split: str, content: dict, vocabulary: Vocabulary, examples) -> None:
  """Makes the pieces and joins them; what fails leaves the pieces, which the next preparation goes on with."""
  progress, work = (path.with_name(f".{path.name}.{kind}") for kind in ("progress", "incomplete"))
  number = pieces.make(first_records(source, split), examples, tuple(content["streams"]), progress, path.name)
  shutil.rmtree(work, ignore_errors=True)  # left by a run that was killed
  try:
    count, skipped = _join(
      work, (pieces.read(progress, one) for one in range(number)), source, split, content, vocabulary
    )
    os.rename(work, path)
  finally:
    shutil.rmtree(work, ignore_errors=True)
  shutil.rmtree(progress, ignore_errors=True)
  print(f"data: {path}: prepared {count:,} examples{reasons(skipped)}", flush=True)


def _join(
  work: pathlib.Path, made: Iterator[Piece], source: Source, split: str, content: dict, vocabulary: Vocabulary
) -> tuple[int, Counter]:
  """Writes the store of some pieces; the number of examples and what was skipped."""
  skipped: Counter[str] = Counter()
  arrays: dict[str, list] = {}
  count = 0
  with contextlib.ExitStack() as stack:
    about = {"name": source.name, "split": split, "vocabulary": vocabulary}
    writers = {
      stream: stack.enter_context(TokenStoreWriter(work / "streams" / stream, append_eos=append_eos, **about))
      for stream, append_eos in content["streams"].items()
    }
    for piece in made:
      skipped.update(piece.skipped)
      count += piece.num_examples
      for stream, writer in writers.items():
        writer.add(piece.tokens[stream], piece.lengths[stream])
      for array, values in piece.arrays.items():
        arrays.setdefault(array, []).append(values)
    if not count:
      raise UserError(
        f"{source.name}, split {split!r}: found 0 examples{reasons(skipped)}, expected at least one: check "
        "the source and the fields of the task"
      )
  record = {**content, "num_examples": count, "skipped": dict(sorted(skipped.items())), "arrays": {}}
  (work / "arrays").mkdir()
  for array, parts in sorted(arrays.items()):
    np.save(work / "arrays" / f"{array}.npy", np.concatenate(parts), allow_pickle=False)
    record["arrays"][array] = _sha256(work / "arrays" / f"{array}.npy")
  record["fingerprints"] = {
    stream: TokenStore.open(work / "streams" / stream, "size").fingerprint for stream in writers
  }
  (work / FILE).write_text(json.dumps(record, indent=1) + "\n")
  return count, skipped


def reasons(skipped: dict[str, int]) -> str:
  return "".join(f", {number:,} records skipped ({reason})" for reason, number in sorted(skipped.items()))


def _sha256(path: pathlib.Path) -> str:
  with open(path, "rb") as stream:
    return hashlib.file_digest(stream, "sha256").hexdigest()


def _open(path: pathlib.Path, name: str, verify: Verify) -> ExampleStore:
  remedy = "delete the directory and it is made again"
  try:
    record = json.loads((path / FILE).read_bytes())
    if record["format"] != FORMAT:
      raise ValueError(f"format {record['format']!r}")
    streams, arrays = dict(record["fingerprints"]), dict(record["arrays"])
    if odd := [name for name in (*streams, *arrays) if not file_names.is_name(name)]:
      raise ValueError(f"{file_names.shown(odd[0])} is no name of a file")
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise UserError(f"{path / FILE}: found damaged contents ({one_line(error)}); {remedy}") from error
  stores = {}
  for stream, fingerprint in streams.items():
    try:
      stores[stream] = TokenStore.open(path / "streams" / stream, verify)
    except UserError as error:
      raise UserError(f"{error}; or delete {path} and it is made again") from error
    if stores[stream].fingerprint != fingerprint:
      raise UserError(
        f"{path / 'streams' / stream}: fingerprint: found {stores[stream].fingerprint[:12]}, expected "
        f"{fingerprint[:12]} from {FILE}; {remedy}"
      )
  loaded = {}
  for array, expected in arrays.items():
    file = path / "arrays" / f"{array}.npy"
    if not file.exists() or (found := _sha256(file)) != expected:
      found = found[:12] if file.exists() else "no such file"
      raise UserError(
        f"{file}: found SHA-256 {found}, expected {expected[:12]}: the file is missing or was changed; {remedy}"
      )
    loaded[array] = np.load(file, mmap_mode="r", allow_pickle=False)
  content = {"streams": streams, "arrays": arrays}
  fingerprint = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
  store = ExampleStore(str(path), name, stores, loaded, record["skipped"], fingerprint)
  tokens = ", ".join(f"{s.num_tokens:,} tokens of {name}" for name, s in stores.items())
  print(
    f"data: {path}: {store.num_examples:,} examples, {tokens}{reasons(record['skipped'])}; "
    f"{next(iter(stores.values())).verification}",
    flush=True,
  )
  return store
