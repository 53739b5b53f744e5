"""Declare every benchmark by name: the reader of its references and its metric.

An entry of `BENCHMARKS` is a function that returns a `Benchmark`; its arguments are flags of the
benchmark. Tasks with their official files, class names and scores come from
`t5x_like/benchmarks/suites/`, metrics of texts with their options from `t5x_like/metrics/texts.py`.
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

from .choices import Choices, choices_of_row
from .files import Predictions, Row, file_format, prediction_key, predictions, records, rows

# Treatment of predictions that are not labels: stop, or count them as wrong.
Invalid = Literal["refuse", "wrong"]
LANGUAGES = ("ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh")
_TEXT_FIELDS = (
  "references",
  "reference",
  "targets",
  "target",
  "summary",
  "highlights",
  "translation",
)
_TEXT_FIELDS += ("Answer", "answers", "answer", "continuation", "text")
_ALIAS_FIELDS = ("NormalizedAliases", "normalized_aliases", "Aliases", "aliases", "value", "text")
_GOLD_FIELDS = ("gold", "answerKey", "correct_answer", "label", "answer")
_TABLES = {"tsv", "csv", "jsonl"}
_ENTITY_TAG = re.compile(r"O$|[BIES]-.")


def text_of(prediction: Any, row: Any = None) -> str:
  """Return a free-text prediction: a string, or a number as written."""
  if isinstance(prediction, bool) or not isinstance(prediction, str | int | float):
    raise ValueError(f"found {prediction!r}, expected a text")
  return str(prediction)


def only_path(paths: Sequence[str]) -> str:
  """Return the only path of a benchmark whose references are one file."""
  if len(paths) != 1:
    raise UserError(f"--references: found {len(paths)} files, expected one: {', '.join(paths)}")
  return paths[0]


@dataclasses.dataclass(frozen=True)
class Benchmark:
  """Functions and options that score one benchmark.

  Attributes:
    metric: metric of the benchmark.
    gold: function that converts a row of the references to the metric's reference, or raises
      ValueError.
    prediction: function that converts (a value in the file, the row) to the metric's prediction, or
      raises ValueError.
    read: function that reads the paths of --references and returns (location, row) of each example.
    read_predictions: function that reads a file of predictions.
    group: function that returns a row's subset, such as a subject, which is also scored separately.
    partial: allow missing predictions, which the metric receives as None, and predictions of
      unknown examples, which are counted. Otherwise both are refused.
    invalid_is_wrong: count predictions for which `prediction` raises ValueError as wrong. Otherwise
      they are refused.
    part: function that returns the part of a file by its name, for several pairs of references and
      predictions.
  """

  metric: Metric
  gold: Callable[[Any], Any]
  prediction: Callable[[Any, Any], Any] = text_of
  read: Callable[[Sequence[str]], list[Row]] = lambda paths: records(only_path(paths))
  read_predictions: Callable[[str], Predictions] = predictions
  group: Callable[[Any], str | None] = lambda row: None
  partial: bool = False
  invalid_is_wrong: bool = False
  part: Callable[[str], str] | None = None


def read_official(path: str, files: Files, split: str, fields: Sequence[str] = ()) -> list[Row]:
  """Return the rows of a suite's file or, in its archive's directory, of a split or of `test`."""
  if not pathlib.Path(path).is_dir():
    format_of_path = file_format(path)
    if {format_of_path, files.format} <= _TABLES:
      files = dataclasses.replace(files, format=format_of_path)
    path = f"{split}={path}"
  elif files.format == "race":
    path = f"{split}={path}/**/*.txt"
  source = open_source(files.source, fields=tuple(fields), data_dir=path)
  records_of_split = source.records(split if split in source.splits else "test")
  return [(where, row) for where, row in records_of_split if not isinstance(row, Skip)]


# Labels and choices.


def _labels(
  task: Task, split: str = "validation", part=None, group=lambda row: None
) -> Callable[..., Benchmark]:
  """Score the labels, numbers or options of a suite's task."""
  arguments = task.encoder.task
  field = arguments.get("label_field", "label")
  is_regression = arguments["name"] == "classification" and "labels" not in arguments
  labels = [str(label) for label in arguments.get("labels", range(arguments.get("choices", 0)))]
  if is_regression:
    metric = Correlation()
    parse = _number
  else:
    metric = Classification(len(labels), task.encoder.evaluator["scores"])
    parse = Choices(*labels)

  def build(invalid: Invalid = "refuse") -> Benchmark:
    return Benchmark(
      metric,
      gold=lambda row: parse(row[field]),
      prediction=parse,
      read=lambda paths: read_official(only_path(paths), task.files, split, (field,)),
      group=group,
      invalid_is_wrong=invalid == "wrong" and not is_regression,
      part=part,
    )

  return build


