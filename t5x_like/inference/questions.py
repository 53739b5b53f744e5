"""Read files of questions, and turn questions into the prompts that a model reads.

`tools.few_shot` describes the files; `asking.py` asks the model.
"""

import collections
import dataclasses
import json
import pathlib
import random
import string
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from t5x_like.corpora.sources import Record, Skip, json_type_name, open_source
from t5x_like.errors import UserError
from t5x_like.files import globs
from t5x_like.metrics.answers import final_number, is_number
from t5x_like.metrics.texts import reference_texts

LETTERS = string.ascii_uppercase
TEMPLATE = "ask a decoder by a chat template; published is its own (default: none)"
_STRING = (str, "a string")
_LIST = (list, "a list")
_ANY = (object, "a value")
_INDEX = (int, "an index from 0")
# The keys of a row and their types, by kind; the most specific kind comes first.
_KINDS: dict[str, dict[str, tuple[type, str]]] = {
  "schema": {"context_options": _LIST, "continuation": _STRING, "gold": _INDEX},
  "letters": {"question": _STRING, "choices": _LIST, "answer": _STRING},
  "choices": {"query": _STRING, "choices": _LIST, "gold": _INDEX},
  "words": {"context": _STRING, "continuation": _STRING},
  "answers": {"context": _STRING, "answer": _ANY},
  "texts": {"text": _STRING},
}
# The main score of a kind of question; it is accuracy for other kinds.
SCORES = {"answers": "exact_match", "texts": "bits_per_byte"}


@dataclasses.dataclass(frozen=True)
class Questions:
  """The questions of a file, all of one kind.

  Attributes:
    path: the file.
    kind: the form of the questions; one of `_KINDS`.
    rows: the records.
    locations: the file and line of each record, for error messages.
  """

  path: str
  kind: str
  rows: list[Record]
  locations: list[str]


class Prompt(NamedTuple):
  """A question as a model reads it.

  Attributes:
    where: the file and line of the question, for messages.
    pairs: (context, continuation) of each choice. A text to score has no context, and an answer to
      generate no continuation.
    gold: the index of the right choice.
    row: the record, by which a generated answer is judged.
    unconditional: pairs with the same continuations after a context without the question; () if
      the rule needs none.
  """

  where: str
  pairs: list[tuple[str, str]]
  gold: int = 0
  row: Record | None = None
  unconditional: Sequence[tuple[str, str]] = ()


@dataclasses.dataclass(frozen=True)
class PromptSet:
  """The questions of a file or of a task of a suite.

  Attributes:
    path: the file, for messages.
    prompts: the questions.
    rule: how a model answers, and how its answers are judged; a key of `asking.RULES`.
    division: how tokens are divided into context and continuation; a key of `asking.DIVISIONS`.
    max_new_tokens: the most tokens of a generated answer; None is a default of `asking`.
    stride: the stride of windows over texts; None is their length.
  """

  path: str
  prompts: list[Prompt]
  rule: str
  division: str = "by text"
  max_new_tokens: int | None = None
  stride: int | None = None


class ShotQuestion(NamedTuple):
  """A question with answered examples.

  Attributes:
    where: the file and line of the question, for messages.
    row: the record.
    prefix: the text of the examples.
  """

  where: str
  row: Record
  prefix: str


def find_files(patterns: Sequence[str]) -> dict[str, str]:
  """List the files of patterns by the first part of their names.

  Raises:
    UserError: a pattern matches no file, or names collide.
  """
  paths_by_name: dict[str, str] = {}
  for pattern in patterns:
    paths = globs.find_matches(pattern)
    if not paths:
      raise UserError(f"{pattern}: no such file of questions; check the path")
    for path in paths:
      name = pathlib.Path(path).name.split(".")[0]
      if name in paths_by_name:
        raise UserError(
          f"{path}: found another file of the name {name!r}, {paths_by_name[name]}; rename one of "
          "them"
        )
      paths_by_name[name] = path
  return paths_by_name


