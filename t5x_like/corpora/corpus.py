"""Prepare token stores of a recipe's `task.source` when a task first needs them.

    <cache>/<corpus>-<request>-<files>/train/         a token store
    <cache>/<corpus>-<request>-<files>/validation/
    <cache>/.<request>.lock                           held while preparing (.lease at a URL)

`request` is a hash of the request: the source as spelled, the other fields of `Corpus`, whether
documents end with EOS, the vocabulary's fingerprint and the edition of preparation. `files` is a
hash of the source's contents at that time: names, sizes and, for local files, modification times;
for a TensorFlow dataset its version, sizes and metadata. Files are not read to compare them. The
same command therefore reuses its store, and a different command never gets a wrong one. Changed
files are prepared again in another directory, as other runs may still read the old one.

Opening a split for the first time prepares it as `tools.prepare_data` does: in parts, resuming an
interrupted preparation. Processes and jobs that need the same split wait for the process that
prepares it. When that process ends, so does its lock; a lease expires a minute later.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from t5x_like import vocabularies
from t5x_like.config import Corpus
from t5x_like.corpora import cleaning, held_out, lost_characters, preparing
from t5x_like.corpora.documents import Documents
from t5x_like.corpora.engines import processes
from t5x_like.corpora.job import Job
from t5x_like.corpora.tokens import TokenStoreKind, summarize_facts
from t5x_like.errors import TransientError, UserError, did_you_mean, one_line
from t5x_like.files import checked_json, exclusive
from t5x_like.files.locks import DirectoryInUse
from t5x_like.files.paths import AnyPath, LocalPath, as_path
from t5x_like.store import manifest as manifests

_EDITION = 1  # the version of the result for the same request
# source bytes per process beyond the first, because a process takes seconds to start
_WORKER_BYTES = 2**23
_BEAT_SECONDS = 10.0  # the time between two changes of the lock by its holder
_NOTICE_SECONDS = 60.0
_SILENCE_SECONDS = 600.0  # a process gives up waiting for a lock that has not changed for so long


def prepare_split(corpus: Corpus, split: str, append_eos: bool) -> str:
  """Return the directory of a corpus's token store for a split; prepare the store if it is missing.

  Args:
    corpus: corpus to prepare, with a cache directory.
    split: `train`, `validation` or another split of the source.
    append_eos: end documents with EOS.

  Raises:
    UserError: the source, vocabulary or cache cannot be used, the split or a cleaning step does not
      exist, or the process that prepares the store has not changed its lock for too long.
  """
  request = _Request(corpus, split, append_eos)
  with _wait_for_turn(request.root, request.digest, corpus.source, request.is_prepared):
    documents, directory = request.locate()
    path = f"{directory}/{split}"
    if not request.is_prepared_in(directory):
      request.report_outdated_stores(directory)
      print(f"data: {path}: preparing split {split} of {corpus.source}", flush=True)
      request.prepare(documents, path)
  return path


class _Request:
  """A request of a task for a split of a corpus.

  Args:
    corpus, split, append_eos: arguments of `prepare_split`.

  Attributes:
    root: cache directory.
    digest: hash of the request, which is a part of the directory's name.
  """

  def __init__(self, corpus: Corpus, split: str, append_eos: bool):
    self._corpus = corpus
    self._split = split
    self._append_eos = append_eos
    self._steps = cleaning.parse_steps("config.task.clean", corpus.clean)
    if not 0 <= corpus.validation_fraction < 1:
      raise UserError(
        f"config.task.validation_fraction: found {corpus.validation_fraction}, expected 0 to below "
        "1"
      )
    self._vocabulary = vocabularies.load(corpus.vocabulary)
    self.root = str(as_path(corpus.cache))
    editions = [step.edition for step in self._steps if step.edition]
    self._facts = {
      "source": corpus.source,
      "text_field": corpus.text_field,
      "data_dir": corpus.data_dir,
      "clean": [step for step in corpus.clean.split(",") if step],
      "validation_fraction": corpus.validation_fraction,
      "append_eos": append_eos,
      "vocabulary": self._vocabulary.fingerprint,
      "edition": [manifests.FORMAT, _EDITION, *editions],
    }
    self.digest = checked_json.digest(self._facts)[:12]

  def locate(self) -> tuple[Documents, str]:
    """Open the documents; return them and the directory of the stores that their files give."""
    corpus = self._corpus
    documents = _open_documents(corpus, self.root, self.digest)
    source = documents.source
    names = held_out.split_names(source, corpus.validation_fraction)
    if self._split not in names:
      raise UserError(
        f"source {corpus.source}: found no split {self._split!r}, expected one of "
        f"{', '.join(names)}{did_you_mean(self._split, names)}"
      )
    times = {name: source.modification_times(name) for name in source.splits}
    files_digest = checked_json.digest([documents.facts(), times])[:12]
    return documents, f"{self.root}/{source.name}-{self.digest}-{files_digest}"

  def is_prepared(self) -> bool:
    """Return whether the store of the source's present files exists."""
    _, directory = self.locate()
    return self.is_prepared_in(directory)

  def is_prepared_in(self, directory: str) -> bool:
    return (as_path(f"{directory}/{self._split}") / manifests.FILE).exists()

  def report_outdated_stores(self, directory: str) -> None:
    """Print a line for each store that the request's source had with other files."""
    for outdated in _list_stores(self.root, self.digest):
      if outdated != directory:
        print(
          f"data: {self._corpus.source}: its files have changed since {outdated} was made (other "
          f"names, sizes or times): preparing them anew; delete {outdated} when no run needs it",
          flush=True,
        )

  def prepare(self, documents: Documents, path: str) -> None:
    """Prepare the store at a path, and report characters that the vocabulary loses."""
    corpus = self._corpus
    source = documents.source
    part = held_out.plan_parts(documents, corpus.validation_fraction)[self._split]
    kind = TokenStoreKind.of(
      documents, part, corpus.vocabulary, append_eos=self._append_eos, steps=self._steps
    )
    size = sum(map(kind.part_size, range(kind.num_parts)))
    workers = max(1, min(os.cpu_count() or 1, size // _WORKER_BYTES))
    record: dict[str, Any] = {"documents": summarize_facts(documents.facts()), **self._facts}
    job = Job(kind, path, source.name, self._split, record)
    preparing.prepare([job], processes.Engine(workers))
    loss = lost_characters.describe_lost_characters(self._vocabulary, documents.usable(part.split))
    if loss:
      print(f"data: vocabulary {corpus.vocabulary}: {loss}", flush=True)


def _open_documents(corpus: Corpus, root: str, request: str) -> Documents:
  """Open a corpus's documents; an error names a store that was made from them earlier."""
  try:
    return Documents(corpus.source, data_dir=corpus.data_dir, text_field=corpus.text_field)
  except UserError as error:
    stores = _list_stores(root, request)
    if stores:
      raise UserError(
        f"{error}; a store made from it earlier still exists: --config.task.store={stores[-1]}"
      ) from error
    raise


def _list_stores(root: str, request: str) -> list[str]:
  """List the directories made for a request from any files, the newest last."""
  with contextlib.suppress(OSError, UserError, TransientError):
    paths = [path for path in as_path(root).iterdir() if f"-{request}-" in path.name]
    paths.sort(key=lambda path: path.modified_time() or 0)
    return [os.fspath(path) for path in paths]
  return []


class _WaitingNotice:
  """A notice, repeated at intervals, that another process is preparing a source.

  Args:
    source: the source that the other process prepares.
    lock: the lock file, whose modification time the process changes at intervals.
  """

  def __init__(self, source: str, lock: AnyPath):
    now = time.monotonic()
    self._start_time = now
    self._last_notice: float | None = None
    self._last_beat = now
    self._source = source
    self._lock = lock
    self._lock_time: int | None = None

  def update(self) -> None:
    """Print the notice if it is due; raise UserError if the lock has not changed for too long."""
    now = time.monotonic()
    lock_time = self._lock.modified_time()
    if lock_time is None or lock_time != self._lock_time:
      self._lock_time = lock_time
      self._last_beat = now
    if now - self._last_beat > _SILENCE_SECONDS:
      raise UserError(
        f"{self._lock}: held by another process, which has not changed it for "
        f"{_SILENCE_SECONDS / 60:.0f} minutes: end it and run this command again"
      )
    if self._last_notice is None or now - self._last_notice > _NOTICE_SECONDS:
      self._last_notice = now
      print(
        f"data: {self._source}: another process is preparing it; waiting "
        f"({now - self._start_time:.0f} s so far)",
        flush=True,
      )


@contextlib.contextmanager
def _wait_for_turn(
  root: str, request: str, source: str, is_prepared: Callable[[], bool]
) -> Iterator[None]:
  """Wait for the lock of a request and hold it; at a URL, a lease, unless the store exists.

  The holder of a lease renews it every few seconds. A process that ends loses its lock.
  """
  name = f".{request}.lock"
  directory = as_path(root)
  notice = _WaitingNotice(source, directory / name)
  with contextlib.ExitStack() as stack:
    while isinstance(directory, LocalPath) or not is_prepared():
      try:
        lock = exclusive.hold_directory(
          directory, name, exclusive.WRITING, f".{request}.lease", _BEAT_SECONDS
        )
        stack.enter_context(contextlib.closing(lock))
        break
      except DirectoryInUse:
        notice.update()
        time.sleep(0.5)
      except OSError as error:
        raise UserError(
          f"{root}: cannot be written ({one_line(error)}): set T5X_LIKE_CACHE to another "
          "directory for prepared data"
        ) from error
    yield