def _number(prediction: Any, row: Any = None) -> float:
  """Parse a number of a regression; raise ValueError for anything else."""
  try:
    number = float(prediction)
  except (TypeError, ValueError):
    number = math.nan
  if not math.isfinite(number):
    raise ValueError(f"found {str(prediction)[:40]!r}, expected a number (0 to 5)")
  return number


def _diagnostic(task: Task, *classes: str, **fields: str) -> Callable[..., Benchmark]:
  """Score a diagnostic set, whose file is an argument, by the scores of both leaderboards."""
  encoder = dataclasses.replace(
    task.encoder,
    task=task.encoder.task | {"labels": list(classes)},
    evaluator={"scores": ("matthews_correlation", "accuracy")},
  )
  files = Files(
    "diagnostic", task.files.format, {"validation": ["diagnostic"]}, (), fields, {"label": classes}
  )
  return _labels(dataclasses.replace(task, encoder=encoder, files=files))


def _question_set(
  number: int = 4, first: str = "0", labels: Choices | None = None
) -> Callable[..., Benchmark]:
  """Score questions whose rows name a gold choice.

  Args:
    number: the choices of a question whose row does not show them.
    first: the label of the first choice, where labels are digits.
    labels: the choices, where they are the same for all questions.
  """

  def gold_of(row: dict) -> Any:
    for field in _GOLD_FIELDS:
      if row.get(field) is not None:
        return row[field]
    expected = ", ".join(_GOLD_FIELDS)
    raise ValueError(f"no gold choice; found {', '.join(row)}, expected one of {expected}")

  def choice_index(prediction: Any, row: dict) -> int:
    parse = labels or choices_of_row(row, gold_of(row), number, first)
    return parse(prediction)

  def build(invalid: Invalid = "refuse", split: str | None = None) -> Benchmark:
    return Benchmark(
      Accuracy(),
      gold=lambda row: choice_index(gold_of(row), row),
      prediction=choice_index,
      read=lambda paths: _read_questions(paths, split),
      group=lambda row: row.get("subject"),
      invalid_is_wrong=invalid == "wrong",
    )

  return build


def _read_questions(paths: Sequence[str], split: str | None) -> list[Row]:
  """Return the rows of questions, with labels from a second file if there is one (PIQA, SIQA)."""
  question_path, *label_paths = sorted(paths, key=lambda path: ".lst" in path)
  questions = []
  for where, row in rows(question_path, ("question", *"ABCD", "answer"), _GOLD_FIELDS):
    questions.append((where, row if isinstance(row, dict) else {"gold": row.strip()}))
  if label_paths:
    labels = rows(only_path(label_paths))
    if len(labels) != len(questions):
      raise UserError(
        f"{label_paths[0]}: found {len(labels)} labels, expected {len(questions)}, one for each "
        f"row of {question_path}"
      )
    labelled = []
    for (where, row), (_, label) in zip(questions, labels):
      labelled.append((where, row | {"gold": label.strip()}))
    questions = labelled
  return [(where, row) for where, row in questions if split in (None, row.get("split"))]


def _group_answers(answer_rows: list[Row], key: str) -> list[Row]:
  """Return a row for each question of MultiRC: its name, and its answers' labels from `key`."""
  questions: dict[str, Row] = {}
  for where, row in answer_rows:
    try:
      idx = row["idx"]
      label = row[key]
      name = f"{idx['paragraph']}/{idx['question']}"
      answer = str(idx["answer"])
    except (KeyError, TypeError) as error:
      raise UserError(
        f"{where}: {error!r}; expected passage.questions[], or idx with answer, and a label"
      ) from None
    if name not in questions:
      questions[name] = (where, {"name": name, "labels": {}})
    labels = questions[name][1]["labels"]
    if answer in labels:
      raise UserError(f"{where}: answer {answer} of question {name} appears twice")
    labels[answer] = label
  return list(questions.values())


