"""`conll:PATTERN`: one token per line in columns, blank lines between sentences, as in CoNLL-2003.

A record is a sentence: `tokens`, the words of the first column, and each column as a list under its
number. `-DOCSTART-` lines separate documents, whose sentences become one line each; in a file
without these lines, each sentence is a document. The text field is the number of the column with
the word, 0 by default; words are joined by spaces. Columns are separated by tabs or, in a line
without tabs, by spaces. A line that begins with `# ` where a sentence may begin is a comment,
unless it has as many columns as the next line, with the same separator: then `#` is a word.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from t5x_like.corpora.sources import Record, Skip
from t5x_like.corpora.sources._files import FileSource, lines
from t5x_like.errors import UserError

_DOCUMENT = "-DOCSTART-"


class Source(FileSource):
  """One record per sentence."""

  def read(self, path: str) -> Iterator[tuple[str, Record]]:
    for number, rows in enumerate(filter(None, sentences(path)), 1):
      columns = {str(i): list(column) for i, column in enumerate(zip(*rows))}
      yield f"{path}, sentence {number}", {"tokens": columns["0"]} | columns

  def documents_of(self, path: str, field: str) -> Iterator[str]:
    column = int(_column(field))
    document_lines = []
    has_document_marks = False
    for rows in sentences(path, column):
      if rows is None:
        has_document_marks = True
        if document_lines:
          yield "\n".join(document_lines)
        document_lines = []
      else:
        document_lines.append(" ".join(row[column] for row in rows))
        if not has_document_marks:
          yield document_lines.pop()
    if document_lines:
      yield "\n".join(document_lines)

  def facts(self, field: str) -> dict[str, Any]:
    return super().facts(_column(field))


def _column(field: str) -> str:
  """Return the number of a text field's column, as text; raise UserError if it is no number."""
  column = "0" if field == "text" else field
  if not column.isdecimal():
    raise UserError(f"source conll: found text field {field!r}, expected a column number, from 0")
  return column


def sentences(path: str, column: int = 0) -> Iterator[list[list[str]] | None]:
  """Yield sentences as rows of columns, and None at each `-DOCSTART-`.

  Raises:
    UserError: a row lacks the column, or its number of columns differs from the first row of its
      sentence.
  """
  rows: list[list[str]] = []
  # The lines since the last sentence that begin with `# `, each with its layout.
  possible_comments: list[tuple[tuple[bool, int], list[str]]] = []
  # The layout of the last other line: whether tabs separate its columns, and their number.
  last_layout = (False, 0)
  # An additional blank line ends the last sentence.
  for number, line in itertools.chain(lines(path), [(0, "")]):
    if isinstance(line, Skip):
      raise UserError(f"{path}:{number}: found a {line.reason}, expected one token per line")
    row = line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
    layout = "\t" in line, len(row)
    if not rows and line.startswith("# "):
      possible_comments.append((layout, row))
      continue
    ends_sentence = line.startswith(_DOCUMENT) or not line.strip()
    if not ends_sentence:
      last_layout = layout
    # A possible comment with the layout of the next line is a word.
    for comment_layout, comment_row in possible_comments:
      if comment_layout == last_layout:
        rows.append(comment_row)
    possible_comments = []
    if ends_sentence:
      if rows:
        yield rows
      rows = []
      if line.startswith(_DOCUMENT):
        yield None
      continue
    expected = max(column + 1, len(rows[0]) if rows else 0)
    if len(row) < expected or (rows and len(row) != expected):
      raise UserError(f"{path}:{number}: found {len(row)} columns, expected {expected}")
    rows.append(row)
