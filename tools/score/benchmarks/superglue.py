"""SuperGLUE (Wang et al. 2019): JSONL references, and JSONL predictions as in its submissions."""

from typing import Any

from t5x_like.errors import UserError
from t5x_like.metrics.multirc import MultiRc
from t5x_like.metrics.squad import Answers
from tools.score.benchmark import Benchmark, Example, one_file, text
from tools.score.files import File, read, strings, table
from tools.score.labels import task
from tools.score.predictions import Predictions, load_texts


def _multirc_examples(paths) -> list[Example]:
  """One example per question; its context is the ids of its answer options."""
  file = read(one_file(paths))
  examples = []
  for line, row in table(file):
    try:
      for question in row["passage"]["questions"]:
        labels = [int(answer["label"]) for answer in question["answers"]]
        ids = [str(answer["idx"]) for answer in question["answers"]]
        examples.append(Example(f"{row['idx']}/{question['idx']}", labels, context=ids))
    except (KeyError, TypeError, ValueError) as error:
      expected = "expected idx and passage.questions[] with idx and answers[] of idx, label"
      raise UserError(f"{file.path}, line {line}: {error!r}; {expected}") from error
  return examples


def _multirc_predictions(path: str) -> Predictions:
  """A label for each answer option: nested as submitted, or flat, `{"idx": {"paragraph", "question", "answer"}}`."""
  file = read(path)
  if file.values() is None:
    raise UserError(f"{path}: expected JSONL as in SuperGLUE's submissions")
  found: dict[str, dict[str, Any]] = {}
  places = {}
  for line, row in table(file):
    for passage, question, answer, label in _multirc_labels(file, line, row):
      name = f"{passage}/{question}"
      if str(answer) in found.setdefault(name, {}):
        raise UserError(f"{path}, line {line}: answer {answer} of question {name} stands twice")
      found[name][str(answer)] = label
      places.setdefault(name, f"{path}, line {line}, question {name}")
  return Predictions(path, list(found.values()), list(places.values()), list(found))


def _multirc_labels(file: File, line: int, row: dict) -> list[tuple]:
  try:
    if "passage" in row:
      return [
        (row["idx"], question["idx"], answer["idx"], answer["label"])
        for question in row["passage"]["questions"]
        for answer in question["answers"]
      ]
    idx = row["idx"]
    return [(idx["paragraph"], idx["question"], idx["answer"], row["prediction" if "prediction" in row else "label"])]
  except (KeyError, TypeError) as error:
    expected = "expected idx and passage.questions[] with idx and answers[] of idx, label"
    raise UserError(f"{file.path}, line {line}: {error!r}; {expected}") from error


def _multirc_prediction(value: dict[str, Any], example: Example) -> list[int]:
  missing = [answer for answer in example.context if answer not in value]
  if missing or len(value) > len(example.context):
    raise ValueError(f"labels for the answers {', '.join(value)}, expected {', '.join(example.context)}")
  labels = [value[answer] for answer in example.context]
  wrong = [label for label in labels if str(label) not in ("0", "1", "True", "False")]
  if wrong:
    raise ValueError(f"found the label {wrong[0]!r}, expected 0 or 1")
  return [int(str(label) in ("1", "True")) for label in labels]


def _multirc() -> Benchmark:
  return Benchmark(MultiRc(), _multirc_examples, _multirc_prediction, predictions=_multirc_predictions)


def _record_examples(paths) -> list[Example]:
  """SuperGLUE's JSONL, or ReCoRD's own JSON, whose `data` holds the same with ids for idx."""
  file = read(one_file(paths))
  rows = table(file, under="data")
  examples = []
  for line, row in rows:
    try:
      for query in row["qas"]:
        answers = strings([answer["text"] for answer in query["answers"]])
        examples.append(Example(str(query["idx"] if "idx" in query else query["id"]), answers))
    except (KeyError, TypeError) as error:
      raise UserError(f"{file.path}, line {line}: {error!r}; expected qas[] with idx and answers[].text") from error
  without = [example.id for example in examples if not example.reference]
  if without:
    raise UserError(
      f"{file.path}: {len(without)} queries have no answers ({', '.join(without[:5])}): unlabelled test set?"
    )
  return examples


def _record() -> Benchmark:
  return Benchmark(Answers(), _record_examples, text, predictions=load_texts)


BENCHMARKS = {
  "superglue/boolq": task("false|no", "true|yes"),
  "superglue/cb": task("entailment", "contradiction", "neutral", scores=("accuracy", "macro_f1")),
  "superglue/copa": task("0|choice1", "1|choice2"),
  "superglue/multirc": _multirc,
  "superglue/record": _record,
  "superglue/rte": task("entailment", "not_entailment"),
  "superglue/wic": task("false|no", "true|yes"),
  "superglue/wsc": task("false|no", "true|yes"),
  "superglue/axb": task("entailment", "not_entailment", scores=("matthews_correlation", "accuracy")),
}
