"""Questions with textual answers: SQuAD 1.1 and 2.0, XQuAD, MLQA; and without context NQ, WebQuestions, TriviaQA."""

import math
import pathlib
import re
from collections.abc import Callable
from typing import Any, Literal

from t5x_like.errors import UserError
from t5x_like.metrics.answers import normalize_mlqa, normalize_squad, normalize_trivia_qa
from t5x_like.metrics.squad import Answers, AnswersOrNone, LocalAnswers
from tools.score.benchmark import Benchmark, Example, one_file, text
from tools.score.files import File, first_of, read, strings, table
from tools.score.predictions import load_texts

LANGUAGES = ("ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh")
_EXPECTED = "expected SQuAD's JSON: data[].paragraphs[].qas[] with id and answers[].text"


def squad_examples(paths, answerable: bool = True) -> list[Example]:
  """Examples of SQuAD's JSON, or of rows `{"id", "answers": {"text": […]}}` (TFDS, Hugging Face).

  Args:
    answerable: whether every question must have an answer.
  """
  file = read(one_file(paths))
  rows = table(file)
  try:
    if "data" in rows[0][1]:
      rows = [
        (1, question) for article in rows[0][1]["data"] for part in article["paragraphs"] for question in part["qas"]
      ]
    examples = [Example(str(row["id"]), _texts(row["answers"])) for _, row in rows]
  except (KeyError, TypeError, IndexError) as error:
    raise UserError(f"{file.path}: {error!r}; {_EXPECTED}") from error
  without = [example.id for example in examples if not example.reference]
  if answerable and without:
    shown = ", ".join(without[:5])
    raise UserError(f"{file.path}: {len(without)} questions have no answers: {shown}; squad_v2 scores such a file")
  return examples


def _texts(answers: Any) -> list[str]:
  return strings(list(answers["text"]) if isinstance(answers, dict) else [answer["text"] for answer in answers])


def _squad() -> Benchmark:
  return Benchmark(Answers(), squad_examples, text, predictions=load_texts, partial=True)


def _squad_v2(na_probabilities: str | None = None, na_threshold: float = 1.0) -> Benchmark:
  probability = _probabilities(na_probabilities)
  return Benchmark(
    AnswersOrNone(na_threshold),
    lambda paths: squad_examples(paths, answerable=False),
    lambda value, example: (text(value, example), probability(example.id)),
    predictions=load_texts,
    partial=True,
  )


def _probabilities(path: str | None) -> Callable[[str], float]:
  """The no-answer probability of each question, from a JSON file `{id: probability}`; 0 without a file."""
  if path is None:
    return lambda name: 0.0
  given = load_texts(path)
  by_id = dict(zip(given.ids or (), zip(given.values, given.places)))

  def of(name: str) -> float:
    if name not in by_id:
      raise UserError(f"{path}: no probability for the question {name}, which has a prediction")
    value, place = by_id[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
      raise UserError(f"{place}: found {value!r}, expected a probability")
    return float(value)

  return of


def _language(path: str) -> str | None:
  """The answers' language in `xquad.de.json`, `dev-context-de-question-en.json` (MLQA: the context's) and the like."""
  name = pathlib.Path(path).name.lower()
  context = re.search(r"context-([a-z]{2})\b", name)
  found = [context[1]] if context else [word for word in re.split(r"[^a-z]", name) if word in LANGUAGES]
  return found[0] if len(set(found)) == 1 else None


def _part(path: str) -> str:
  return _language(path) or path


def _multilingual(language: str | None = None, normalization: Literal["mlqa", "squad"] = "mlqa") -> Benchmark:
  if language is not None and language not in LANGUAGES:
    raise UserError(f"--language={language}: expected one of {', '.join(LANGUAGES)}")

  def examples(paths) -> list[Example]:
    spoken = language or _language(one_file(paths))
    if spoken is None:
      raise UserError(f"{paths[0]}: found no language in the name, expected --language, one of {', '.join(LANGUAGES)}")
    found = squad_examples(paths)
    return [Example(one.id, (spoken, one.reference)) for one in found]

  metric = LocalAnswers(normalize_mlqa) if normalization == "mlqa" else LocalAnswers(lambda s, _: normalize_squad(s))
  return Benchmark(metric, examples, text, predictions=load_texts, partial=True, part=_part)


def _open_examples(paths) -> list[Example]:
  """Rows of JSON or JSONL with a question and its answers; see `_open_answers`. TriviaQA's are under `Data`."""
  file = read(one_file(paths))
  if file.values() is None:
    raise UserError(f"{file.path}: expected JSON or JSONL with a question and its answers in every row")
  rows = table(file, under="Data")
  return [_open_example(file, line, row, str(number)) for number, (line, row) in enumerate(rows)]


def _open_example(file: File, line: int, row: dict, number: str) -> Example:
  question = first_of(row, ("question", "Question", "qText", "utterance", "context"))
  name = first_of(row, ("id", "qId", "QuestionId", "question_id", "example_id", "idx"))
  try:
    answers = _open_answers(row)
  except TypeError:  # neither a string nor strings
    answers = []
  if not answers or not all(isinstance(answer, str) for answer in answers):
    raise UserError(f"{file.path}, line {line}: no answers; found {', '.join(row)}, expected answer, answers or Answer")
  aliases = () if question is None else (str(question), str(question).strip().lower())
  return Example(number if name is None else str(name), answers, (number, *aliases))


def _open_answers(row: dict) -> list[str]:
  """`answers` or `answer` (text or texts), with `aliases`; TriviaQA's `Answer`; WebQuestions' `targetValue`."""
  if isinstance(row.get("Answer"), dict):
    answer = row["Answer"]
    return [*(answer.get("NormalizedAliases") or answer.get("Aliases") or []), *answer.get("HumanAnswers", [])]
  if isinstance(row.get("targetValue"), str):
    found = re.findall(r'\(description (?:"((?:[^"\\]|\\.)*)"|([^()"]+))\)', row["targetValue"])
    return [quoted.replace('\\"', '"') or bare for quoted, bare in found]
  answers = first_of(row, ("answers", "answer"))
  if isinstance(answers, dict):  # TFDS trivia_qa
    answers = [*(answers.get("normalized_aliases") or answers.get("aliases") or [answers.get("value")])]
  answers = [answers] if isinstance(answers, str) else list(answers or ())
  return [str(answer) for answer in [*answers, *row.get("aliases", ())] if answer is not None]


def _open(normalize: Callable[[str], str]) -> Callable[[], Benchmark]:
  return lambda: Benchmark(Answers(normalize), _open_examples, text, predictions=load_texts)


BENCHMARKS = {
  "squad": _squad,
  "squad_v2": _squad_v2,
  "xquad": _multilingual,
  "mlqa": _multilingual,
  "nq": _open(normalize_squad),
  "webquestions": _open(normalize_squad),
  "triviaqa": _open(normalize_trivia_qa),
}
