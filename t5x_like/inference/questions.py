"""Ask a model questions without training, by likelihood or by generation.

`tools.few_shot` describes the files.
"""

import collections
import dataclasses
import itertools
import json
import math
import pathlib
import random
import string
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from t5x_like.corpora.sources import Record, Skip, json_type_name, open_source
from t5x_like.data.supervised import published_template
from t5x_like.errors import UserError
from t5x_like.files import globs
from t5x_like.inference.likelihood import ContinuationScore
from t5x_like.inference.prompts import Prompts
from t5x_like.metrics import resampling
from t5x_like.metrics.answers import final_number, is_number, normalize_trivia_qa
from t5x_like.metrics.texts import reference_texts

LETTERS = string.ascii_uppercase
NEW_TOKENS = 64  # the most of a generated answer, by default
WORKED_TOKENS = 256  # the most of a worked answer: `max_gen_toks` of EleutherAI's harness
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
_PERCENTAGES = ("accuracy", "accuracy_norm", "exact_match")
_CHOICE_METRICS = ("accuracy", "accuracy_norm", "examples", "truncated")
METRICS_OF_KIND = {
  "schema": _CHOICE_METRICS,
  "letters": _CHOICE_METRICS,
  "choices": _CHOICE_METRICS,
  "words": ("accuracy", "perplexity", "examples", "truncated"),
  "answers": ("exact_match", "examples", "truncated", "empty", "unfinished"),
  "texts": (
    "perplexity_per_token",
    "perplexity_per_word",
    "bits_per_byte",
    "tokens",
    "words",
    "bytes",
  ),
}
# the main score; accuracy for the other kinds
SCORES = {"answers": "exact_match", "texts": "bits_per_byte"}


@dataclasses.dataclass(frozen=True)
class Questions:
  """The questions of a file, all of one kind.

  Attributes:
    path: the file.
    kind: the form of the questions, which names a method of `Asker`.
    rows: the records.
    locations: the file and line of each record, for messages.
  """

  path: str
  kind: str
  rows: list[Record]
  locations: list[str]