def read_questions(path: str) -> Questions:
  """Read the questions of a file of JSON lines, plain or compressed.

  Raises:
    UserError: there is no such file, no question or no known kind; or, in a row that the message
      names, a key is missing or has the wrong type, or the answer is not among the choices.
  """
  source = open_source(f"jsonl:{path}")
  locations = []
  rows = []
  for where, row in source.records(source.splits[0]):
    if not isinstance(row, Skip):
      locations.append(where)
      rows.append(row)
  if not rows:
    raise UserError(f"{path}: holds no questions: a score over zero examples is not defined")
  kind = _find_kind(rows[0])
  if kind is None:
    raise UserError(
      f"{locations[0]}: found the keys {', '.join(rows[0])}, expected the keys of a kind of "
      "question; see --help"
    )
  return check_questions(path, kind, rows, locations)


def check_questions(path: str, kind: str, rows: list[Record], locations: list[str]) -> Questions:
  """Return the questions of rows, whose keys must be their kind's; raise UserError otherwise."""
  for where, row in zip(locations, rows):
    _check_row(where, row, kind)
  if kind == "texts":
    _check_words(path, rows)
  return Questions(path, kind, rows, locations)


def _find_kind(row: Record) -> str | None:
  """Return the first kind whose keys are all in a row; None if there is none."""
  for kind, keys in _KINDS.items():
    if all(key in row for key in keys):
      return kind
  return None


def _check_row(where: str, row: Record, kind: str) -> None:
  """Raise UserError if a row lacks a key of its kind, or has a wrong value."""
  for key, (key_type, expected) in _KINDS[kind].items():
    if key not in row:
      raise UserError(
        f"{where}: found the keys {', '.join(row)}, expected {', '.join(_KINDS[kind])} as in the "
        "first row"
      )
    is_boolean = key_type is int and isinstance(row[key], bool)
    if not isinstance(row[key], key_type) or is_boolean:
      raise UserError(
        f"{where}: {key}: found a JSON {json_type_name(row[key])}, expected {expected}"
      )
  if kind in ("words", "schema") and not row["continuation"].strip():
    raise UserError(f"{where}: continuation: found an empty text, expected words to score")
  if kind == "answers":
    right_texts(where, row)
  elif kind == "schema":
    _check_choices(where, row["context_options"], row["gold"])
  elif kind == "choices":
    _check_choices(where, row["choices"], row["gold"])
  elif kind == "letters":
    _check_choices(where, row["choices"], row["answer"], LETTERS)


def _check_choices(where: str, choices: list, answer: Any, letters: str | None = None) -> None:
  """Raise UserError if choices are no strings, or the answer is not an index or letter of one."""
  if letters is not None and len(choices) > len(letters):
    raise UserError(
      f"{where}: found {len(choices)} choices, expected at most {len(letters)}, one for each letter"
    )
  if not choices or not all(isinstance(choice, str) for choice in choices):
    raise UserError(f"{where}: found the choices {choices!r}, expected at least one, all strings")
  answers = list(range(len(choices))) if letters is None else list(letters[: len(choices)])
  if answer not in answers:
    raise UserError(
      f"{where}: found the answer {answer!r}, expected one of {', '.join(map(str, answers))}"
    )


def _check_words(path: str, rows: Sequence[Record]) -> None:
  """Raise UserError if texts have no words, so that their perplexity is not defined."""
  if not any(row["text"].split() for row in rows):
    raise UserError(
      f"{path}: holds no text but white space: its perplexity is not defined; give texts with words"
    )


def right_texts(where: str, row: Record) -> list[str]:
  """Return the right answers of a row.

  They are `answer`, a text, a number or a list of them, and `aliases`.

  Raises:
    UserError: there is none, or one is of another type.
  """
  texts = []
  for key in ("answer", "aliases"):
    try:
      texts += reference_texts(row.get(key))
    except ValueError as error:
      raise UserError(f"{where}: {key}: {error}") from None
    if key == "answer" and not any(text.strip() for text in texts):
      raise UserError(
        f"{where}: answer: found {json.dumps(row[key])[:40]}, expected a text, a number or a list "
        "of them"
      )
  return [text for text in texts if text.strip()]


