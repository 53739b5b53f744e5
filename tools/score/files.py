"""Files of references and predictions as rows: JSON, JSON lines, TSV, CSV or plain lines, compressed or not."""

import csv
import io
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from t5x_like.corpora.sources import Skip
from t5x_like.corpora.sources._files import LONGEST, whole
from t5x_like.errors import UserError

IDS = "index idx id pairID guid qid qId QuestionId question_id example_id doc_id paper_id ind name question".split()
VALUES = "prediction prediction_text label answer pred predicted output text tags".split()
_FORMS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".tsv": "tsv", ".csv": "csv", ".conllu": "conllu", ".conll": "conll"}
_FORMS |= dict.fromkeys((".txt", ".lst"), "lines")
Row = tuple[str, Any]  # the place in the file, and a record or a plain value
Given = tuple[
  list[Row], list[str] | None
]  # predictions, and their ids; None if there is one for each example, in order


def form(path: str, text: str = "") -> str:
  """Return the format of a file by its name, else by its beginning."""
  suffixes = [end for end in pathlib.Path(path.lower()).suffixes if end not in (".gz", ".bz2", ".xz", ".zst")]
  if suffixes and suffixes[-1] in _FORMS:
    return _FORMS[suffixes[-1]]
  first, _, rest = text.strip().partition("\n")
  if first[:1] not in ("{", "["):
    return "lines"
  try:
    return "jsonl" if rest and isinstance(json.loads(first), dict) else "json"
  except ValueError:
    return "json"


def rows(path: str, header: Sequence[str] = (), known: Sequence[str] = ()) -> list[Row]:
  """Return the rows of a file: a record for each object or line of a table, else a value; `{id: value}` as records.

  Args:
    header: the columns of a table whose first line has none of the names in `known`.

  Raises:
    UserError: the file is missing, damaged or empty, is not UTF-8, or is broken JSON or CSV; or a line lacks columns
      or has more.
  """
  text = whole(path)
  if isinstance(text, Skip) or not text.strip():
    raise UserError(f"{path}: {text.reason if isinstance(text, Skip) else 'empty'}, expected at least one example")
  lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
  kind = form(path, text)
  if kind == "jsonl":
    return [(f"{path}:{n}", _json(line, f"{path}:{n}")) for n, line in enumerate(lines, 1) if line.strip()]
  if kind == "json":
    found = _json(text, path)
    if isinstance(found, dict) and isinstance(found.get("Data"), list):  # TriviaQA
      found = found["Data"]
    if isinstance(found, dict):
      return [(f"{path}, id {key}", {"id": key, "prediction": value}) for key, value in found.items()]
    return [(f"{path}, element {n}", value) for n, value in enumerate(found)]
  if kind == "lines":
    return [(f"{path}:{n}", line) for n, line in enumerate(lines, 1)]
  cells = _cells(text, path) if kind == "csv" else [line.split("\t") for line in lines]
  names, out = [cell.strip() for cell in cells[0]], []
  if header and not {*names} & {*known}:
    names, cells = list(header), [[], *cells]
  for number, row in enumerate(cells[1:], 2 if len(cells) == len(lines) else 1):
    if any(row) and (len(row) < len(names) or any(row[len(names) :])):
      raise UserError(f"{path}:{number}: found {len(row)} columns, expected {len(names)}: {', '.join(names)}")
    out += [(f"{path}:{number}", dict(zip(names, row)))] if any(row) else []
  return out


def records(path: str, header: Sequence[str] = (), known: Sequence[str] = ()) -> list[tuple[str, dict]]:
  """Return the rows of a file of records; UserError for anything else."""
  found = rows(path, header, known)
  if other := [row for row in found if not isinstance(row[1], dict)]:
    raise UserError(f"{other[0][0]}: found {str(other[0][1])[:40]!r}, expected named values")
  return found


def predictions(path: str) -> Given:
  """Return the predictions of a file.

  Raises:
    UserError: a record has no prediction, an id is missing or stands twice, or there are no predictions.
  """
  kind, text = form(path), str(whole(path))
  first = _cells(text, path)[:1] if kind == "csv" else [text.partition("\n")[0].split("\t")] if kind == "tsv" else []
  width = max(map(len, first), default=0)
  header = {1: ["prediction"], 2: ["id", "prediction"]}.get(width, [])
  values, ids, first = [], [], {}
  for place, row in rows(path, header, [*IDS, *VALUES]):
    name = None
    if isinstance(row, dict):
      key = next((key for key in VALUES if key in row), None)
      if key is None:
        raise UserError(f"{place}: found the keys {', '.join(row) or 'none'}, expected one of {', '.join(VALUES)}")
      name = next((str(row[key]).strip() for key in IDS if row.get(key) is not None), None)
      row = row[key]
    if name in first:
      raise UserError(f"{place}: id {name} stands twice (first: {first[name]}), expected one prediction for each")
    first |= {} if name is None else {name: place}
    values.append((place, row))
    ids.append(name)
  if not values:
    raise UserError(f"{path}: holds no predictions")
  if first and None in ids:
    raise UserError(f"{values[ids.index(None)][0]}: no id, but other rows have one; expected one of {', '.join(IDS)}")
  return values, ids if first else None


def _cells(text: str, path: str) -> list[list[str]]:
  csv.field_size_limit(LONGEST)
  try:
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))
  except csv.Error as error:
    raise UserError(f"{path}: broken CSV: {error}") from None


def _json(text: str, where: str) -> Any:
  def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
      twice = next(key for n, (key, _) in enumerate(pairs) if key in dict(pairs[:n]))
      raise UserError(f"{where}: the key {twice!r} stands twice in one JSON object, expected once")
    return found

  try:
    return json.loads(text, object_pairs_hook=unique)
  except (json.JSONDecodeError, RecursionError) as error:
    raise UserError(f"{where}: broken JSON: {error}") from None