class ScoredPrompts(NamedTuple):
  """The texts of a question that is answered by likelihood.

  Attributes:
    where: the file and line of the question, for messages.
    pairs: (context, continuation) of each choice.
    gold: the index of the right choice.
  """

  where: str
  pairs: list[tuple[str, str]]
  gold: int


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
      raise UserError(f"{pattern}: no such file of questions")
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
    UserError: there is no such file, no question or no known kind; or, naming the row, a key is
      missing or has the wrong type, or the answer is not among the choices.
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
      f"{locations[0]}: found the keys {', '.join(rows[0])}, expected those of a kind of question; "
      "see --help"
    )
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
    max_new_tokens: the most tokens of a generated answer; None is `NEW_TOKENS`, or `WORKED_TOKENS`
      where the file has worked answers, but at most half of what the model reads.
    template: the chat template of a decoder, see `Prompts`; None is no template.
  """

  shots: int = 0
  seed: int = 0
  limit: int | None = None
  stride: int | None = None
  max_new_tokens: int | None = None
  template: str | None = None


def build_letter_prompts(
  questions: Questions, examples: Questions, options: Options
) -> list[ScoredPrompts]:
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
    prompts.append(ScoredPrompts(where, pairs, LETTERS.index(row["answer"])))
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


def describe_template(opened: Any, template: str | None) -> str:
  """Describe in a line the chat template of the prompts, or else the template that the model has.

  Args:
    opened: the model, a `library.model.Model`.
  """
  if template is not None:
    return f"questions: asked by {published_template.describe(template, opened.vocabulary)}"
  description = "questions: asked as plain texts"
  default_template = opened.chat_template()
  if default_template:
    description += f"; --template={default_template} asks by its chat template"
  return description


def confidence_intervals(scores: dict[str, float]) -> dict[str, dict[str, float]]:
  """Return the 95 % interval of each percentage among the scores of a file, by its name."""
  intervals = {}
  for name in _PERCENTAGES:
    if name in scores:
      intervals[name] = resampling.wilson(scores[name], int(scores["examples"]))
  return intervals


def format_scores(scores: dict[str, float]) -> str:
  """Format the scores of a file, percentages with their intervals."""
  intervals = confidence_intervals(scores)
  parts = []
  for name, score in scores.items():
    part = f"{name} {score:,.4g}"
    if name in intervals:
      part += resampling.format_interval(intervals[name])
    parts.append(part)
  return ", ".join(parts)


class Progress:
  """Reports on stderr how many rows of a file are done, at most every `SECONDS`.

  Args:
    name: the name of the file.
  """

  SECONDS = 10.0

  def __init__(self, name: str):
    self._name = name
    self._last = time.monotonic()

  def __call__(self, done: int, total: int) -> None:
    if time.monotonic() - self._last >= self.SECONDS:
      self._last = time.monotonic()
      print(f"{self._name}: {done} of {total} rows", file=sys.stderr, flush=True)


class Asker:
  """A callable that asks a model the questions of files.

  Contexts longer than the model reads lose their beginning, as in EleutherAI's harness; `truncated`
  is the number of questions with any truncated context.

  Args:
    opened: the model, a `library.model.Model`.
    options: the options of asking.
    examples: the source of answered examples; None is the file of the question itself.
  """

  def __init__(self, opened: Any, options: Options, examples: Questions | None = None):
    self._options = options
    self._examples = examples
    self._prompts = Prompts(opened, template=options.template)

  def __call__(self, questions: Questions) -> dict[str, float]:
    """Ask the questions; return the scores and counts. Accuracy and exact match are in percent.

    Raises:
      UserError: an answer is too long for the model, or running text is given to an
        encoder-decoder.
    """
    if self._examples and self._examples.kind != questions.kind:
      raise UserError(
        f"{self._examples.path}: holds questions of the kind {self._examples.kind!r}, expected "
        f"{questions.kind!r}, as {questions.path} has"
      )
    return getattr(self, f"_{questions.kind}")(questions)

  def check(self, questions: Questions) -> None:
    """Raise UserError if a file lacks examples for its questions."""
    if questions.kind == "letters":
      build_letter_prompts(questions, self._examples or questions, self._options)
    elif questions.kind != "texts":
      self._choose_examples(questions, lambda row: "")

  def _choose_examples(
    self, questions: Questions, format_example: Callable[[Record], str]
  ) -> list[ShotQuestion]:
    """Return each question with the text of `shots` answered examples.

    Raises:
      UserError: there are fewer rows with other questions than shots.
    """
    options = self._options
    examples = self._examples or questions
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

  def _choices(self, questions: Questions) -> dict[str, float]:
    def format_example(row: Record) -> str:
      query = row["query"]
      space = "" if query[-1:].isspace() else " "
      return query + space + row["choices"][row["gold"]]

    prompts = []
    for where, row, prefix in self._choose_examples(questions, format_example):
      if row["query"].endswith("\n"):
        context = prefix + row["query"]
        pairs = [(context, choice) for choice in row["choices"]]
      else:
        context = prefix + row["query"].rstrip(" ")
        pairs = [(context, f" {choice}") for choice in row["choices"]]
      prompts.append(ScoredPrompts(where, pairs, row["gold"]))
    return self._score_choices(prompts)

  def _schema(self, questions: Questions) -> dict[str, float]:
    def format_example(row: Record) -> str:
      return f"{row['context_options'][row['gold']]} {row['continuation']}"

    prompts = []
    for where, row, prefix in self._choose_examples(questions, format_example):
      continuation = f" {row['continuation']}"
      pairs = [(prefix + option, continuation) for option in row["context_options"]]
      prompts.append(ScoredPrompts(where, pairs, row["gold"]))
    return self._score_choices(prompts)

  def _letters(self, questions: Questions) -> dict[str, float]:
    examples = self._examples or questions
    return self._score_choices(build_letter_prompts(questions, examples, self._options))

  def _likelihoods(self, prompts: Sequence[ScoredPrompts]) -> list[list[ContinuationScore]]:
    """Return the scores of the choices of each question."""
    pairs = []
    max_length = self._prompts.likelihood.longest_answer
    for question in prompts:
      for context, continuation in question.pairs:
        context_ids, answer_ids = self._prompts.encode_pair(context, continuation)
        if max_length is not None and len(answer_ids) > max_length:
          raise UserError(
            f"{question.where}: an answer has {len(answer_ids)} tokens, expected at most "
            f"{max_length}, as many as the model reads; leave the row out or ask a model that "
            "reads more"
          )
        pairs.append((context_ids, answer_ids))
    scores = iter(self._prompts.likelihood(pairs))
    return [list(itertools.islice(scores, len(question.pairs))) for question in prompts]

  def _score_choices(self, prompts: Sequence[ScoredPrompts]) -> dict[str, float]:
    """Return the accuracy of the likeliest choices, and of the likeliest for their length."""
    num_right = 0
    num_right_norm = 0
    num_truncated = 0
    for question, choices in zip(prompts, self._likelihoods(prompts)):
      scores = [choice.log_probability for choice in choices]
      norms = []
      for score, (_, continuation) in zip(scores, question.pairs):
        norms.append(score / max(len(continuation.lstrip(" ")), 1))
      num_right += scores.index(max(scores)) == question.gold
      num_right_norm += norms.index(max(norms)) == question.gold
      num_truncated += any(choice.truncated for choice in choices)
    percent = 100.0 / len(prompts)
    return {
      "accuracy": num_right * percent,
      "accuracy_norm": num_right_norm * percent,
      "examples": len(prompts),
      "truncated": num_truncated,
    }

  def _words(self, questions: Questions) -> dict[str, float]:
    def format_example(row: Record) -> str:
      return f"{row['context']} {row['continuation']}"

    prompts = []
    for where, row, prefix in self._choose_examples(questions, format_example):
      pair = (prefix + row["context"].rstrip(), f" {row['continuation'].strip()}")
      prompts.append(ScoredPrompts(where, [pair], gold=0))
    scores = [score for (score,) in self._likelihoods(prompts)]
    mean_nats = -sum(score.log_probability for score in scores) / len(scores)
    return {
      "accuracy": 100.0 * sum(score.greedy for score in scores) / len(scores),
      "perplexity": math.exp(min(mean_nats, 700.0)),
      "examples": len(scores),
      "truncated": sum(score.truncated for score in scores),
    }

  def _answers(self, questions: Questions) -> dict[str, float]:
    """Generate answers; judge texts up to the end of the line, numbers up to the paragraph's.

    Each row is judged by its own answer: by the final number if that is a number, or ends a worked
    answer.
    """
    limit = self._options.limit
    rows = questions.rows[:limit]
    answers = [right_texts(where, row) for where, row in zip(questions.locations[:limit], rows)]
    numbers = [_right_numbers(row, texts) for row, texts in zip(rows, answers)]

    def format_example(row: Record) -> str:
      answer = reference_texts(row["answer"])[0]
      if "chain_of_thought" in row and _right_numbers(row, [answer]):
        answer = f"{row['chain_of_thought']} #### {answer}"
      return f"{row['context']} {answer}"

    contexts = []
    for _, row, prefix in self._choose_examples(questions, format_example):
      contexts.append(self._prompts.encode(prefix + row["context"]))
    texts, truncated, unfinished = self._prompts.generate(contexts, self._new_tokens(rows))
    num_right = 0
    num_unfinished = 0
    for row_numbers, row_answers, text, is_unfinished in zip(numbers, answers, texts, unfinished):
      end = "\n\n" if row_numbers else "\n"
      judged_text, end_mark, _ = text.strip().partition(end)
      num_unfinished += is_unfinished and not end_mark
      if row_numbers:
        num_right += final_number(judged_text) in row_numbers
      else:
        num_right += any(_same_words(judged_text, answer) for answer in row_answers)
    return {
      "exact_match": 100.0 * num_right / len(rows),
      "examples": len(rows),
      "truncated": sum(truncated),
      "empty": sum(not text.strip() for text in texts),
      "unfinished": num_unfinished,
    }

  def _new_tokens(self, rows: Sequence[Record]) -> int:
    """Return the most tokens of a generated answer."""
    if self._options.max_new_tokens is not None:
      return self._options.max_new_tokens
    new_tokens = WORKED_TOKENS if any(map(is_worked, rows)) else NEW_TOKENS
    likelihood = self._prompts.likelihood
    new_tokens = min(new_tokens, likelihood.longest // 2)
    if likelihood.longest_answer is not None:
      new_tokens = min(new_tokens, likelihood.longest_answer)
    return max(1, new_tokens)

  def _texts(self, questions: Questions) -> dict[str, float]:
    """Score every token of each text once; see `Likelihood.rolling_log_probability`."""
    if self._prompts.is_encoder_decoder:
      raise UserError(
        f"{questions.path}: the model is an encoder-decoder, which gives running "
        "text no probability"
      )
    _check_words(questions.path, questions.rows[: self._options.limit])
    nats = 0.0
    counts = collections.Counter()
    for row in questions.rows[: self._options.limit]:
      ids = self._prompts.encode(row["text"], special=False)
      nats -= self._prompts.likelihood.rolling_log_probability(
        ids, self._prompts.start_id, self._options.stride
      )
      counts["tokens"] += len(ids)
      counts["words"] += len(row["text"].split())
      counts["bytes"] += len(row["text"].encode())
    return {
      "perplexity_per_token": math.exp(min(nats / counts["tokens"], 700.0)),
      "perplexity_per_word": math.exp(min(nats / counts["words"], 700.0)),
      "bits_per_byte": nats / math.log(2) / counts["bytes"],
      "tokens": float(counts["tokens"]),
      "words": float(counts["words"]),
      "bytes": float(counts["bytes"]),
    }


def _right_numbers(row: Record, answers: list[str]) -> set[str]:
  """Return the right numbers if the final number of a text is judged, else none."""
  numbers = set()
  for answer in answers:
    number = final_number(answer) if is_worked(row) or is_number(answer) else None
    if number is None:
      return set()
    numbers.add(number)
  return numbers


def _same_words(text: str, answer: str) -> bool:
  """Return whether a text equals an answer after TriviaQA's normalisation.

  Answers without words are compared as they are.
  """
  words = normalize_trivia_qa(answer)
  return normalize_trivia_qa(text) == words if words else text.strip() == answer.strip()
