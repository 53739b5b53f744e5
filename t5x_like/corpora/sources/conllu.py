"""`conllu:PATTERN`: treebanks of Universal Dependencies, ten tab-separated columns per token.

A record is a sentence: `tokens`, its words, a list under the name of each column but the first
(form, lemma, upos, …), and `text` and `sent_id` from its comments (an empty id if there is none).
`# newdoc` comments separate documents, and each paragraph (`# newpar`) begins a new line; in a file
without `# newdoc`, each sentence is a document. The text comes from the `# text` comments, or else
joins the word forms according to `SpaceAfter=No`.
"""

import re
from collections.abc import Iterator

from t5x_like.corpora.sources import Record, Skip
from t5x_like.corpora.sources._files import FileSource, lines
from t5x_like.errors import UserError

_ID = re.compile(r"[0-9]{1,9}([-.][0-9]{1,9})?")
COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")


class Source(FileSource):
  """One record per sentence."""

  only_text = True

  def read(self, path: str) -> Iterator[tuple[str, Record]]:
    for number, (comments, rows) in enumerate(sentences(path), 1):
      # Contractions have a range as their id, and empty nodes a decimal fraction.
      words = [row for row in rows if row[0].isdecimal()]
      columns = {}
      for position, name in enumerate(COLUMNS[1:], 1):
        columns[name] = [row[position] for row in words]
      sent_id = ""
      for comment in comments:
        key, _, value = comment.partition("=")
        if key.strip() == "sent_id":
          sent_id = value.strip()
          break
      record = {"tokens": columns["form"], "text": text(comments, rows), "sent_id": sent_id}
      yield f"{path}, sentence {number}", record | columns

  def documents_of(self, path: str, field: str) -> Iterator[str]:
    document = ""
    has_document_marks = False
    for comments, rows in sentences(path):
      keys = [comment.split("=")[0].split(" ")[0] for comment in comments]
      if "newdoc" in keys:
        has_document_marks = True
        if document:
          yield document
        document = ""
      if not has_document_marks:
        yield text(comments, rows)
        continue
      if document:
        document += "\n" if "newpar" in keys else " "
      document += text(comments, rows)
    if document:
      yield document


def sentences(path: str) -> Iterator[tuple[list[str], list[list[str]]]]:
  """Yield (comments without `# `, rows of ten columns) per sentence.

  Raises:
    UserError: a row has another number of columns, or an invalid id.
  """
  comments: list[str] = []
  rows: list[list[str]] = []
  for number, line in lines(path):
    if isinstance(line, Skip):
      raise UserError(f"{path}:{number}: found a {line.reason}, expected one token per line")
    if line.startswith("#"):
      comments.append(line[1:].strip())
    elif line.strip():
      row = line.split("\t")
      if len(row) != len(COLUMNS):
        raise UserError(
          f"{path}:{number}: found {len(row)} tab-separated columns, expected "
          f"{len(COLUMNS)} (CoNLL-U)"
        )
      if not _ID.fullmatch(row[0]):
        raise UserError(
          f"{path}:{number}: found the id {row[0]!r}, expected a number, a range "
          "such as 3-4, or 5.1"
        )
      rows.append(row)
    elif rows:
      yield comments, rows
      comments = []
      rows = []
  if rows:
    yield comments, rows


def text(comments: list[str], rows: list[list[str]]) -> str:
  """Return the text of a sentence."""
  for comment in comments:
    key, _, value = comment.partition("=")
    if key.strip() == "text":
      return value.strip()
  # A row with a range (3-4) has the form of its words in the text. Rows such as 5.1 are not in it.
  words = ""
  last = 0  # the end of the last range
  for row in rows:
    if "." in row[0] or ("-" not in row[0] and row[0].isdecimal() and int(row[0]) <= last):
      continue
    if "-" in row[0]:
      last = int(row[0].split("-")[1])
    words += row[1] + ("" if "SpaceAfter=No" in row[9].split("|") else " ")
  return words.strip()
