"""Tagging of tokens: part-of-speech accuracy and entity F1, from CoNLL columns, CoNLL-U or JSONL."""

import re
from typing import Any

from t5x_like.errors import UserError
from t5x_like.metrics.metric import Metric
from t5x_like.metrics.tagging import EntityF1, TagAccuracy
from tools.score.benchmark import Benchmark, Example, one_file
from tools.score.files import File, read
from tools.score.predictions import Predictions, load

_UD_COLUMNS = {"upos": 3, "xpos": 4}
_WORD = re.compile(r"\d+$")  # not 1-2 (several words in one token), nor 1.1 (an empty node)
_ENTITY_TAG = re.compile(r"O$|[BIES]-.")

Sentence = tuple[list[str] | None, list[str]]  # tokens (None: the file has only tags), tags


def _is_conllu(file: File) -> bool:
  rows = [line for line in file.lines() if line.strip() and not line.startswith("#")]
  return (
    file.suffix == ".conllu"
    or bool(rows)
    and len(rows[0].split("\t")) == 10
    and rows[0].split("\t")[0].split("-")[0].isdigit()
  )


def sentences(file: File, column: str) -> list[Sentence]:
  """Sentences of a column file, separated by blank lines; `-DOCSTART-` is left out.

  Args:
    column: in CoNLL-U `upos`, `xpos` or a key of MISC; in other files the column's number from 0, -1 for the last.
  Raises:
    UserError: a line lacks that column.
  """
  conllu = _is_conllu(file)
  found: list[Sentence] = []
  tokens: list[str] = []
  tags: list[str] = []
  for line, text in enumerate([*file.lines(), ""], 1):
    if not text.strip():
      if tags:
        found.append((tokens or None, tags))
        tokens, tags = [], []
      continue
    cells = text.split("\t") if "\t" in text else text.split()
    cells = [cell.strip() for cell in cells]
    if cells[0] == "-DOCSTART-" or conllu and (text.startswith("#") or not _WORD.match(cells[0])):
      continue
    tags.append(_ud_tag(file, line, cells, column) if conllu else _tag(file, line, cells, column))
    if len(cells) > 1:
      tokens.append(cells[1] if conllu else cells[0])
  return found


def _ud_tag(file: File, line: int, cells: list[str], column: str) -> str:
  if len(cells) != 10:
    raise UserError(f"{file.path}, line {line}: found {len(cells)} columns, expected CoNLL-U's 10")
  if column in _UD_COLUMNS:
    return cells[_UD_COLUMNS[column]]
  pairs = dict(pair.split("=", 1) for pair in cells[9].split("|") if "=" in pair)
  if column not in pairs:
    raise UserError(f"{file.path}, line {line}: no {column}= in MISC; --column is upos, xpos or a key of MISC")
  return pairs[column]


def _tag(file: File, line: int, cells: list[str], column: str) -> str:
  try:
    place = int(column)
  except ValueError:
    place = -1
  if not -len(cells) <= place < len(cells):
    raise UserError(f"{file.path}, line {line}: found {len(cells)} columns, expected a column {place}")
  return cells[place]


def _examples(paths, column: str, metric: Metric) -> list[Example]:
  file = read(one_file(paths))
  found = [Example(str(n), tags, context=tokens) for n, (tokens, tags) in enumerate(sentences(file, column))]
  for example in found:
    _check(example.reference, metric, f"{file.path}, sentence {int(example.id) + 1}")
  return found


def _predictions(path: str, column: str) -> Predictions:
  """A column file like the references, JSON or JSONL with lists of tags, or one line of tags for each sentence."""
  file = read(path)
  if file.values() is not None:
    given = load(path)
    return Predictions(path, [(None, tags) for tags in given.values], given.places, given.ids)
  blank = any(not line.strip() for line in file.lines())
  if blank or "\t" in file.text or file.suffix in (".conll", ".conllu"):
    values: list[Sentence] = sentences(file, column)
  else:
    values = [(None, line.split()) for line in file.lines()]
  return Predictions(path, values, [f"{path}, sentence {n}" for n in range(1, len(values) + 1)], None)


def _prediction(value: Sentence, example: Example, metric: Metric) -> list[str]:
  tokens, tags = value
  tags = tags.split() if isinstance(tags, str) else tags
  if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
    raise ValueError(f"found {str(tags)[:40]!r}, expected a list of tags")
  if len(tags) != len(example.reference):
    raise ValueError(f"found {len(tags)} tags, expected {len(example.reference)}, one for each token")
  for mine, theirs in zip(tokens or (), example.context or ()):
    if mine != theirs:
      raise ValueError(f"found the token {mine!r}, expected {theirs!r}, as in the references")
  _check(tags, metric)
  return tags


def _check(tags: list[Any], metric: Metric, where: str = "") -> None:
  wrong = [tag for tag in tags if isinstance(metric, EntityF1) and not _ENTITY_TAG.match(tag)]
  if wrong:
    message = f"found the tag {wrong[0]!r}, expected O, or B-, I-, E- or S- and a type"
    raise UserError(f"{where}: {message}") if where else ValueError(message)


def _benchmark(metric: Metric, column: str) -> Benchmark:
  return Benchmark(
    metric,
    lambda paths: _examples(paths, column, metric),
    lambda value, example: _prediction(value, example, metric),
    predictions=lambda path: _predictions(path, column),
  )


def _pos(column: str | int = "upos") -> Benchmark:
  return _benchmark(TagAccuracy(), str(column))


def _ner(column: str | int = "NER") -> Benchmark:
  return _benchmark(EntityF1(), str(column))


BENCHMARKS = {"pos": _pos, "ner": _ner}