def _multirc() -> Benchmark:
  files = dataclasses.replace(superglue.SUITE.tasks["multirc"].files, classes={})

  def read(paths: Sequence[str]) -> list[Row]:
    return _group_answers(read_official(only_path(paths), files, "validation"), "label")

  def read_predictions(path: str) -> Predictions:
    predicted_rows = records(path)
    if "passage" in predicted_rows[0][1]:
      questions = _group_answers(read_official(path, files, "test"), "label")
    else:
      questions = _group_answers(predicted_rows, prediction_key(predicted_rows))
    ids = {"name": [row["name"] for _, row in questions]}
    return [(where, row["labels"]) for where, row in questions], ids

  def parse_labels(labels: dict[str, Any], row: dict) -> list[int]:
    expected = row["labels"]
    if labels.keys() != expected.keys():
      raise ValueError(
        f"found labels for the answers {', '.join(labels)}, expected {', '.join(expected)}"
      )
    return [Choices("False", "True")(labels[answer]) for answer in expected]

  return Benchmark(
    MultiRc(),
    gold=lambda row: parse_labels(row["labels"], row),
    prediction=parse_labels,
    read=read,
    read_predictions=read_predictions,
  )


# Texts.


def _gold_texts(row: Any) -> list[str]:
  """Return a row's correct texts, from the first of _TEXT_FIELDS that it has and from `aliases`.

  A row may also be a text, or a tuple of rows, one of each file.
  """
  if isinstance(row, tuple):
    return [text for file_row in row for text in _gold_texts(file_row)]
  record = row if isinstance(row, dict) else {"text": row}
  field = next((name for name in _TEXT_FIELDS if record.get(name) is not None), "text")
  values = record.get(field)
  if isinstance(values, dict):  # TriviaQA's; SQuAD's as in TFDS
    values = _alias_texts(values)
  elif values is None:
    values = []
  elif not isinstance(values, list):
    values = [values]
  texts = [_plain_text(value) for value in values]
  if not texts and "id" in record and field == "answers":
    raise ValueError(f"the question {record['id']} has no answers; squad_v2 scores such a file")
  if not texts or not all(isinstance(text, str) for text in texts):
    expected = f"one of {', '.join(_TEXT_FIELDS)}"
    raise ValueError(f"no answers or texts; found {texts[:1] or list(record)}, expected {expected}")
  return [*texts, *reference_texts(record.get("aliases"))]


def _alias_texts(values: dict[str, Any]) -> list[Any]:
  """Return the texts of an answer with aliases, from the first non-empty field of aliases."""
  aliases = next((values[field] for field in _ALIAS_FIELDS if values.get(field)), [])
  if isinstance(aliases, str):
    aliases = [aliases]
  return [*aliases, *values.get("HumanAnswers", ())]


def _plain_text(value: Any) -> Any:
  """Return the text of an answer, or a number as text; any other value unchanged."""
  if isinstance(value, dict):
    value = value.get("text")
  if isinstance(value, int | float) and not isinstance(value, bool):
    return str(value)
  return value


def _read_parallel(paths: Sequence[str]) -> list[Row]:
  """Read the lines or records of one file, or tuples of those with the same number in several."""
  files = [rows(path) for path in paths]
  for path, file in zip(paths, files):
    if len(file) != len(files[0]):
      raise UserError(
        f"{path}: found {len(file)} texts, expected {len(files[0])}, as in {paths[0]}"
      )
  if len(files) == 1:
    return files[0]
  parallel = []
  for same_number in zip(*files):
    where, _ = same_number[0]
    parallel.append((where, tuple(row for _, row in same_number)))
  return parallel


def _suite_reader(files: Files) -> Callable[[Sequence[str]], list[Row]]:
  """Return a reader of a suite's file of questions, or of JSON lines (TFDS, Hugging Face)."""
  split = list(files.splits)[-1]

  def read(paths: Sequence[str]) -> list[Row]:
    path = only_path(paths)
    return records(path) if file_format(path) == "jsonl" else read_official(path, files, split)

  return read


def texts(
  name: str,
  read: Callable[[Sequence[str]], list[Row]] | None = None,
  partial: bool = False,
  invalid_is_wrong: bool = False,
  **options: Any,
) -> Benchmark:
  """Score texts by a metric of `METRICS`."""
  text_metric = METRICS[name](**options)
  read = read or (lambda paths: records(only_path(paths)))

  def gold(row: Any) -> Any:
    answer = text_metric.reference(_gold_texts(row))
    if answer is None:
      text = _gold_texts(row)[0]
      raise ValueError(f"found {text[:40]!r}, expected an answer with a number")
    return answer

  def parse(prediction: Any, row: Any) -> Any:
    answer = text_metric.prediction(text_of(prediction))
    if invalid_is_wrong and not answer:
      raise ValueError
    return answer

  return Benchmark(
    text_metric.metric, gold, parse, read, partial=partial, invalid_is_wrong=invalid_is_wrong
  )