def is_worked(row: Record) -> bool:
  """Return whether a row has a worked answer, of which the final number is judged."""
  if "chain_of_thought" in row:
    return True
  return isinstance(row["answer"], str) and "####" in row["answer"]


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of asking questions.

  Attributes:
    shots: answered examples before each question.
    seed: the seed for the choice of examples.
    limit: the number of questions of a file, from the first; None means all.
    stride: the stride of windows over texts; None is their length.
    max_new_tokens: the most tokens of a generated answer; None is a default of `asking`.
  """

  shots: int = 0
  seed: int = 0
  limit: int | None = None
  stride: int | None = None
  max_new_tokens: int | None = None


def build_letter_prompts(
  questions: Questions, examples: Questions, options: Options
) -> list[Prompt]:
  """Return MMLU's prompts, which score the letters of the choices (Hendrycks et al. 2021).

  A header names the subject, if a row has one; answered examples of the subject's split dev follow
  it. Rows without a split belong to dev if they are in another file than the questions. The texts
  equal the texts of EleutherAI's harness; the published ones have a second space before the
  subject.

  Returns:
    The prompts of each question that is not of the split dev, with letters as continuations.

  Raises:
    UserError: all questions are of the split dev, or there are fewer examples of a subject than
      shots.
  """
  default_split = "dev" if examples is not questions else None
  examples_by_subject = collections.defaultdict(list)
  for row in examples.rows:
    if row.get("split", default_split) == "dev":
      examples_by_subject[row.get("subject")].append(row)
  located_rows = []
  for where, row in zip(questions.locations, questions.rows):
    if row.get("split") != "dev":
      located_rows.append((where, row))
  if not located_rows:
    raise UserError(
      f"{questions.path}: all rows are of the split dev, expected questions of another"
    )
  prompts = []
  for where, row in located_rows[: options.limit]:
    subject = row.get("subject")
    shots = _other_questions(examples_by_subject[subject], row) if options.shots else []
    if len(shots) < options.shots:
      count = "1 example" if len(shots) == 1 else f"{len(shots) or 'no'} examples"
      raise UserError(
        f"{where}: found {count} of the split dev and the subject {subject!r} for the question "
        f"in {examples.path}, expected {options.shots}; ask with fewer shots, or give a file of "
        "examples"
      )
    context = ""
    if subject:
      subject_text = str(subject).replace("_", " ")
      context = (
        f"The following are multiple choice questions (with answers) about {subject_text}.\n\n"
      )
    for example in shots[: options.shots]:
      context += f"{_format_letter_question(example)} {example['answer']}\n\n"
    context += _format_letter_question(row)
    pairs = [(context, f" {letter}") for letter in LETTERS[: len(row["choices"])]]
    prompts.append(Prompt(where, pairs, LETTERS.index(row["answer"])))
  return prompts


def _format_letter_question(row: Record) -> str:
  lines = [row["question"].strip()]
  for letter, choice in zip(LETTERS, row["choices"]):
    lines.append(f"{letter}. {choice}")
  lines.append("Answer:")
  return "\n".join(lines)


def _other_questions(examples: Sequence[Record], row: Record) -> list[Record]:
  """Return the examples whose question is not the row's."""
  key = _question_key(row)
  return [example for example in examples if _question_key(example) != key]


def _question_key(row: Record) -> str:
  """Return a key that is equal for rows with the same question.

  It ignores their ids and answers, and the order of their choices.
  """
  texts = []
  for key in ("query", "question", "context", "context_options", "text"):
    if key in row:
      texts.append(" ".join(str(row[key]).split()).casefold())
  return json.dumps([texts, sorted(map(str, row.get("choices", ())))])


def build_prompts(
  questions: Questions, options: Options, examples: Questions | None = None
) -> PromptSet:
  """Return the prompts of a file's questions, with their answered examples.

  Args:
    questions: the questions.
    options: the options of asking.
    examples: the source of answered examples; None is the questions themselves.

  Raises:
    UserError: there are too few examples, or examples of another kind.
  """
  if examples and examples.kind != questions.kind:
    raise UserError(
      f"{examples.path}: holds questions of the kind {examples.kind!r}, expected "
      f"{questions.kind!r}, as {questions.path} has"
    )
  examples = examples or questions
  if questions.kind == "letters":
    prompts = build_letter_prompts(questions, examples, options)
  elif questions.kind == "texts":
    _check_words(questions.path, questions.rows[: options.limit])
    prompts = []
    for where, row in zip(questions.locations[: options.limit], questions.rows):
      prompts.append(Prompt(where, [("", row["text"])]))
  else:
    format_example = _EXAMPLE_FORMATS[questions.kind]
    build = _PROMPT_BUILDERS[questions.kind]
    prompts = []
    for question in _choose_examples(questions, examples, options, format_example):
      prompts.append(build(question))
  rule = "choices" if questions.kind in ("letters", "schema") else questions.kind
  return PromptSet(
    questions.path,
    prompts,
    rule,
    max_new_tokens=options.max_new_tokens,
    stride=options.stride,
  )


