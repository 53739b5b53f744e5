"""Every benchmark by name: how its references are read, and which metric scores its predictions.

An entry of `BENCHMARKS` is a function that returns a `Benchmark`; its arguments are the benchmark's
own flags. Tasks of `t5x_like/benchmarks/suites/` come from there, with their official files, class
names and scores, and metrics of texts from `t5x_like/metrics/texts.py`, with their options.
"""

import dataclasses
import functools
import math
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from t5x_like.benchmarks.suites import Benchmark as Task
from t5x_like.benchmarks.suites import Files, choices, glue, squad, superglue, text
from t5x_like.corpora.sources import Skip, open_source
from t5x_like.errors import UserError
from t5x_like.metrics.answers import normalize_mlqa, normalize_squad
from t5x_like.metrics.classification import Accuracy, Classification, Correlation, MultiRc
from t5x_like.metrics.metric import Metric
from t5x_like.metrics.squad import MultilingualSquad, SquadV2
from t5x_like.metrics.tagging import EntityF1, TagAccuracy
from t5x_like.metrics.texts import METRICS, reference_texts

from .choices import Choices, of_row
from .files import Given, Row, form, prediction_key, predictions, records, rows

# predictions that are not labels: stop, or count them as wrong
Invalid = Literal["refuse", "wrong"]
LANGUAGES = ("ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh")
_TEXTS = ("references", "reference", "targets", "target", "summary", "highlights", "translation")
_TEXTS += ("Answer", "answers", "answer", "continuation", "text")
_ALIASES = ("NormalizedAliases", "normalized_aliases", "Aliases", "aliases", "value", "text")
_GOLD = ("gold", "answerKey", "correct_answer", "label", "answer")
_TABLES = {"tsv", "csv", "jsonl"}
_ENTITY_TAG = re.compile(r"O$|[BIES]-.")


def text_of(given: Any, row: Any = None) -> str:
  """Return a free-text prediction: a string, or a number as written."""
  if isinstance(given, bool) or not isinstance(given, str | int | float):
    raise ValueError(f"found {given!r}, expected a text")
  return str(given)


def one(paths: Sequence[str]) -> str:
  """Return the only path of a benchmark whose references are one file."""
  if len(paths) != 1:
    raise UserError(f"--references: found {len(paths)} files, expected one: {', '.join(paths)}")
  return paths[0]


@dataclasses.dataclass(frozen=True)
class Benchmark:
  """How one benchmark is scored.

  Attributes:
    gold: from a row of the references to what the metric takes, or a ValueError.
    prediction: from (a value in the file, the row) to what the metric takes, or a ValueError.
    read: from the paths of --references to (place, row) of each example.
    given: from a file to its predictions.
    group: from a row to the subset that is also scored separately, such as a subject.
    partial: whether a missing prediction is None to the metric, and one for no example only
      counted; else refused.
    wrong: whether a prediction that is a ValueError counts as wrong; else it is refused.
    part: from a file's name to its part, for several pairs of references and predictions.
  """

  metric: Metric
  gold: Callable[[Any], Any]
  prediction: Callable[[Any, Any], Any] = text_of
  read: Callable[[Sequence[str]], list[Row]] = lambda paths: records(one(paths))
  given: Callable[[str], Given] = predictions
  group: Callable[[Any], str | None] = lambda row: None
  partial: bool = False
  wrong: bool = False
  part: Callable[[str], str] | None = None


def official(place: str, files: Files, split: str, fields: Sequence[str] = ()) -> list[Row]:
  """Return the rows of a suite's file or, from its archive's directory, of the split, else of
  `test`."""
  if files.format == "race" and pathlib.Path(place).is_dir():
    place = f"{split}={place}/**/*.txt"
  elif not pathlib.Path(place).is_dir():
    told = form(place)
    files = dataclasses.replace(files, format=told) if {told, files.format} <= _TABLES else files
    place = f"{split}={place}"
  source = open_source(files.source, fields=tuple(fields), data_dir=place)
  return [
    row
    for row in source.records(split if split in source.splits else "test")
    if not isinstance(row[1], Skip)
  ]


