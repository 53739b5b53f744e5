"""Read files of references and predictions as rows: JSON, JSON lines, TSV, CSV or plain lines."""

import csv
import io
import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from t5x_like.corpora.sources import Skip
from t5x_like.corpora.sources._files import LONGEST, read_text
from t5x_like.errors import UserError

# Fields that hold an id, the most reliable first: `index` is often only the number of a row.
IDS = (
  "id idx pairID guid qid qId QuestionId question_id example_id doc_id paper_id ind name "
  "question index"
).split()
# Keys that hold a prediction in some files, and the input or the correct answer in others.
VALUES = (
  "label answer output outputs output_text text tags response responses completion completions "
  "resps filtered_resps candidate decoded guess hyp"
).split()
# A key names a prediction if it has one of these words, or "model" and one of `_MODEL_WORDS`, and
# none of `_ABOUT_WORDS`, which name facts about a prediction, such as its score.
_PREDICTION_WORDS = frozenset(
  (
    "pred preds predicted prediction predictions generated generation generations hypothesis "
    "hypotheses"
  ).split()
)
_MODEL_WORDS = frozenset("answer output response text label".split())
_ABOUT_WORDS = frozenset(
  "prob probs probability probabilities score scores logit logits logprob logprobs confidence "
  "token tokens length lengths id ids index time seconds correct is right error rank model start "
  "end".split()
)
_FORMATS = {
  ".jsonl": "jsonl",
  ".ndjson": "jsonl",
  ".tsv": "tsv",
  ".csv": "csv",
  ".conllu": "conllu",
  ".conll": "conll",
}
_FORMATS |= dict.fromkeys((".txt", ".lst"), "lines")
_SENTENCE_WORDS = 3  # equal texts of so many words are copies, equal labels may be right answers
# The beginning of a JSON object, or of an array of objects, arrays or strings.
_JSON_START = re.compile(r'\{\s*"[^"]*"\s*:|\[\s*(?:\{\s*"|\[|"[^"]*"\s*,)')
Row = tuple[str, Any]  # the location in the file, and a record or a plain value
# Lists of the predictions' ids, by field. Empty if the predictions are in the examples' order.
Ids = dict[str, list[str]]
Predictions = tuple[list[Row], Ids]


def file_format(path: str, text: str = "") -> str:
  """Return the format of a file by its name, else by its beginning.

  A damaged JSON file counts as JSON, so that reading it reports the damage.
  """
  suffixes = [
    suffix
    for suffix in pathlib.Path(path.lower()).suffixes
    if suffix not in (".gz", ".bz2", ".xz", ".zst")
  ]
  if suffixes and suffixes[-1] in _FORMATS:
    return _FORMATS[suffixes[-1]]
  text = text.strip()
  first_line, _, remainder = text.partition("\n")
  if first_line[:1] not in ("{", "["):
    return "lines"
  if remainder and isinstance(_parse_or_none(first_line), dict):
    return "jsonl"
  if suffixes[-1:] == [".json"]:
    return "json"
  try:
    json.loads(text)
  except json.JSONDecodeError as error:
    if remainder:
      is_json = error.pos > len(first_line) and _parse_or_none(first_line) is None
    else:
      has_text_after_json = error.msg == "Extra data"
      is_json = _JSON_START.match(text) and not has_text_after_json
    return "json" if is_json else "lines"
  except (ValueError, RecursionError):
    pass
  return "json"


def _parse_or_none(text: str) -> Any:
  """Return the value of a JSON text, or None if the text is not JSON."""
  try:
    return json.loads(text)
  except (ValueError, RecursionError):
    return None


def rows(path: str, header: Sequence[str] = (), known_columns: Sequence[str] = ()) -> list[Row]:
  """Return the rows of a file: a record for each object or line of a table, else a value.

  The entries of one object, `{id: value}`, are records too.

  Args:
    header: the columns of a table whose first line has none of `known_columns`.
    known_columns: names of columns by which a first line is recognised as a header.

  Raises:
    UserError: the file is missing, damaged or empty, is not UTF-8, or is broken JSON or CSV; or a
      line lacks columns or has more.
  """
  text = read_text(path)
  if isinstance(text, Skip):
    raise UserError(f"{path}: {text.reason}, expected at least one example")
  if not text.strip():
    raise UserError(f"{path}: empty, expected at least one example")
  lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
  format = file_format(path, text)
  if format == "jsonl":
    parsed_rows = []
    for number, line in enumerate(lines, 1):
      if line.strip():
        location = f"{path}:{number}"
        parsed_rows.append((location, _parse_json(line, location)))
    return parsed_rows
  if format == "json":
    return _json_rows(text, path)
  if format == "lines":
    return [(f"{path}:{number}", line) for number, line in enumerate(lines, 1)]
  if format == "csv":
    table = _parse_csv(text, path)
  else:
    table = [line.split("\t") for line in lines]
  return _table_rows(table, path, len(lines), header, known_columns)


