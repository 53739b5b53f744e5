"""Stores that tasks prepare themselves, once, from the records of a source.

    <cache>/<name>-<split>-<key>/               a store, see `store/reader.py`
    <cache>/.<name>-<split>-<key>.progress/     finished parts of a preparation
    <cache>/.<name>-<split>-<key>.lock          held by the preparing process

A task prepares its store when it first needs it, under a key of all that it depends on (the source's files and sizes,
the modification times of local ones, the arguments of the task), and every later run opens it. A killed preparation
continues from its finished parts. Other processes wait during preparation. The manifest counts unusable records by
reason.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t5x_like.corpora.sources import Record, Skip, Source, check_split, first_records, open_source, parted
from t5x_like.errors import DamageError, UserError, one_line
from t5x_like.files.locks import Lock
from t5x_like.store import manifest as manifests
from t5x_like.store.reader import Store, Verify


@dataclasses.dataclass(frozen=True)
class Request:
  """A store as a task asks for it.

  Attributes:
    source: the open source.
    split: the split; `validation[:200]` is its first 200 records.
    cache: the local directory of all prepared stores.
    facts: the facts of the manifest.
    arguments: all else that determines the items; JSON.
  """

  source: Source
  split: str
  cache: str
  facts: dict[str, Any]
  arguments: dict[str, Any]

  @functools.cached_property
  def content(self) -> dict[str, Any]:
    """The request in JSON, which the manifest repeats as `source`."""
    whole, _ = parted(self.split)
    check_split(self.source, whole)
    rows = self.source.split_facts(whole)
    content = {"format": manifests.FORMAT, "rows": rows, "split": self.split, "arguments": self.arguments}
    return json.loads(json.dumps(content))

  @property
  def path(self) -> pathlib.Path:
    """The directory of the store."""
    whole, most = parted(self.split)
    key = hashlib.sha256(json.dumps([self.content, self.facts], sort_keys=True).encode()).hexdigest()
    return pathlib.Path(self.cache) / f"{self.source.name}-{whole}{most or ''}-{key[:16]}"

  @property
  def progress(self) -> pathlib.Path:
    """The directory of finished parts."""
    return self.path.with_name(f".{self.path.name}.progress")

  @property
  def about(self) -> dict[str, Any]:
    """The arguments that a writer of the store takes from the request."""
    whole, _ = parted(self.split)
    return {"name": self.source.name, "split": whole, "facts": self.facts, "source": self.content}

  def records(self) -> Iterator[tuple[str, Record | Skip]]:
    """Read the records, with their places."""
    return first_records(self.source, self.split)


def source(name: str, fields: tuple[str, ...], data_dir: str | None) -> Source:
  """Open a source of records with these fields, given in any order and number."""
  return open_source(name, fields=tuple(dict.fromkeys(fields)), data_dir=data_dir)


def opened(request: Request, make: Callable[[Request], None], verify: Verify) -> Store:
  """Open a store, after preparing it if necessary.

  Args:
    request: the store to open.
    make: prepares it.
    verify: the checks on opening, see `Store.open`.

  Raises:
    UserError: an unusable source, an unwritable cache, no usable record, or a file changed since preparation.
    DamageError: a file is truncated or corrupt.
  """
  path = request.path
  if not (path / manifests.FILE).exists():
    with _lock(path):
      if not (path / manifests.FILE).exists():
        try:
          make(request)
        except OSError as error:
          raise UserError(
            f"config.task.cache: {path} cannot be written ({one_line(error)}); free some space or choose "
            "another directory"
          ) from error
  remedy = f"delete {path} and it is made again"
  try:
    store = Store.open(path, verify)
  except (UserError, DamageError) as error:
    raise type(error)(f"{error}; or {remedy}") from error
  for key, expected in (("source", request.content), ("facts", request.facts)):
    if json.dumps(getattr(store.manifest, key), sort_keys=True) != json.dumps(expected, sort_keys=True):
      raise UserError(f"{path / manifests.FILE}: {key}: not as the task asks for it; {remedy}")
  return store


def skips(skipped: Mapping[str, int]) -> str:
  """Return the words that report skipped records, to follow the number of used ones."""
  return "".join(f", {number:,} records skipped ({reason})" for reason, number in sorted(skipped.items()))


@contextlib.contextmanager
def _lock(path: pathlib.Path) -> Iterator[None]:
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = Lock(path.with_name(f".{path.name}.lock"), wait=True)
  except OSError as error:
    raise UserError(
      f"config.task.cache: {path.parent} cannot be written ({one_line(error)}); choose another directory"
    ) from error
  with mine:
    yield