# Labels and choices.


def _labels(
  task: Task, split: str = "validation", part=None, group=lambda row: None
) -> Callable[..., Benchmark]:
  """Score the labels, numbers or options of a suite's task."""
  about = task.encoder.task
  field = task.encoder.task.get("label_field", "label")
  numbers = about["name"] == "classification" and "labels" not in about
  labels = tuple(map(str, about.get("labels", range(about.get("choices", 0)))))
  metric = (
    Correlation() if numbers else Classification(len(labels), task.encoder.evaluator["scores"])
  )
  parse = _number if numbers else Choices(*labels)

  def make(invalid: Invalid = "refuse") -> Benchmark:
    read = lambda paths: official(one(paths), task.files, split, (field,))  # noqa: E731
    return Benchmark(
      metric,
      lambda r: parse(r[field]),
      parse,
      read,
      group=group,
      wrong=invalid == "wrong" and not numbers,
      part=part,
    )

  return make


def _number(given: Any, row: Any = None) -> float:
  try:
    if math.isfinite(number := float(given)):
      return number
  except (TypeError, ValueError):
    pass
  raise ValueError(f"found {str(given)[:40]!r}, expected a number (0 to 5)")


def _diagnostic(task: Task, *classes: str, **fields: str) -> Callable[..., Benchmark]:
  """Score a diagnostic set, whose file is an argument, by the scores of both leaderboards."""
  form = dataclasses.replace(
    task.encoder,
    task=task.encoder.task | {"labels": list(classes)},
    evaluator={"scores": ("matthews_correlation", "accuracy")},
  )
  files = Files(
    "diagnostic", task.files.format, {"validation": ["diagnostic"]}, (), fields, {"label": classes}
  )
  return _labels(dataclasses.replace(task, encoder=form, files=files))


def _set(
  number: int = 4, first: str = "0", labels: Choices | None = None
) -> Callable[..., Benchmark]:
  """Score questions whose rows name a gold choice; `first` is the label of the first, where labels
  are digits."""

  def right(row: dict) -> Any:
    found = next((row[name] for name in _GOLD if row.get(name) is not None), None)
    if found is None:
      raise ValueError(
        f"no gold choice; found {', '.join(row)}, expected one of {', '.join(_GOLD)}"
      )
    return found

  def chosen(given: Any, row: dict) -> int:
    return (labels or of_row(row, right(row), number, first))(given)

  def make(invalid: Invalid = "refuse", split: str | None = None) -> Benchmark:
    def read(paths: Sequence[str]) -> list[Row]:
      # labels in a file of their own: PIQA, SIQA, WinoGrande
      paths = sorted(paths, key=lambda path: ".lst" in path)
      found = rows(paths[0], ("question", *"ABCD", "answer"), _GOLD)
      found = [
        (where, row if isinstance(row, dict) else {"gold": row.strip()}) for where, row in found
      ]
      gold = rows(one(paths[1:])) if paths[1:] else []
      if gold and len(gold) != len(found):
        raise UserError(
          f"{paths[1]}: found {len(gold)} labels, expected {len(found)}, one for "
          f"each row of {paths[0]}"
        )
      found = [
        (where, row | {"gold": label.strip()}) for (where, row), (_, label) in zip(found, gold)
      ] or found
      return [(where, row) for where, row in found if split in (None, row.get("split"))]

    wrong = invalid == "wrong"

    def group(row):
      return row.get("subject")

    return Benchmark(
      Accuracy(), lambda row: chosen(right(row), row), chosen, read, group=group, wrong=wrong
    )

  return make