def _json_rows(text: str, path: str) -> list[Row]:
  """Return the rows of a JSON file: the elements of an array, or the entries of an object."""
  content = _parse_json(text, path)
  if isinstance(content, dict) and isinstance(content.get("Data"), list):  # TriviaQA
    content = content["Data"]
  if not isinstance(content, dict):
    return [(f"{path}, element {number}", value) for number, value in enumerate(content)]
  entries = []
  for key, value in content.items():
    entries.append((f"{path}, id {key}", {"id": key, "prediction": value}))
  return entries


def _table_rows(
  table: list[list[str]],
  path: str,
  num_lines: int,
  header: Sequence[str],
  known_columns: Sequence[str],
) -> list[Row]:
  """Return the rows of a table as records by column; see `rows`.

  Args:
    table: cells of the table, with its first line.
    num_lines: number of the file's lines.
  """
  names = [cell.strip() for cell in table[0]]
  if header and set(names).isdisjoint(known_columns):
    names = list(header)
    table = [[], *table]
  # An inserted header shifts the rows to line 1. Where cells contain newlines, records are counted.
  first_number = 2 if len(table) == num_lines else 1
  records = []
  for number, cells in enumerate(table[1:], first_number):
    if not any(cells):
      continue
    if len(cells) < len(names) or any(cells[len(names) :]):
      raise UserError(
        f"{path}:{number}: found {len(cells)} columns, expected {len(names)}: {', '.join(names)}"
      )
    records.append((f"{path}:{number}", dict(zip(names, cells))))
  return records


def records(
  path: str, header: Sequence[str] = (), known_columns: Sequence[str] = ()
) -> list[tuple[str, dict]]:
  """Return the rows of a file of records.

  Raises:
    UserError: a row is a plain value, or the file cannot be read; see `rows`.
  """
  file_rows = rows(path, header, known_columns)
  for location, record in file_rows:
    if not isinstance(record, dict):
      raise UserError(f"{location}: found {str(record)[:40]!r}, expected named values")
  return file_rows


def predictions(path: str) -> Predictions:
  """Return the predictions of a file.

  Raises:
    UserError: records have no prediction or several keys that could hold it, an id is missing, all
      ids appear twice, or there are no predictions.
  """
  format = file_format(path)
  text = str(read_text(path))
  columns = []
  if format == "csv":
    table = _parse_csv(text, path)
    columns = table[0] if table else []
  elif format == "tsv":
    columns = text.partition("\n")[0].split("\t")
  header = []
  if len(columns) == 1:
    header = ["prediction"]
  elif len(columns) == 2:
    header = ["id", "prediction"]
  known_columns = IDS + VALUES
  known_columns += [column.strip() for column in columns if _is_prediction(column.strip())]
  records = rows(path, header, known_columns)
  if not records:
    raise UserError(f"{path}: holds no predictions")
  if not any(isinstance(row, dict) for _, row in records):
    return records, {}
  for location, row in records:
    if not isinstance(row, dict):
      raise UserError(
        f"{location}: no id, but other rows have one; expected one of {', '.join(IDS)}"
      )
  key = prediction_key(records)
  for location, row in records:
    if key not in row:
      raise UserError(
        f"{location}: found the keys {', '.join(row) or 'none'}, expected {key!r} as in the other "
        "rows"
      )
  return [(location, row[key]) for location, row in records], _find_ids(records, key)


def prediction_key(records: list[tuple[str, dict]]) -> str:
  """Return the key that holds the prediction in records.

  Raises:
    UserError: no key can hold it, or several can.
  """
  keys = dict.fromkeys(key for _, row in records for key in row)
  location, first = records[0]
  candidates = [key for key in keys if _is_prediction(key)]
  if not candidates:
    candidates = [key for key in keys if key in VALUES]
  if not candidates:
    expected = ", ".join(["prediction", *VALUES])
    raise UserError(
      f"{location}: found the keys {', '.join(first) or 'none'}, expected one of {expected}"
    )
  if len(candidates) > 1:
    names = " and ".join(repr(key) for key in candidates)
    remedy = "keep one of them"
    if not _is_prediction(candidates[0]):
      remedy = "call the model's 'prediction', or keep one of them"
    raise UserError(
      f"{location}: found the keys {names}, either of which could be the prediction; {remedy}"
    )
  return candidates[0]