_read_squad = _suite_reader(squad.FILES)


def _squad_v2(na_probabilities: str | None = None, na_threshold: float = 1.0) -> Benchmark:
  probabilities = {}
  if na_probabilities:
    entries, ids = predictions(na_probabilities)
    probabilities = dict(zip(next(iter(ids.values()), ()), entries))

  def parse(prediction: Any, row: dict) -> tuple[str, float]:
    text = text_of(prediction)
    if not na_probabilities:
      return text, 0.0
    if row["id"] not in probabilities:
      raise UserError(
        f"{na_probabilities}: no probability for the question {row['id']}, which has a prediction"
      )
    location, value = probabilities[row["id"]]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
      raise UserError(f"{location}: found {value!r}, expected a probability")
    return text, float(value)

  def gold(row: dict) -> list[str]:
    return _gold_texts(row) if row["answers"] else []

  return Benchmark(SquadV2(na_threshold), gold, parse, _read_squad, partial=True)


def _language(path: str) -> str | None:
  """Return the answers' language by a file's name, such as `xquad.de.json`; None if it is unclear.

  For `dev-context-de-question-en.json` it is the language of the context.
  """
  name = pathlib.Path(path).name.lower()
  languages = re.findall(r"context-([a-z]{2})\b", name)
  if not languages:
    languages = [part for part in re.split(r"[^a-z]", name) if part in LANGUAGES]
  return languages[0] if len(set(languages)) == 1 else None


def _mlqa(
  language: str | None = None, normalization: Literal["mlqa", "squad"] = "mlqa"
) -> Benchmark:
  def read(paths: Sequence[str]) -> list[Row]:
    answer_language = language or _language(only_path(paths))
    if answer_language not in LANGUAGES:
      raise UserError(
        f"{paths[0]}: found no language in the name, expected --language, one of "
        f"{', '.join(LANGUAGES)}"
      )
    return [(where, row | {"language": answer_language}) for where, row in _read_squad(paths)]

  def normalize(text: str, language: str) -> str:
    return normalize_mlqa(text, language) if normalization == "mlqa" else normalize_squad(text)

  return Benchmark(
    MultilingualSquad(normalize),
    gold=lambda row: (row["language"], _gold_texts(row)),
    read=read,
    partial=True,
    part=lambda path: _language(path) or path,
  )


def _xquad(
  language: str | None = None, normalization: Literal["mlqa", "squad"] = "squad"
) -> Benchmark:
  return _mlqa(language, normalization)


def _record() -> Benchmark:
  def read(paths: Sequence[str]) -> list[Row]:
    rows = read_official(only_path(paths), superglue.SUITE.tasks["record"].files, "validation")
    return [(where, {"id": row["idx"]["query"], "answers": row["answers"]}) for where, row in rows]

  return texts("answers", read)


# Tags.


def _tags(metric: Metric, column: str) -> Benchmark:
  """Score tags; `column` is a number or, in CoNLL-U, the name of a column or a key of MISC."""

  def read(paths: Sequence[str]) -> list[Row]:
    path = only_path(paths)
    if file_format(path) == "conllu":
      return _read_conllu(path, column)
    return _read_conll(path, column)

  def check_tags(row: dict) -> list[str]:
    if isinstance(metric, EntityF1):
      for tag in row["tags"]:
        if not _ENTITY_TAG.match(tag):
          raise ValueError(f"found the tag {tag!r}, expected O, or B-, I-, E- or S- and a type")
    return row["tags"]

  def parse(prediction: Any, row: dict) -> list[str]:
    if isinstance(prediction, str):
      prediction = prediction.split()
    if not isinstance(prediction, dict):
      prediction = {"tags": prediction}
    tags = prediction["tags"]
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
      raise ValueError(f"found {str(tags)[:40]!r}, expected a list of tags")
    if len(tags) != len(row["tags"]):
      raise ValueError(f"found {len(tags)} tags, expected {len(row['tags'])}, one for each token")
    for token, expected in zip(prediction.get("words") or (), row["words"] or ()):
      if token != expected:
        raise ValueError(f"found the token {token!r}, expected {expected!r}, as in the references")
    return check_tags(prediction)

  def read_predictions(path: str) -> Predictions:
    if file_format(path) in ("conll", "conllu"):
      return read([path]), {}
    return predictions(path)

  return Benchmark(metric, check_tags, parse, read, read_predictions)