def _multirc() -> Benchmark:
  def by_question(found: list[Row], key: str) -> list[Row]:
    questions: dict[str, Row] = {}
    for where, row in found:
      try:
        idx = row["idx"]
        label = row[key]
        name = f"{idx['paragraph']}/{idx['question']}"
        answer = str(idx["answer"])
      except (KeyError, TypeError) as error:
        raise UserError(
          f"{where}: {error!r}; expected passage.questions[], or idx with answer, and a label"
        ) from None
      labels = questions.setdefault(name, (where, {"name": name, "labels": {}}))[1]["labels"]
      if answer in labels:
        raise UserError(f"{where}: answer {answer} of question {name} stands twice")
      labels[answer] = label
    return list(questions.values())

  def given(path: str) -> Given:
    given = records(path)
    if "passage" in given[0][1]:
      questions = by_question(official(path, files, "test"), "label")
    else:
      questions = by_question(given, prediction_key(given))
    return [(where, row["labels"]) for where, row in questions], {
      "name": [row["name"] for _, row in questions]
    }

  def labels(found: dict[str, Any], row: dict) -> list[int]:
    if found.keys() != row["labels"].keys():
      raise ValueError(
        f"found labels for the answers {', '.join(found)}, expected {', '.join(row['labels'])}"
      )
    return [Choices("False", "True")(found[answer]) for answer in row["labels"]]

  files = dataclasses.replace(superglue.SUITE.tasks["multirc"].files, classes={})
  read = lambda paths: by_question(official(one(paths), files, "validation"), "label")  # noqa: E731
  return Benchmark(MultiRc(), lambda row: labels(row["labels"], row), labels, read, given)


# Texts.


def _right(row: Any) -> list[str]:
  """Return the right texts of a row: itself, one of each file, or the first field of _TEXTS and
  `aliases`."""
  if isinstance(row, tuple):
    return [found for own in row for found in _right(own)]
  record = row if isinstance(row, dict) else {"text": row}
  name = next((name for name in _TEXTS if record.get(name) is not None), "text")
  found = record.get(name)
  if isinstance(found, dict):  # TriviaQA's; SQuAD's as in TFDS
    several = next((found[key] for key in _ALIASES if found.get(key)), [])
    found = [*([several] if isinstance(several, str) else several), *found.get("HumanAnswers", ())]
  found = found if isinstance(found, list) else [] if found is None else [found]
  found = [one.get("text") if isinstance(one, dict) else one for one in found]
  found = [
    str(one) if isinstance(one, int | float) and not isinstance(one, bool) else one for one in found
  ]
  if not found and "id" in record and name == "answers":
    raise ValueError(f"the question {record['id']} has no answers; squad_v2 scores such a file")
  if not found or not all(isinstance(one, str) for one in found):
    raise ValueError(
      f"no answers or texts; found {found[:1] or list(record)}, expected one of {', '.join(_TEXTS)}"
    )
  return [*found, *reference_texts(record.get("aliases"))]


def _parallel(paths: Sequence[str]) -> list[Row]:
  """Read the lines or records of one or several files, side by side."""
  files = [rows(path) for path in paths]
  for path, file in zip(paths, files):
    if len(file) != len(files[0]):
      raise UserError(
        f"{path}: found {len(file)} texts, expected {len(files[0])}, as in {paths[0]}"
      )
  return [
    (same[0][0], same[0][1] if len(same) == 1 else tuple(row for _, row in same))
    for same in zip(*files)
  ]


def _of_suite(files: Files) -> Callable[[Sequence[str]], list[Row]]:
  """Read a suite's file of questions, or rows of JSON lines (TFDS, Hugging Face)."""
  split = [*files.splits][-1]
  rows_of = lambda path: records(path) if form(path) == "jsonl" else official(path, files, split)  # noqa: E731
  return lambda paths: rows_of(one(paths))


def texts(
  name: str, read=None, partial: bool = False, wrong: bool = False, **options: Any
) -> Benchmark:
  """Score texts by a metric of `METRICS`."""
  made = METRICS[name](**options)
  read = read or (lambda paths: records(one(paths)))

  def gold(row: Any) -> Any:
    if (found := made.reference(_right(row))) is None:
      raise ValueError(f"found {_right(row)[0][:40]!r}, expected an answer with a number")
    return found

  def prediction(given: Any, row: Any) -> Any:
    found = made.prediction(text_of(given))
    if wrong and not found:
      raise ValueError
    return found

  return Benchmark(made.metric, gold, prediction, read, partial=partial, wrong=wrong)