def refuse_references(path: str, values: Sequence[Any], references: Sequence[Any]) -> None:
  """Refuse predictions that are the references' values if other columns could be the model's.

  Args:
    path: file of the predictions.
    values: each example's value in the file.
    references: each example's record in the references.

  Raises:
    UserError: all values equal the references' values of the same key (or of any key, if they are
      sentences), the file's key does not name a prediction, and another key might: the references
      lack it, and it names no fact about a prediction.
  """
  if not references or not all(isinstance(reference, dict) for reference in references):
    return
  if file_format(path) not in ("jsonl", "json", "csv", "tsv"):
    return
  are_sentences = all(len(str(value).split()) >= _SENTENCE_WORDS for value in values)
  keys = [key for key in VALUES if _repeats_references(values, references, key)]
  if are_sentences and any(_repeats_references(values, references, key) for key in references[0]):
    keys = VALUES
  if not keys:
    return
  records = [row for _, row in rows(path) if isinstance(row, dict)]
  keys = [key for key in keys if records and key in records[0]]
  if not keys:
    return
  columns = dict.fromkeys(key for row in records for key in row)
  if any(_is_prediction(key) for key in columns):
    return
  known_columns = {*IDS, keys[0], *(key for reference in references for key in reference)}
  unknown = [key for key in columns if key not in known_columns]
  unknown = [key for key in unknown if _ABOUT_WORDS.isdisjoint(_words_of(key))]
  if unknown:
    names = ", ".join(repr(key) for key in unknown)
    raise UserError(
      f"{path}: found the references' own values in {keys[0]!r}, but {names} could be the "
      "predictions; call the model's 'prediction'"
    )


def _repeats_references(values: Sequence[Any], references: Sequence[dict], key: str) -> bool:
  """Return whether a key holds each of the values in the references."""
  return all(key in row and row[key] == value for value, row in zip(values, references))


def _words_of(key: str) -> list[str]:
  separated = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()
  return re.split(r"[-_ ]", separated)


def _is_prediction(key: str) -> bool:
  """Return whether a key names a prediction: `predicted_label` does, `pred_score` does not."""
  words = _words_of(key)
  if words[0] == "model" and len(words) == 2:
    return words[1] in _MODEL_WORDS
  return not _PREDICTION_WORDS.isdisjoint(words) and _ABOUT_WORDS.isdisjoint(words)


def _find_ids(records: list[tuple[str, dict]], key: str) -> Ids:
  """Return the ids of records by field, for the fields that have a different id in each record.

  Args:
    key: field of the prediction, which holds no id.

  Raises:
    UserError: `id` or `idx` is missing in some records or has a value twice, or no field has a
      different id in each record.
  """
  ids: Ids = {}
  problems = []
  for field in IDS:
    if field == key or all(row.get(field) is None for _, row in records):
      continue
    locations: dict[str, str] = {}
    problem = None
    for location, row in records:
      name = name_of(row.get(field))
      if row.get(field) is None:
        problem = f"{location}: no id, but other rows have one; expected {field!r}"
      elif name in locations:
        problem = (
          f"{location}: id {name} appears twice (first: {locations[name]}), expected one "
          "prediction for each"
        )
      if problem:
        break
      locations[name] = location
    if problem and field in ("id", "idx"):
      raise UserError(problem)
    if problem:
      problems.append(problem)
    else:
      ids[field] = list(locations)
  if problems and not ids:
    raise UserError(problems[0])
  if not ids:
    _refuse_nested_ids(*records[0])
  return ids


def _refuse_nested_ids(location: str, row: dict[str, Any]) -> None:
  """Raise UserError if an object in a row has an id, but the row has none."""
  for name, value in row.items():
    for field in IDS[: IDS.index("name")]:
      if isinstance(value, dict) and field in value:
        raise UserError(
          f"{location}: found an id in '{name}.{field}', expected {field!r} beside the prediction; "
          "copy it there"
        )


def name_of(value: Any) -> str:
  """Return an id as text: 3.0, as tables with gaps write it, is 3."""
  if isinstance(value, float) and value.is_integer():
    value = int(value)
  return str(value).strip()


def _parse_csv(text: str, path: str) -> list[list[str]]:
  csv.field_size_limit(LONGEST)
  try:
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))
  except csv.Error as error:
    raise UserError(f"{path}: broken CSV: {error}") from None


def _parse_json(text: str, location: str) -> Any:
  def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
      if key in mapping:
        raise UserError(
          f"{location}: the key {key!r} appears twice in one JSON object, expected once"
        )
      mapping[key] = value
    return mapping

  try:
    return json.loads(text, object_pairs_hook=build_object)
  except (json.JSONDecodeError, RecursionError) as error:
    raise UserError(f"{location}: broken JSON: {error}") from None
