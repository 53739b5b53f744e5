"""Class labels as files and models spell them."""

from collections.abc import Callable
from typing import Any, Literal

from t5x_like.errors import UserError
from t5x_like.metrics.classification import Classification
from tools.score.benchmark import Benchmark, Example, one_file
from tools.score.files import first_of, read, table

Invalid = Literal["refuse", "wrong"]  # predictions that are not labels: stop, or count them as wrong

COLUMNS = ("label", "gold_label", "Label", "is_duplicate", "Quality", "score", "similarity")
_IDS = ("index", "idx")
_OTHER_IDS = ("id", "pairID", "guid")


class Labels:
  """Maps spellings to class indices.

  Args:
    classes: the spellings of each class, in the order of TFDS, separated by bars: `"0|unacceptable"`. The first is
      official. A class's index is a spelling too, unless it is another class's.
  """

  def __init__(self, *classes: str):
    self.official = [spellings.split("|")[0] for spellings in classes]
    self._index = {str(index): index for index in range(len(classes))}
    self._index |= {spelling.lower(): index for index, both in enumerate(classes) for spelling in both.split("|")}

  def __call__(self, value: Any, example: Example | None = None) -> int:
    """The class of a label.

    Raises:
      ValueError: it is not a spelling of any class.
    """
    whole = isinstance(value, float) and value.is_integer()
    index = self._index.get(str(int(value) if whole else value).strip().lower())
    if index is None:
      raise ValueError(f"found the label {str(value)[:40]!r}, expected one of {', '.join(self.official)}")
    return index


def task(
  *classes: str,
  scores: tuple[str, ...] = ("accuracy",),
  headerless: tuple[str, ...] = (),
  part: Callable[[str], str] | None = None,
) -> Callable[..., Benchmark]:
  """An entry for a benchmark with one label per example, whose references are TSV or JSONL with one of COLUMNS.

  Args:
    classes: see `Labels`.
    scores: see `Classification`.
    headerless: the columns of a TSV file without a header.
    part: see `Benchmark`.
  """
  labels = Labels(*classes)

  def make(invalid: Invalid = "refuse") -> Benchmark:
    metric = Classification(len(classes), scores)
    return Benchmark(metric, lambda paths: labelled(paths, labels, headerless), labels, invalid=invalid, part=part)

  return make


def labelled(paths, parse: Callable[[Any], Any], headerless: tuple[str, ...] = ()) -> list[Example]:
  """Examples of a table with a label column; ids are its index column, else row numbers from 0."""
  file = read(one_file(paths))
  examples = []
  for line, row in table(file, headerless, header=(*COLUMNS, "index", "sentence", "sentence1")):
    label = first_of(row, COLUMNS)
    if label is None:
      raise UserError(
        f"{file.path}, line {line}: no label; found {', '.join(row)}, expected one of {', '.join(COLUMNS)}"
      )
    try:
      reference = parse(label)
    except ValueError as error:
      raise UserError(f"{file.path}, line {line}: {error}") from error
    index = first_of(row, _IDS)
    aliases = tuple(str(row[name]) for name in _OTHER_IDS if name in row)
    examples.append(Example(str(len(examples) if index is None else index), reference, aliases))
  return examples
