"""Token stores prepared from a source when a task first needs them: `task.source` of a recipe.

    <cache>/<corpus>-<request>-<files>/train/         a token store
    <cache>/<corpus>-<request>-<files>/validation/
    <cache>/.<request>.lock                           held by the preparing process (.lease at an address)

`request` is a hash of the request: the source as spelled, the other fields of `Corpus`, whether
documents end with EOS, the vocabulary's fingerprint and the edition of preparation. `files` is a
hash of the source's contents at that time: names, sizes and, for local files, modification times;
for a TensorFlow dataset its version, sizes and metadata. Files are not read to compare them. The
same command therefore reuses its store, and a different command never gets a wrong one. Changed
files are prepared again in a directory beside the old one, which other runs may still read.

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

_EDITION = 1  # of the result for the same request
# source bytes per process beyond the first, because a process takes seconds to start
_WORKER_BYTES = 2**23
_PULSE_SECONDS = 10.0
_SAY_SECONDS = 60.0
_SILENCE_SECONDS = 600.0  # without a pulse of the preparing process


def prepare_split(corpus: Corpus, split: str, append_eos: bool) -> str:
  """Return the directory of a corpus's token store for a split, and prepare the store if it does
  not exist.

  Args:
    corpus: the corpus to prepare; its cache is set.
    split: `train`, `validation` or another split of the source.
    append_eos: whether documents end with EOS.

  Raises:
    UserError: the source, vocabulary or cache cannot be used, the split or a cleaning step does not
      exist, or another process prepares the store and shows no sign of life.
  """
  steps = cleaning.parse_steps("config.task.clean", corpus.clean)
  if not 0 <= corpus.validation_fraction < 1:
    raise UserError(
      f"config.task.validation_fraction: found {corpus.validation_fraction}, expected 0 to below 1"
    )
  vocabulary = vocabularies.load(corpus.vocabulary)
  root = str(as_path(corpus.cache))
  asked = {
    "source": corpus.source,
    "text_field": corpus.text_field,
    "data_dir": corpus.data_dir,
    "clean": [step for step in corpus.clean.split(",") if step],
    "validation_fraction": corpus.validation_fraction,
    "append_eos": append_eos,
    "vocabulary": vocabulary.fingerprint,
    "edition": [manifests.FORMAT, _EDITION, *(step.edition for step in steps if step.edition)],
  }
  request = checked_json.digest(asked)[:12]

  def located() -> tuple[Documents, str]:
    documents = _opened(corpus, root, request)
    source = documents.source
    names = held_out.split_names(documents.source, corpus.validation_fraction)
    if split not in names:
      raise UserError(
        f"source {corpus.source}: found no split {split!r}, expected one of {', '.join(names)}"
        f"{did_you_mean(split, names)}"
      )
    files = checked_json.digest(
      [documents.facts(), {name: source.modification_times(name) for name in source.splits}]
    )[:12]
    return documents, f"{root}/{source.name}-{request}-{files}"

  def is_there(home: str) -> bool:
    return (as_path(f"{home}/{split}") / manifests.FILE).exists()

  with _turn(root, request, corpus.source, lambda: is_there(located()[-1])):
    documents, home = located()
    source = documents.source
    path = f"{home}/{split}"
    if is_there(home):
      return path
    for old in _stores(root, request):
      if old != home:
        print(
          f"data: {corpus.source}: its files have changed since {old} was made (other names, "
          f"sizes or times): preparing them anew; delete {old} when no run needs it",
          flush=True,
        )
    print(f"data: {path}: preparing split {split} of {corpus.source}", flush=True)
    part = held_out.plan_parts(documents, corpus.validation_fraction)[split]
    tokens = TokenStoreKind.of(
      documents, part, corpus.vocabulary, append_eos=append_eos, steps=steps
    )
    size = sum(map(tokens.part_size, range(tokens.num_parts)))
    engine = processes.Engine(max(1, min(os.cpu_count() or 1, size // _WORKER_BYTES)))
    record: dict[str, Any] = {"documents": summarize_facts(documents.facts()), **asked}
    preparing.prepare([Job(tokens, path, source.name, split, record)], engine)
    if told := lost_characters.describe_lost_characters(vocabulary, documents.usable(part.split)):
      print(f"data: vocabulary {corpus.vocabulary}: {told}", flush=True)
  return path


def _opened(corpus: Corpus, root: str, request: str) -> Documents:
  try:
    return Documents(corpus.source, data_dir=corpus.data_dir, text_field=corpus.text_field)
  except UserError as error:
    if old := _stores(root, request):
      raise UserError(
        f"{error}; what was made of it before is still there: --config.task.store={old[-1]}"
      ) from error
    raise


def _stores(root: str, request: str) -> list[str]:
  """List the directories made for a request from any files, the newest last."""
  with contextlib.suppress(OSError, UserError, TransientError):
    found = [path for path in as_path(root).iterdir() if f"-{request}-" in path.name]
    return [os.fspath(path) for path in sorted(found, key=lambda path: path.changed() or 0)]
  return []


class _Waiting:
  """A notice, repeated now and then, that another process is preparing a source.

  Args:
    lock: the file that shows by its time of modification that the process lives.
  """

  def __init__(self, source: str, lock: AnyPath):
    self.began = self.said = self._heard = time.monotonic()
    self._source = source
    self._lock = lock
    self._pulse = None

  def say(self) -> None:
    now = time.monotonic()
    if (found := self._lock.changed()) is None or found != self._pulse:
      self._pulse = found
      self._heard = now
    if now - self._heard > _SILENCE_SECONDS:
      raise UserError(
        f"{self._lock}: held by another process, which has shown no sign of life for "
        f"{_SILENCE_SECONDS / 60:.0f} "
        "minutes: end it and run this command again"
      )
    if self.said == self.began or now - self.said > _SAY_SECONDS:
      self.said = now
      print(
        f"data: {self._source}: another process is preparing it; waiting ({now - self.began:.0f} "
        "s so far)",
        flush=True,
      )


@contextlib.contextmanager
def _turn(root: str, request: str, source: str, is_there: Callable[[], bool]) -> Iterator[None]:
  """Wait for the lock of a request and hold it; at an address, a lease, unless the awaited store
  already exists.

  The holder gives signs of life every few seconds. A process that ends, for whatever reason, loses
  its lock.
  """
  name = f".{request}.lock"
  there = as_path(root)
  waiting = _Waiting(source, there / name)
  with contextlib.ExitStack() as mine:
    while isinstance(there, LocalPath) or not is_there():
      try:
        held = exclusive.hold_directory(
          there, name, exclusive.WRITING, f".{request}.lease", _PULSE_SECONDS
        )
        mine.enter_context(contextlib.closing(held))
        break
      except DirectoryInUse:
        waiting.say()
        time.sleep(0.5)
      except OSError as error:
        raise UserError(
          f"{root}: cannot be written ({one_line(error)}): set T5X_LIKE_CACHE to another "
          "directory for prepared data"
        ) from error
    yield
