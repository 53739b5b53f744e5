"""Examples of token streams and labels, prepared once from the records of a source; supervised tasks read them.

    <cache>/<name>-<split>-<key>/examples.json      the manifest: source, counts, checksums, fingerprint
    <cache>/<name>-<split>-<key>/streams/inputs/    a token store (see `store/`); example i is document i
    <cache>/<name>-<split>-<key>/streams/targets/
    <cache>/<name>-<split>-<key>/arrays/label.npy   numbers, one per example, or per token of a stream
    <cache>/<name>-<split>-<key>/plans/             packing plans, see `packing.cached`

A task prepares its examples when it first needs them, under a key of all they depend on (the source's files and sizes,
the modification times of local ones, templates, vocabulary), and reuses them from then on; training never tokenises.
Several processes make them in pieces (`pieces.py`), and a killed preparation continues from the finished pieces. Other
processes wait during preparation. Unusable records are counted by reason in `examples.json` and reported.
"""

import contextlib
import dataclasses
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

from t5x_like.corpora import builtin
from t5x_like.corpora.sources import Record, Skip, Source, check_split, first_records, open_source, parted
from t5x_like.data.supervised import pieces
from t5x_like.data.supervised.pieces import Example, Piece
from t5x_like.errors import DamageError, UserError, one_line
from t5x_like.files import file_names
from t5x_like.files.locks import Lock
from t5x_like.store import records
from t5x_like.store.reader import TokenStore, Verify
from t5x_like.store.writer import TokenStoreWriter
from t5x_like.vocabularies import Vocabulary

FORMAT = "t5x_like.examples.v1"
FILE = "examples.json"


@dataclasses.dataclass(frozen=True)
class ExampleStore:
  """Prepared examples, opened by `open_store`.

  Attributes:
    path: the directory.
    name: the name of the corpus.
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
    """The end of each example in each stream: int64 [N]."""
    return {name: store.document_ends() for name, store in self.streams.items()}

  @functools.cached_property
  def lengths(self) -> dict[str, np.ndarray]:
    """Tokens of each example in each stream: int64 [N]."""
    return {name: np.diff(ends, prepend=0) for name, ends in self.ends.items()}

  def read(
    self, stream: str, example_n: np.ndarray, length_n: np.ndarray, skip_n: np.ndarray | int = 0
  ) -> tuple[np.ndarray, np.ndarray]:
    """Read the first `length_n` tokens of some examples, after skipping `skip_n`.

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
  """Open the examples of a task, preparing them first if necessary.

  Args:
    source, split, data_dir: the source of the records, see `corpora/sources/__init__.py`; `validation[:200]` is
      the first 200 of them.
    task: the name and version of the task.
    fields: the record fields in use.
    facts: all else that determines the examples besides the vocabulary; JSON-serialisable.
    vocabulary: the vocabulary of the ids.
    streams: the names of the token streams, and whether their examples end with EOS.
    examples: turns (where, record) pairs into examples, each by itself; a `Skip` is counted. Called only for
      preparation, and in other processes.
    cache: the local directory of all prepared examples.
    verify: the checks on opening, see `TokenStore.open`.

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
    cache = builtin.directory() + "_examples"
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
  return _open(path, opened.name, content, verify)


@contextlib.contextmanager
def lock(path: pathlib.Path):
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = Lock(path.with_name(f".{path.name}.lock"), wait=True)
  except OSError as error:
    raise UserError(
      f"config.task.cache: {path.parent} cannot be written ({one_line(error)}); choose another directory"
    ) from error
  with mine:
    yield


def _prepare(path: pathlib.Path, source: Source, split: str, content: dict, vocabulary: Vocabulary, examples) -> None:
  """Make the pieces and join them; a failure leaves the pieces, and the next preparation continues from them."""
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
  """Write the store of some pieces; return the number of examples and the skipped records by reason."""
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


@dataclasses.dataclass(frozen=True)
class _Record:
  """The additions of preparation to a record; see `records.read`."""

  num_examples: int
  skipped: dict[str, int]
  arrays: dict[str, str]  # SHA-256 of their files
  fingerprints: dict[str, str]  # of the streams


def _open(path: pathlib.Path, name: str, content: dict[str, Any], verify: Verify) -> ExampleStore:
  remedy = f"delete {path} and it is made again"
  record = records.read(_Record, str(path), FILE, content, remedy)
  if record.fingerprints.keys() != content["streams"].keys():
    raise UserError(
      f"{path / FILE}: fingerprints: found {sorted(record.fingerprints)}, expected those of the task's "
      f"streams, {sorted(content['streams'])}: {remedy}"
    )
  stores = {}
  for stream, fingerprint in record.fingerprints.items():
    where = path / "streams" / stream
    try:
      stores[stream] = TokenStore.open(where, verify)
    except (UserError, DamageError) as error:
      raise type(error)(f"{error}; or {remedy}") from error
    found = stores[stream]
    for key, expected in (("fingerprint", fingerprint), ("num_documents", record.num_examples)):
      if getattr(found, key) != expected:
        raise UserError(
          f"{where}: {key}: found {str(getattr(found, key))[:12]}, expected {str(expected)[:12]} from {FILE}; {remedy}"
        )
  token_counts = {store.num_tokens for store in stores.values()}
  loaded = {}
  for array, expected in record.arrays.items():
    file_names.check(f"{path / FILE}: arrays", array, remedy)
    loaded[array] = found = records.array(str(path), f"arrays/{array}.npy", expected, remedy)
    # A task may keep several consecutive numbers per example, such as one per option.
    if not found.ndim or (
      len(found) not in token_counts and (not len(found) or len(found) % max(record.num_examples, 1))
    ):
      raise UserError(
        f"{path}/arrays/{array}.npy: found the shape {found.shape}, expected one entry or several per example, of "
        f"{record.num_examples}, or one per token, of {sorted(token_counts)}; {remedy}"
      )
  prints = {"streams": record.fingerprints, "arrays": record.arrays}
  fingerprint = hashlib.sha256(json.dumps(prints, sort_keys=True).encode()).hexdigest()
  store = ExampleStore(str(path), name, stores, loaded, record.skipped, fingerprint)
  tokens = ", ".join(f"{s.num_tokens:,} tokens of {name}" for name, s in stores.items())
  print(
    f"data: {path}: {store.num_examples:,} examples, {tokens}{reasons(record.skipped)}; "
    f"{next(iter(stores.values())).verification}",
    flush=True,
  )
  return store
