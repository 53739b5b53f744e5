"""Ask a model questions without training, by likelihood or generation; `tools.few_shot` describes
the files."""

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
from collections.abc import Callable, Iterable, Sequence
from typing import Any

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
NEW_TOKENS = 64  # of a generated answer, by default
WORKED_TOKENS = 256  # of a worked answer, as `max_gen_toks` of EleutherAI's harness
TEMPLATE = "ask a decoder by a chat template; published is its own (default: none)"
_TEXTS = (str, "a string")
_LISTS = (list, "a list")
_ANY = (object, "a value")
_INDEX = (int, "an index from 0")
# The keys of a row and their types, by kind; the most specific kind comes first.
_KINDS: dict[str, dict[str, tuple[type, str]]] = {
  "schema": {"context_options": _LISTS, "continuation": _TEXTS, "gold": _INDEX},
  "letters": {"question": _TEXTS, "choices": _LISTS, "answer": _TEXTS},
  "choices": {"query": _TEXTS, "choices": _LISTS, "gold": _INDEX},
  "words": {"context": _TEXTS, "continuation": _TEXTS},
  "answers": {"context": _TEXTS, "answer": _ANY},
  "texts": {"text": _TEXTS},
}
_SHARES = ("accuracy", "accuracy_norm", "exact_match")
_LIKELIEST = ("accuracy", "accuracy_norm", "examples", "truncated")
METRICS_OF_KIND = {  # of each kind
  **dict.fromkeys(("schema", "letters", "choices"), _LIKELIEST),
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
    kind: the way to ask them, a method of `Asker`.
    rows: the records.
    wheres: the place of each record in the file, for messages.
  """

  path: str
  kind: str
  rows: list[Record]
  wheres: list[str]


def find_files(patterns: Sequence[str]) -> dict[str, str]:
  """List the files of patterns by the first part of their names; raise UserError if none match or
  names collide."""
  found: dict[str, str] = {}
  for pattern in patterns:
    paths = globs.find_matches(pattern)
    if not paths:
      raise UserError(f"{pattern}: no such file of questions")
    for path in paths:
      name = pathlib.Path(path).name.split(".")[0]
      if name in found:
        raise UserError(
          f"{path}: found another file of the name {name!r}, {found[name]}; rename one of them"
        )
      found[name] = path
  return found


def read_questions(path: str) -> Questions:
  """Read the questions of a file of JSON lines, plain or compressed.

  Raises:
    UserError: there is no such file, no question or no known kind; or, naming the row, a key is
      missing or has the wrong type, or the answer is not among the choices.
  """
  source = open_source(f"jsonl:{path}")
  found = [
    (where, row) for where, row in source.records(source.splits[0]) if not isinstance(row, Skip)
  ]
  if not found:
    raise UserError(f"{path}: holds no questions: a score over zero examples is not defined")
  wheres, rows = map(list, zip(*found))
  kind = next((kind for kind, keys in _KINDS.items() if all(key in rows[0] for key in keys)), None)
  if kind is None:
    raise UserError(
      f"{wheres[0]}: found the keys {', '.join(rows[0])}, expected those of a kind of question; "
      "see --help"
    )
  for where, row in found:
    _check(where, row, kind)
  if kind == "texts":
    _check_words(path, rows)
  return Questions(path, kind, rows, wheres)


def _check(where: str, row: Record, kind: str) -> None:
  for key, (wanted, words) in _KINDS[kind].items():
    if key not in row:
      raise UserError(
        f"{where}: found the keys {', '.join(row)}, expected {', '.join(_KINDS[kind])} as in the "
        "first row"
      )
    if not isinstance(row[key], wanted) or isinstance(row[key], bool) and wanted is int:
      raise UserError(f"{where}: {key}: found a JSON {json_type_name(row[key])}, expected {words}")
  options = row.get("context_options" if kind == "schema" else "choices")
  if kind in ("words", "schema") and not row["continuation"].strip():
    raise UserError(f"{where}: continuation: found an empty text, expected words to score")
  if kind == "answers":
    right_texts(where, row)
  if kind in ("schema", "letters", "choices"):
    if kind == "letters" and len(options) > len(LETTERS):
      raise UserError(
        f"{where}: found {len(options)} choices, expected at most {len(LETTERS)}, "
        "one for each letter"
      )
    if not options or not all(isinstance(example, str) for example in options):
      raise UserError(f"{where}: found the choices {options!r}, expected at least one, all strings")
    right = LETTERS[: len(options)] if kind == "letters" else range(len(options))
    answer = row["answer" if kind == "letters" else "gold"]
    if answer not in list(right):
      raise UserError(
        f"{where}: found the answer {answer!r}, expected one of {', '.join(map(str, right))}"
      )


def _check_words(path: str, rows: Sequence[Record]) -> None:
  """Raise UserError if texts have no words, so that their perplexity is not defined."""
  if not any(row["text"].split() for row in rows):
    raise UserError(
      f"{path}: holds no text but white space: its perplexity is not defined; give texts with words"
    )


def right_texts(where: str, row: Record) -> list[str]:
  """Return the right answers of a row: those of `answer`, a text, a number or several, and of
  `aliases`.

  Raises:
    UserError: there is none, or something else stands among them.
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
  """Return whether the answer of a row follows from a chain of thought, so that its final number is
  judged."""
  return "chain_of_thought" in row or isinstance(row["answer"], str) and "####" in row["answer"]


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of asking.

  Attributes:
    shots: answered examples before each question.
    seed: the seed of their choice.
    limit: the number of questions of a file, from the first; None means all.
    stride: the stride of windows over texts; None is their length.
    max_new_tokens: the most tokens of a generated answer; None is `NEW_TOKENS`, or `WORKED_TOKENS`
      where the file has worked answers, but at most half of what the model reads.
    template: the chat template of a decoder, see `Prompts`; None asks without one.
  """

  shots: int = 0
  seed: int = 0
  limit: int | None = None
  stride: int | None = None
  max_new_tokens: int | None = None
  template: str | None = None


def build_letter_prompts(
  questions: Questions, examples: Questions, options: Options
) -> list[tuple[str, list[tuple[str, str]], int]]:
  """Return MMLU's prompts (Hendrycks et al. 2021), which score the letters of the choices after
  "Answer:".

  A header names the subject, if a row has one; answered examples of the subject's split dev follow
  it. Rows without a split in another file than the questions' are of this split too. The texts are
  those of EleutherAI's harness, equal to the published ones but for a second space before the
  subject in the latter.

  Returns:
    For each question that is not of the split dev its place, the (context, letter) of each choice,
    and the index of the right one.

  Raises:
    UserError: all questions are of the split dev, or there are fewer examples of a subject than
      shots.
  """
  by_subject = collections.defaultdict(list)
  for row in examples.rows:
    if row.get("split", "dev" if examples is not questions else None) == "dev":
      by_subject[row.get("subject")].append((_prompt(row), row))
  rows = [both for both in zip(questions.wheres, questions.rows) if both[1].get("split") != "dev"]
  if not rows:
    raise UserError(
      f"{questions.path}: all rows are of the split dev, expected questions of another"
    )

  def format_example(row: Record) -> str:
    choices_text = "".join(
      f"\n{letter}. {choice}" for letter, choice in zip(LETTERS, row["choices"])
    )
    return f"{row['question'].strip()}{choices_text}\nAnswer:"

  asked = []
  for where, row in rows[: options.limit]:
    subject = row.get("subject")
    own_prompt = _prompt(row)
    candidates = (
      [example for prompt, example in by_subject[subject] if prompt != own_prompt]
      if options.shots
      else []
    )
    if len(candidates) < options.shots:
      count = "1 example" if len(candidates) == 1 else f"{len(candidates) or 'no'} examples"
      raise UserError(
        f"{where}: found {count} of the split dev and the subject {subject!r} beside the question "
        f"in {examples.path}, expected {options.shots}; ask with fewer shots, or give a file of "
        "examples"
      )
    subject_text = str(subject).replace("_", " ")
    header = (
      f"The following are multiple choice questions (with answers) about {subject_text}.\n\n"
      if subject
      else ""
    )
    before = "".join(
      f"{format_example(example)} {example['answer']}\n\n"
      for example in candidates[: options.shots]
    )
    pairs = [
      (header + before + format_example(row), f" {letter}")
      for letter in LETTERS[: len(row["choices"])]
    ]
    asked.append((where, pairs, LETTERS.index(row["answer"])))
  return asked


def _prompt(row: Record) -> str:
  """Return what tells whether two rows ask the same: not their ids and answers, nor the order of
  their choices."""
  keys = [key for key in ("query", "question", "context", "context_options", "text") if key in row]
  asked = [" ".join(str(row[key]).split()).casefold() for key in keys]
  return json.dumps([asked, sorted(map(str, row.get("choices", ())))])


def describe_template(opened: Any, template: str | None) -> str:
  """Return a line on the chat template in which a `library.model.Model` is asked, or on one that it
  has."""
  if template is not None:
    return f"questions: asked by {published_template.describe(template, opened.vocabulary)}"
  own_prompt = opened.chat_template()
  return "questions: asked as plain texts" + (
    f"; --template={own_prompt} asks by its chat template" if own_prompt else ""
  )


def confidence_intervals(scores: dict[str, float]) -> dict[str, dict[str, float]]:
  """Return the 95 % interval of each share among the scores of a file, by its name."""
  return {
    name: resampling.wilson(scores[name], int(scores["examples"]))
    for name in _SHARES
    if name in scores
  }


def format_scores(scores: dict[str, float]) -> str:
  """Format the scores of a file, shares with their intervals."""
  around = confidence_intervals(scores)
  parts = []
  for name, value in scores.items():
    part = f"{name} {value:,.4g}"
    if name in around:
      part += " ({low:.1f} to {high:.1f})".format(**around[name])
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
    """Raise UserError if a file lacks examples for its questions, before it is asked."""
    if questions.kind == "letters":
      build_letter_prompts(questions, self._examples or questions, self._options)
    elif questions.kind != "texts":
      self._with_examples(questions, lambda row: "")

  def _with_examples(
    self, questions: Questions, format_example: Callable[[Record], str]
  ) -> list[tuple[str, Record, str]]:
    """Return for each question its place, its row, and its prefix of `shots` other rows with
    answers.

    Raises:
      UserError: there are fewer rows that ask something else than shots.
    """
    options = self._options
    examples = self._examples or questions
    pool = [(_prompt(row), row) for row in examples.rows]
    rows_with_examples = []
    for number, row in enumerate(questions.rows[: options.limit]):
      rng = random.Random(options.seed * 1_000_003 + number)
      own_prompt = _prompt(row)
      candidates = (
        [example for prompt, example in pool if prompt != own_prompt] if options.shots else []
      )
      if len(candidates) < options.shots:
        raise UserError(
          f"{questions.wheres[number]}: found {len(candidates)} other questions in "
          f"{examples.path}, expected {options.shots} for the examples before it; ask with "
          "fewer shots, or give a file of examples"
        )
      chosen = rng.sample(candidates, options.shots)
      rows_with_examples.append(
        (
          questions.wheres[number],
          row,
          "".join(f"{format_example(example)}\n\n" for example in chosen),
        )
      )
    return rows_with_examples

  def _choices(self, questions: Questions) -> dict[str, float]:
    join = lambda query, choice: query + ("" if query[-1:].isspace() else " ") + choice  # noqa: E731
    asked = []
    for where, row, before in self._with_examples(
      questions, lambda row: join(row["query"], row["choices"][row["gold"]])
    ):
      query = row["query"] if row["query"].endswith("\n") else row["query"].rstrip(" ")
      space = "" if query.endswith("\n") else " "
      asked.append(
        (where, [(before + query, f"{space}{choice}") for choice in row["choices"]], row["gold"])
      )
    return self._score_choices(asked)

  def _schema(self, questions: Questions) -> dict[str, float]:
    asked = self._with_examples(
      questions, lambda row: f"{row['context_options'][row['gold']]} {row['continuation']}"
    )
    return self._score_choices(
      (
        where,
        [(before + option, f" {row['continuation']}") for option in row["context_options"]],
        row["gold"],
      )
      for where, row, before in asked
    )

  def _letters(self, questions: Questions) -> dict[str, float]:
    return self._score_choices(
      build_letter_prompts(questions, self._examples or questions, self._options)
    )

  def _likelihoods(
    self, asked: Iterable[tuple[str, list[tuple[str, str]]]]
  ) -> list[list[ContinuationScore]]:
    """Score the (context, continuation) pairs of each question, which has a place."""
    pairs = []
    counts = []
    max_length = self._prompts.likelihood.longest_answer
    for where, texts in asked:
      counts.append(len(texts))
      pairs += [self._prompts.encode_pair(*text) for text in texts]
      longest = max(len(answer) for _, answer in pairs[-len(texts) :])
      if max_length is not None and longest > max_length:
        raise UserError(
          f"{where}: an answer has {longest} tokens, expected at most {max_length}, as many as the "
          "model reads; leave the row out or ask a model that reads more"
        )
    scores = iter(self._prompts.likelihood(pairs))
    return [list(itertools.islice(scores, count)) for count in counts]

  def _score_choices(
    self, questions: Iterable[tuple[str, list[tuple[str, str]], int]]
  ) -> dict[str, float]:
    """Score choices by likelihood; a question has a place, pairs and the index of the right one."""
    asked = list(questions)
    scores_of_questions = self._likelihoods((where, pairs) for where, pairs, _ in asked)
    hits = hits_norm = truncated = 0
    for (_, pairs, gold), part in zip(asked, scores_of_questions):
      scores = [choice.log_probability for choice in part]
      norms = [score / max(len(text.lstrip(" ")), 1) for score, (_, text) in zip(scores, pairs)]
      hits += scores.index(max(scores)) == gold
      hits_norm += norms.index(max(norms)) == gold
      truncated += any(choice.truncated for choice in part)
    share = 100.0 / len(asked)
    counts = {"examples": len(asked), "truncated": truncated}
    return {"accuracy": hits * share, "accuracy_norm": hits_norm * share} | counts

  def _words(self, questions: Questions) -> dict[str, float]:
    asked = self._with_examples(questions, lambda row: f"{row['context']} {row['continuation']}")
    pairs = (
      (where, [(before + row["context"].rstrip(), f" {row['continuation'].strip()}")])
      for where, row, before in asked
    )
    words = [word for (word,) in self._likelihoods(pairs)]
    mean = -sum(word.log_probability for word in words) / len(words)
    share = 100.0 * sum(word.greedy for word in words) / len(words)
    scores = {"accuracy": share, "perplexity": math.exp(min(mean, 700.0)), "examples": len(words)}
    return scores | {"truncated": sum(word.truncated for word in words)}

  def _answers(self, questions: Questions) -> dict[str, float]:
    """Generate answers; judge texts up to the end of the line, numbers up to the end of the
    paragraph.

    Each row is judged by its own answer: by the final number if that is a number, or ends a worked
    answer.
    """
    limit = self._options.limit
    rows = questions.rows[:limit]
    answers = [right_texts(where, row) for where, row in zip(questions.wheres[:limit], rows)]
    numbers = [_right_numbers(row, texts) for row, texts in zip(rows, answers)]

    def format_example(row: Record) -> str:
      answer = reference_texts(row["answer"])[0]
      if "chain_of_thought" in row and _right_numbers(row, [answer]):
        answer = f"{row['chain_of_thought']} #### {answer}"
      return f"{row['context']} {answer}"

    contexts = [
      self._prompts.encode(before + row["context"])
      for _, row, before in self._with_examples(questions, format_example)
    ]
    texts, truncated, unfinished = self._prompts.generate(contexts, self._new_tokens(rows))
    right = cut = 0
    for row_numbers, row_answers, text, is_unfinished in zip(numbers, answers, texts, unfinished):
      text = text.strip()
      end = "\n\n" if row_numbers else "\n"
      judged, ended, _ = text.partition(end)
      cut += is_unfinished and not ended
      if row_numbers:
        right += final_number(judged) in row_numbers
      else:
        right += any(_same_words(judged, answer) for answer in row_answers)
    counts = {
      "examples": len(rows),
      "truncated": sum(truncated),
      "empty": sum(not text.strip() for text in texts),
    }
    return {"exact_match": 100.0 * right / len(rows), **counts, "unfinished": cut}

  def _new_tokens(self, rows: Sequence[Record]) -> int:
    """Return the most tokens of a generated answer."""
    if self._options.max_new_tokens is not None:
      return self._options.max_new_tokens
    wanted = WORKED_TOKENS if any(map(is_worked, rows)) else NEW_TOKENS
    likelihood = self._prompts.likelihood
    limits = [likelihood.longest // 2, likelihood.longest_answer]
    return max(1, min(wanted, *(limit for limit in limits if limit is not None)))

  def _texts(self, questions: Questions) -> dict[str, float]:
    """Score every token of each text once; see `Likelihood.rolling_log_probability`."""
    if self._prompts.both:
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
      counts.update(
        tokens=len(ids), words=len(row["text"].split()), bytes=len(row["text"].encode())
      )
    per = {name: math.exp(min(nats / counts[name], 700.0)) for name in ("tokens", "words")}
    return {
      "perplexity_per_token": per["tokens"],
      "perplexity_per_word": per["words"],
      "bits_per_byte": nats / math.log(2) / counts["bytes"],
      **{name: float(count) for name, count in counts.items()},
    }


def _right_numbers(row: Record, answers: list[str]) -> set[str]:
  """Return the numbers that are right if the final number of a text is judged; none if its words
  are."""
  if is_worked(row):
    numbers = {final_number(answer) for answer in answers}
  else:
    numbers = {final_number(answer) if is_number(answer) else None for answer in answers}
  return set() if None in numbers else numbers


def _same_words(text: str, answer: str) -> bool:
  """Return whether a text is an answer, normalised as in TriviaQA, or as it is if the answer has no
  words."""
  words = normalize_trivia_qa(answer)
  return normalize_trivia_qa(text) == words if words else text.strip() == answer.strip()
