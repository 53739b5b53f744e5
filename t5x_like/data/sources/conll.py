"""`conll:PATTERN`: a token a line in columns, blank lines between sentences, as the files of CoNLL-2003.

A document is what stands between `-DOCSTART-` lines, its sentences a line each; in a file without them each sentence is
a document. Tokens are joined by spaces. Columns are cut at tabs, or in a line without tabs at spaces; `text_field` is
the number of the column with the word, 0 by default. Lines that begin with `# ` and have one column are comments.
"""

import functools
from collections.abc import Iterator

from t5x_like.data.sources import Skip
from t5x_like.data.sources._files import FileSource, lines
from t5x_like.errors import UserError

_DOCUMENT = "-DOCSTART-"


def open_form(rest: str, *, data_dir: str | None, text_field: str) -> FileSource:
  column = "0" if text_field == "text" else text_field
  if not column.isdecimal():
    raise UserError(f"source conll:{rest}: found text field {text_field!r}, expected a column number, counted from 0")
  return FileSource("conll", rest, functools.partial(_documents, column=int(column)), text_field=column)


def sentences(path: str, column: int = 0) -> Iterator[list[list[str]] | None]:
  """Yields sentences as rows of columns, and None before each document that is marked as one.

  Raises:
    UserError: a row without the column, or with another number of columns than the first of its sentence.
  """
  rows: list[list[str]] = []
  for number, line in lines(path):
    if isinstance(line, Skip):
      raise UserError(f"{path}:{number}: found a {line.reason}, expected one token a line")
    row = line.split("\t") if "\t" in line else line.split()
    if line.startswith(_DOCUMENT) or not row or not line.strip():
      if rows:
        yield rows
      rows = []
      if line.startswith(_DOCUMENT):
        yield None
      continue
    if line.startswith("# ") and "\t" not in line and not rows:
      continue
    expected = max(column + 1, len(rows[0]) if rows else 0)
    if len(row) < expected or (rows and len(row) != expected):
      raise UserError(f"{path}:{number}: found {len(row)} columns, expected {expected}")
    rows.append(row)
  if rows:
    yield rows


def _documents(path: str, column: int) -> Iterator[str]:
  held, marked = [], False
  for rows in sentences(path, column):
    if rows is None:
      marked = True
      if held:
        yield "\n".join(held)
      held = []
    else:
      held.append(" ".join(row[column] for row in rows))
      if not marked:
        yield held.pop()
  if held:
    yield "\n".join(held)