_squad = _of_suite(squad.FILES)


def _squad_v2(na_probabilities: str | None = None, na_threshold: float = 1.0) -> Benchmark:
  known = {}
  if na_probabilities:
    chances, ids = predictions(na_probabilities)
    known = dict(zip(next(iter(ids.values()), ()), chances))

  def prediction(given: Any, row: dict) -> tuple[str, float]:
    if not na_probabilities:
      return text_of(given), 0.0
    if row["id"] not in known:
      raise UserError(
        f"{na_probabilities}: no probability for the question {row['id']}, which has a prediction"
      )
    place, chance = known[row["id"]]
    if isinstance(chance, bool) or not isinstance(chance, int | float) or not math.isfinite(chance):
      raise UserError(f"{place}: found {chance!r}, expected a probability")
    return text_of(given), float(chance)

  gold = lambda row: _right(row) if row["answers"] else []  # noqa: E731
  return Benchmark(SquadV2(na_threshold), gold, prediction, _squad, partial=True)


def _language(path: str) -> str | None:
  """Return the answers' language in `xquad.de.json`, `dev-context-de-question-en.json` (the
  context's) and the like."""
  name = pathlib.Path(path).name.lower()
  found = re.findall(r"context-([a-z]{2})\b", name) or [
    word for word in re.split(r"[^a-z]", name) if word in LANGUAGES
  ]
  return found[0] if len(set(found)) == 1 else None


def _mlqa(
  language: str | None = None, normalization: Literal["mlqa", "squad"] = "mlqa"
) -> Benchmark:
  def read(paths: Sequence[str]) -> list[Row]:
    spoken = language or _language(one(paths))
    if spoken not in LANGUAGES:
      raise UserError(
        f"{paths[0]}: found no language in the name, expected --language, one of "
        f"{', '.join(LANGUAGES)}"
      )
    return [(where, row | {"language": spoken}) for where, row in _squad(paths)]

  metric = MultilingualSquad(
    normalize_mlqa if normalization == "mlqa" else lambda text, _: normalize_squad(text)
  )
  gold = lambda row: (row["language"], _right(row))  # noqa: E731
  return Benchmark(metric, gold, read=read, partial=True, part=lambda path: _language(path) or path)


def _xquad(
  language: str | None = None, normalization: Literal["mlqa", "squad"] = "squad"
) -> Benchmark:
  return _mlqa(language, normalization)


def _record() -> Benchmark:
  def read(paths: Sequence[str]) -> list[Row]:
    found = official(one(paths), superglue.SUITE.tasks["record"].files, "validation")
    return [(where, {"id": row["idx"]["query"], "answers": row["answers"]}) for where, row in found]

  return texts("answers", read)


# Tags.


def _tags(metric: Metric, column: str) -> Benchmark:
  """Score tags; `column` is a number or, of CoNLL-U, a column's name or a key of MISC."""

  def read(paths: Sequence[str]) -> list[Row]:
    conllu = form(one(paths)) == "conllu"
    found = []
    for where, row in open_source(f"{'conllu' if conllu else 'conll'}:{paths[0]}").records("train"):
      columns = [values for name, values in row.items() if name != "tokens"]
      place = int(column) if re.fullmatch(r"-?\d+", column) else -1
      misc = [
        dict(pair.split("=", 1) for pair in one.split("|") if "=" in pair)
        for one in row.get("misc", ())
      ]
      if conllu and column not in row and any(column not in pairs for pairs in misc):
        raise UserError(f"{where}: no {column}= in MISC; --column is upos, xpos or a key of MISC")
      if not conllu and not -len(columns) <= place < len(columns):
        raise UserError(f"{where}: found {len(columns)} columns, expected a column {place}")
      tags = (row.get(column) or [pairs[column] for pairs in misc]) if conllu else columns[place]
      found.append((where, {"words": row["tokens"] if len(columns) > 1 else None, "tags": tags}))
    return found

  def checked(row: dict) -> list[str]:
    wrong = [
      tag for tag in row["tags"] if isinstance(metric, EntityF1) and not _ENTITY_TAG.match(tag)
    ]
    if wrong:
      raise ValueError(f"found the tag {wrong[0]!r}, expected O, or B-, I-, E- or S- and a type")
    return row["tags"]

  def prediction(given: Any, row: dict) -> list[str]:
    given = (
      given
      if isinstance(given, dict)
      else {"tags": given.split() if isinstance(given, str) else given}
    )
    if not isinstance(given["tags"], list) or not all(
      isinstance(tag, str) for tag in given["tags"]
    ):
      raise ValueError(f"found {str(given['tags'])[:40]!r}, expected a list of tags")
    if len(given["tags"]) != len(row["tags"]):
      raise ValueError(
        f"found {len(given['tags'])} tags, expected {len(row['tags'])}, one for each token"
      )
    for mine, theirs in zip(given.get("words") or (), row["words"] or ()):
      if mine != theirs:
        raise ValueError(f"found the token {mine!r}, expected {theirs!r}, as in the references")
    return checked(given)

  def given(path):
    return (read([path]), {}) if form(path) in ("conll", "conllu") else predictions(path)

  return Benchmark(metric, checked, prediction, read, given)