def _choose_examples(
  questions: Questions,
  examples: Questions,
  options: Options,
  format_example: Callable[[Record], str],
) -> list[ShotQuestion]:
  """Return each question with the text of `shots` answered examples.

  Raises:
    UserError: there are fewer rows with other questions than shots.
  """
  pool = [(_question_key(row), row) for row in examples.rows]
  shot_questions = []
  for number, row in enumerate(questions.rows[: options.limit]):
    rng = random.Random(options.seed * 1_000_003 + number)
    candidates = []
    if options.shots:
      row_key = _question_key(row)
      candidates = [example for key, example in pool if key != row_key]
    if len(candidates) < options.shots:
      raise UserError(
        f"{questions.locations[number]}: found {len(candidates)} other questions in "
        f"{examples.path}, expected {options.shots} for the examples before it; ask with "
        "fewer shots, or give a file of examples"
      )
    shots = rng.sample(candidates, options.shots)
    prefix = "".join(f"{format_example(example)}\n\n" for example in shots)
    shot_questions.append(ShotQuestion(questions.locations[number], row, prefix))
  return shot_questions


def _format_choice(row: Record) -> str:
  query = row["query"]
  space = "" if query[-1:].isspace() else " "
  return query + space + row["choices"][row["gold"]]


def _format_schema(row: Record) -> str:
  return f"{row['context_options'][row['gold']]} {row['continuation']}"


def _format_words(row: Record) -> str:
  return f"{row['context']} {row['continuation']}"


def _format_answer(row: Record) -> str:
  answer = reference_texts(row["answer"])[0]
  if "chain_of_thought" in row and right_numbers(row, [answer]):
    answer = f"{row['chain_of_thought']} #### {answer}"
  return f"{row['context']} {answer}"


_EXAMPLE_FORMATS: dict[str, Callable[[Record], str]] = {
  "choices": _format_choice,
  "schema": _format_schema,
  "words": _format_words,
  "answers": _format_answer,
}


def _build_choice_prompt(question: ShotQuestion) -> Prompt:
  row = question.row
  if row["query"].endswith("\n"):
    context = question.prefix + row["query"]
    pairs = [(context, choice) for choice in row["choices"]]
  else:
    context = question.prefix + row["query"].rstrip(" ")
    pairs = [(context, f" {choice}") for choice in row["choices"]]
  return Prompt(question.where, pairs, row["gold"])


def _build_schema_prompt(question: ShotQuestion) -> Prompt:
  continuation = f" {question.row['continuation']}"
  options = question.row["context_options"]
  pairs = [(question.prefix + option, continuation) for option in options]
  return Prompt(question.where, pairs, question.row["gold"])


def _build_words_prompt(question: ShotQuestion) -> Prompt:
  context = question.prefix + question.row["context"].rstrip()
  return Prompt(question.where, [(context, f" {question.row['continuation'].strip()}")])


def _build_answer_prompt(question: ShotQuestion) -> Prompt:
  context = question.prefix + question.row["context"]
  return Prompt(question.where, [(context, "")], row=question.row)


_PROMPT_BUILDERS: dict[str, Callable[[ShotQuestion], Prompt]] = {
  "choices": _build_choice_prompt,
  "schema": _build_schema_prompt,
  "words": _build_words_prompt,
  "answers": _build_answer_prompt,
}


def right_numbers(row: Record, answers: list[str]) -> set[str]:
  """Return the right numbers if the final number of a text is judged, else none."""
  numbers = set()
  for answer in answers:
    number = final_number(answer) if is_worked(row) or is_number(answer) else None
    if number is None:
      return set()
    numbers.add(number)
  return numbers