def _read_conllu(path: str, column: str) -> list[Row]:
  """Return the words and tags of sentences in CoNLL-U: of a column, or of a key of MISC."""
  sentences = []
  for where, row in open_source(f"conllu:{path}").records("train"):
    tags = row.get(column, [])
    if column not in row:
      for features in row.get("misc", ()):
        pairs = dict(pair.split("=", 1) for pair in features.split("|") if "=" in pair)
        if column not in pairs:
          raise UserError(f"{where}: no {column}= in MISC; --column is upos, xpos or a key of MISC")
        tags.append(pairs[column])
    sentences.append((where, {"words": row["tokens"], "tags": tags}))
  return sentences


def _read_conll(path: str, column: str) -> list[Row]:
  """Return the words and tags of sentences in CoNLL: of a column by its number, or of the last."""
  index = int(column) if re.fullmatch(r"-?\d+", column) else -1
  sentences = []
  for where, row in open_source(f"conll:{path}").records("train"):
    columns = [values for name, values in row.items() if name != "tokens"]
    if not -len(columns) <= index < len(columns):
      raise UserError(f"{where}: found {len(columns)} columns, expected a column {index}")
    words = row["tokens"] if len(columns) > 1 else None
    sentences.append((where, {"words": words, "tags": columns[index]}))
  return sentences


def _mnli_part(path: str) -> str:
  """Return the part of MNLI's validation set that a file name states."""
  name = pathlib.Path(path).name.lower()
  return "mismatched" if "mismatched" in name or "-mm" in name else "matched"


def _level(row: dict) -> str | None:
  """Return the school level of an example of RACE."""
  for level in ("middle", "high"):
    if str(row.get("example_id", "")).startswith(level):
      return level
  return None


def evaluation_name(suite: str, name: str, task: Task, label: str) -> str:
  """Return `glue/rte`, or `glue/mnli_matched` for one of a task's evaluations."""
  suffix = f"_{label}" if len(task.evaluated) > 1 else ""
  return f"{suite}/{name}{suffix}"


def _suite(suite: str, tasks: dict[str, Task]) -> dict[str, Callable[..., Benchmark]]:
  """Return the benchmarks of a suite by name."""
  builders = {"multirc": _multirc, "record": _record}
  benchmarks = {}
  for name, task in tasks.items():
    for label, split in task.evaluated.items():
      build = builders.get(name) or _labels(task, split)
      benchmarks[evaluation_name(suite, name, task, label)] = build
  return benchmarks


BENCHMARKS: dict[str, Callable[..., Benchmark]] = {
  **_suite("glue", glue.SUITE.tasks),
  **_suite("superglue", superglue.SUITE.tasks),
  "glue/mnli": _labels(glue.SUITE.tasks["mnli"], "validation_matched", part=_mnli_part),
  "glue/ax": _diagnostic(
    glue.SUITE.tasks["mnli"], "entailment", "neutral", "contradiction", label="Label"
  ),
  "superglue/axb": _diagnostic(superglue.SUITE.tasks["rte"], "entailment", "not_entailment"),
  "race": _labels(choices.SUITE.tasks["race_high"], group=_level),
  "swag": _labels(choices.SUITE.tasks["swag"]),
  "codah": _labels(choices.SUITE.tasks["codah"]),
  **dict.fromkeys(("arc", "openbookqa", "hellaswag", "mmlu"), _question_set(4)),
  **dict.fromkeys(("piqa", "copa", "winograd"), _question_set(2)),
  "siqa": _question_set(3, "1"),
  "csqa": _question_set(5),
  "winogrande": _question_set(2, "1"),
  "boolq": _question_set(labels=Choices("False", "True")),
  "squad": lambda: texts("answers", _read_squad, partial=True),
  "squad_v2": _squad_v2,
  "xquad": _xquad,
  "mlqa": _mlqa,
  "nq": lambda: texts("answers"),
  "webquestions": lambda: texts("answers", _suite_reader(text.SUITE.tasks["web_questions"].files)),
  "triviaqa": lambda: texts("answers", normalization="triviaqa"),
  "lambada": lambda: texts("last_word", _read_parallel),
  **dict.fromkeys(("gsm8k", "svamp"), lambda: texts("final_number", invalid_is_wrong=True)),
  "pos": lambda column="upos": _tags(TagAccuracy(), str(column)),
  "ner": lambda column="NER": _tags(EntityF1(), str(column)),
  **{name: functools.partial(texts, name, _read_parallel) for name in ("bleu", "chrf", "rouge")},
}