def _half(path: str) -> str:
  name = pathlib.Path(path).name.lower()
  return "mismatched" if "mismatched" in name or "-mm" in name else "matched"


def _level(row: dict) -> str | None:
  return next(
    (level for level in ("middle", "high") if str(row.get("example_id", "")).startswith(level)),
    None,
  )


def _suite(suite: str, tasks: dict[str, Task]) -> dict[str, Callable[..., Benchmark]]:
  """Return the benchmarks of a suite by name: `glue/rte`, and `glue/mnli_matched` for one of a
  task's evaluations."""
  return {
    f"{suite}/{name}" + f"_{label}" * (len(task.evaluated) > 1): {
      "multirc": _multirc,
      "record": _record,
    }.get(name)
    or _labels(task, split)
    for name, task in tasks.items()
    for label, split in task.evaluated.items()
  }


BENCHMARKS: dict[str, Callable[..., Benchmark]] = {
  **_suite("glue", glue.SUITE.tasks),
  **_suite("superglue", superglue.SUITE.tasks),
  "glue/mnli": _labels(glue.SUITE.tasks["mnli"], "validation_matched", part=_half),
  "glue/ax": _diagnostic(
    glue.SUITE.tasks["mnli"], "entailment", "neutral", "contradiction", label="Label"
  ),
  "superglue/axb": _diagnostic(superglue.SUITE.tasks["rte"], "entailment", "not_entailment"),
  "race": _labels(choices.SUITE.tasks["race_high"], group=_level),
  "swag": _labels(choices.SUITE.tasks["swag"]),
  "codah": _labels(choices.SUITE.tasks["codah"]),
  **dict.fromkeys(("arc", "openbookqa", "hellaswag", "mmlu"), _set(4)),
  **dict.fromkeys(("piqa", "copa", "winograd"), _set(2)),
  "siqa": _set(3, "1"),
  "csqa": _set(5),
  "winogrande": _set(2, "1"),
  "boolq": _set(labels=Choices("False", "True")),
  "squad": lambda: texts("answers", _squad, partial=True),
  "squad_v2": _squad_v2,
  "xquad": _xquad,
  "mlqa": _mlqa,
  "nq": lambda: texts("answers"),
  "webquestions": lambda: texts("answers", _of_suite(text.SUITE.tasks["web_questions"].files)),
  "triviaqa": lambda: texts("answers", normalization="triviaqa"),
  "lambada": lambda: texts("last_word", _parallel),
  **dict.fromkeys(("gsm8k", "svamp"), lambda: texts("final_number", wrong=True)),
  "pos": lambda column="upos": _tags(TagAccuracy(), str(column)),
  "ner": lambda column="NER": _tags(EntityF1(), str(column)),
  **{name: functools.partial(texts, name, _parallel) for name in ("bleu", "chrf", "rouge")},
}
