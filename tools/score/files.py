"""Files of references and predictions as text, values and tables: plain or gzip, JSON, JSONL, TSV, CSV or lines.

Gzip is recognised by its first bytes; JSON and JSONL by name or content; TSV and CSV by name, or if the caller expects
a table. Every error names the file and, if possible, the line.
"""

import csv
import dataclasses
import gzip
import io
import json
import pathlib
import re
import zlib
from typing import Any

from t5x_like.errors import UserError, one_line

_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
_TEXT_SUFFIXES = (".txt", ".tsv", ".csv", ".conll", ".conllu", ".lst")
_JSON_START = re.compile(r'\{\s*["}]|\[\s*[\[{"\]]')


@dataclasses.dataclass(frozen=True)
class File:
  """A file's text, and the last suffix of its name in lower case, `.gz` removed."""

  path: str
  text: str
  suffix: str

  def lines(self) -> list[str]:
    """Lines, split at \\n and \\r\\n but not at other line separators of Unicode."""
    lines = self.text.split("\n")
    if lines[-1] == "":
      lines.pop()
    return [line.removesuffix("\r") for line in lines]

  def values(self) -> tuple[Any, list[tuple[int, Any]] | None] | None:
    """JSON as (value, None); JSONL as (None, (line number, value) of each line); None if the file is neither.

    Raises:
      UserError: the file is JSON by name or beginning, but broken.
    """
    start = self.text.strip()
    first = start.split("\n", 1)[0].strip()
    named = self.suffix in _JSON_SUFFIXES
    if not named and not _JSON_START.match(start):
      return None
    if self.suffix not in (".jsonl", ".ndjson") and (first == start or not _is_object(first)):
      try:
        return self._loads(self.text, 1), None
      except UserError:
        if self.suffix in _TEXT_SUFFIXES:  # a sentence that begins like JSON
          return None
        raise
    return None, [(n, self._loads(line, n)) for n, line in enumerate(self.lines(), 1) if line.strip()]

  def _loads(self, text: str, line: int) -> Any:
    try:
      return json.loads(text, object_pairs_hook=self._unique)
    except json.JSONDecodeError as error:
      where = f"{self.path}, line {line + error.lineno - 1}, column {error.colno}"
      raise UserError(f"{where}: broken JSON: {error.msg}") from error

  def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
      seen = set()
      twice = next(key for key, _ in pairs if key in seen or seen.add(key))
      raise UserError(f"{self.path}: the key {twice!r} stands twice in one JSON object, expected once")
    return value

  def cells(self) -> list[list[str]]:
    """Rows of cells: of a .csv file with quoting, else split at tabs without quoting (GLUE's TSV)."""
    if self.suffix == ".csv":
      return list(csv.reader(io.StringIO(self.text, newline="")))
    return [line.split("\t") for line in self.lines()]


def _is_object(line: str) -> bool:
  try:
    return isinstance(json.loads(line), dict)
  except ValueError:
    return False


def read(path: str) -> File:
  """Reads a UTF-8 text file, plain or gzip.

  Raises:
    UserError: it is missing, a directory, empty, broken gzip, or not UTF-8.
  """
  try:
    data = pathlib.Path(path).read_bytes()
  except OSError as error:
    raise UserError(f"{path}: cannot be read: {error.strerror}") from error
  if data.startswith(_GZIP):
    data = _unzip(path, data)
  try:
    text = data.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    line = data.count(b"\n", 0, error.start) + 1
    raise UserError(f"{path}, line {line}: not UTF-8 text ({error.reason})") from error
  if not text.strip():
    raise UserError(f"{path}: empty, expected at least one example")
  return File(path, text, pathlib.Path(path.lower().removesuffix(".gz")).suffix)


def _unzip(path: str, data: bytes) -> bytes:
  """The content of a gzip file of one or several members; an error gives the line at which it breaks."""
  found = io.BytesIO()
  try:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
      while chunk := file.read1(_CHUNK):
        found.write(chunk)
  except (OSError, EOFError, zlib.error) as error:
    line = found.getvalue().count(b"\n") + 1
    raise UserError(f"{path}, line {line}: broken gzip: {one_line(error)}") from error
  return found.getvalue()


def table(
  file: File, headerless: tuple[str, ...] = (), header: tuple[str, ...] = (), under: str = ""
) -> list[tuple[int, dict]]:
  """(line number, row by column) of JSONL, of a JSON array of objects, or of TSV or CSV.

  Args:
    headerless: the columns of a TSV or CSV file whose first row has none of the names in `header`.
    header: names that mark a first row as a header; if empty, it is one unless `headerless` is given.
    under: the key of a JSON object that may hold the rows, such as TriviaQA's `Data`.
  Raises:
    UserError: a row is not an object, or is shorter than the header.
  """
  values = file.values()
  if values is not None:
    whole, rows = values
    if rows is None:
      whole = whole.get(under, whole) if isinstance(whole, dict) else whole
      rows = list(enumerate(whole if isinstance(whole, list) else [whole], 1))
    elif len(rows) == 1 and isinstance(rows[0][1], dict) and isinstance(rows[0][1].get(under), list):
      rows = list(enumerate(rows[0][1][under], 1))
    for line, row in rows:
      if not isinstance(row, dict):
        raise UserError(f"{file.path}, line {line}: found {str(row)[:40]!r}, expected a JSON object with named values")
    return rows
  cells = file.cells()
  columns = list(headerless)
  first = 0
  if not headerless or set(header) & {cell.strip() for cell in cells[0]}:
    columns, first = [cell.strip() for cell in cells[0]], 1
  rows = []
  for line, row in enumerate(cells[first:], first + 1):
    if not any(row):
      continue
    if len(row) < len(columns):
      raise UserError(f"{file.path}, line {line}: found {len(row)} columns, expected {len(columns)}: {columns}")
    rows.append((line, dict(zip(columns, row))))
  return rows


def first_of(row: dict, names: tuple[str, ...]) -> Any:
  """The row's value of the first of the names it has, or None."""
  return next((row[name] for name in names if row.get(name) is not None), None)


def strings(values: list[Any]) -> list[str]:
  """The values, if all are strings; else a TypeError for the first that is not."""
  for value in values:
    if not isinstance(value, str):
      raise TypeError(f"found {str(value)[:40]!r}, expected a text")
  return values
