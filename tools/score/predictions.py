"""Reading saved predictions of any benchmark: by id, or one for each example in order."""

import dataclasses
from typing import Any

from t5x_like.errors import UserError
from tools.score.files import File, first_of, read

IDS = (
  "index",
  "idx",
  "id",
  "qid",
  "question_id",
  "qId",
  "QuestionId",
  "example_id",
  "pairID",
  "doc_id",
  "guid",
  "question",
)
VALUES = ("prediction", "prediction_text", "label", "answer", "pred", "predicted", "output", "text", "tags")


@dataclasses.dataclass(frozen=True)
class Predictions:
  """Values as in the file, the place of each, and their ids; ids are None if values are in order."""

  path: str
  values: list[Any]
  places: list[str]
  ids: list[str] | None

  def __post_init__(self):
    seen: dict[str, str] = {}
    for one, place in zip(self.ids or (), self.places):
      if one in seen:
        raise UserError(f"{place}: id {one} stands twice (first: {seen[one]}), expected one prediction for each")
      seen[one] = place


def load(path: str, tabular: bool = True) -> Predictions:
  """Reads predictions in any of the forms that benchmarks use.

    {"ID": value, …}                       SQuAD's
    {"idx": ID, "label": value}            JSONL, or a JSON array of such: SuperGLUE's; keys as in IDS and VALUES
    [value, …]                             JSON, in order
    index<TAB>prediction                   TSV or CSV with a header (GLUE's), or two columns without one
    value                                  a line for each example, in order

  Args:
    tabular: whether a file not named .tsv or .csv may be a table; False for free text, which may contain tabs.
  Raises:
    UserError: the file is unreadable or empty, an id is repeated, or an object has no prediction.
  """
  file = read(path)
  values = file.values()
  if values is not None:
    whole, rows = values
    if not whole and not rows:
      raise UserError(f"{path}: holds no predictions")
    if isinstance(whole, dict) and not _is_record(whole):
      return Predictions(path, list(whole.values()), [f"{path}, id {key}" for key in whole], list(whole))
    if rows is None:
      rows = list(enumerate(whole if isinstance(whole, list) else [whole], 1))
    return _from_rows(file, rows)
  if file.suffix in (".tsv", ".csv") or tabular and "\t" in file.lines()[0]:
    return _from_cells(file)
  lines = file.lines()
  return Predictions(path, lines, [f"{path}, line {n}" for n in range(1, len(lines) + 1)], None)


def load_texts(path: str) -> Predictions:
  """`load` of free text."""
  return load(path, tabular=False)


def _is_record(value: dict) -> bool:
  return first_of(value, IDS) is not None and first_of(value, VALUES) is not None


def _from_rows(file: File, rows: list[tuple[int, Any]]) -> Predictions:
  ids, values, places = [], [], [f"{file.path}, line {line}" for line, _ in rows]
  for (_, row), place in zip(rows, places):
    if not isinstance(row, dict):
      ids.append(None)
      values.append(row)
      continue
    if not any(name in row for name in VALUES):
      raise UserError(f"{place}: found the keys {', '.join(row) or 'none'}, expected one of {', '.join(VALUES)}")
    ids.append(first_of(row, IDS))
    values.append(next(row[name] for name in VALUES if name in row))
  without = [place for one, place in zip(ids, places) if one is None]
  if without and len(without) < len(ids):
    raise UserError(f"{without[0]}: no id, but other rows have one; expected one of {', '.join(IDS)} in every row")
  return Predictions(file.path, values, places, None if without else [str(one) for one in ids])


def _from_cells(file: File) -> Predictions:
  cells = [(n, row) for n, row in enumerate(file.cells(), 1) if any(row)]
  head = [cell.strip() for cell in cells[0][1]]
  id_column = next((head.index(name) for name in IDS if name in head), None)
  value_column = next((head.index(name) for name in VALUES if name in head), None)
  if id_column is None and value_column is None:
    id_column, value_column = (0, 1) if len(head) == 2 else (None, 0)
    if len(head) > 2:
      raise UserError(f"{file.path}, line 1: found {len(head)} columns, expected a header such as index, prediction")
  else:
    cells = cells[1:]
    if value_column is None:
      value_column = 1 if len(head) == 2 else None
    if value_column is None or value_column == id_column:
      raise UserError(f"{file.path}, line 1: found the columns {head}, expected one of {', '.join(VALUES)}")
  for n, row in cells:
    if len(row) <= max(value_column, id_column or 0):
      raise UserError(f"{file.path}, line {n}: found {len(row)} columns, expected {len(head)}")
  if not cells:
    raise UserError(f"{file.path}: holds a header, but no predictions")
  ids = None if id_column is None else [row[id_column].strip() for _, row in cells]
  return Predictions(
    file.path, [row[value_column] for _, row in cells], [f"{file.path}, line {n}" for n, _ in cells], ids
  )
