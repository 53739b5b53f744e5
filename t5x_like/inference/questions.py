"""Ask a model questions without training, by likelihood or generation; `tools.few_shot` describes the files."""

import collections
import dataclasses
import itertools
import json
import math
import pathlib
import random
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from t5x_like.corpora.sources import Record, Skip, kind_of, open_source
from t5x_like.errors import UserError
from t5x_like.files import globs
from t5x_like.inference.likelihood import Scored
from t5x_like.inference.prompts import Prompts
from t5x_like.metrics.answers import final_number, normalize_trivia_qa

LETTERS = "ABCDE"
_NUMBER = re.compile(r"-?\$?[\d,]*\.?\d+")
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
_LIKELIEST = ("accuracy", "accuracy_norm", "examples", "truncated")
METRICS = {  # of each kind
  **dict.fromkeys(("schema", "letters", "choices"), _LIKELIEST),
  "words": ("accuracy", "perplexity", "examples", "truncated"),
  "answers": ("exact_match", "examples", "truncated", "empty"),
  "texts": ("perplexity_per_token", "perplexity_per_word", "bits_per_byte", "tokens", "words", "bytes"),
}
SCORES = {"answers": "exact_match", "texts": "bits_per_byte"}  # the main score; accuracy for the other kinds


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


def files(patterns: Sequence[str]) -> dict[str, str]:
  """List the files of patterns by the first part of their names; raise UserError if none match or names collide."""
  found: dict[str, str] = {}
  for pattern in patterns:
    paths = globs.matches(pattern)
    if not paths:
      raise UserError(f"{pattern}: no such file of questions")
    for path in paths:
      name = pathlib.Path(path).name.split(".")[0]
      if name in found:
        raise UserError(f"{path}: found another file of the name {name!r}, {found[name]}; rename one of them")
      found[name] = path
  return found


def read(path: str) -> Questions:
  """Read the questions of a file of JSON lines, plain or compressed.

  Raises:
    UserError: there is no such file, no question or no known kind; or, naming the row, a key is missing or has the
      wrong type, or the answer is not among the choices.
  """
  source = open_source(f"jsonl:{path}")
  found = [(where, row) for where, row in source.records(source.splits[0]) if not isinstance(row, Skip)]
  if not found:
    raise UserError(f"{path}: holds no questions: a score over zero examples is not defined")
  wheres, rows = map(list, zip(*found))
  kind = next((kind for kind, keys in _KINDS.items() if all(key in rows[0] for key in keys)), None)
  if kind is None:
    raise UserError(
      f"{wheres[0]}: found the keys {', '.join(rows[0])}, expected those of a kind of question; see --help"
    )
  for where, row in found:
    _check(where, row, kind)
  return Questions(path, kind, rows, wheres)


def _check(where: str, row: Record, kind: str) -> None:
  for key, (wanted, words) in _KINDS[kind].items():
    if key not in row:
      raise UserError(
        f"{where}: found the keys {', '.join(row)}, expected {', '.join(_KINDS[kind])} as in the first row"
      )
    if not isinstance(row[key], wanted) or isinstance(row[key], bool) and wanted is int:
      raise UserError(f"{where}: {key}: found a JSON {kind_of(row[key])}, expected {words}")
  options = row.get("context_options" if kind == "schema" else "choices")
  if kind in ("schema", "letters", "choices"):
    if not options or not all(isinstance(one, str) for one in options):
      raise UserError(f"{where}: found the choices {options!r}, expected at least one, all strings")
    right = LETTERS[: len(options)] if kind == "letters" else range(len(options))
    answer = row["answer" if kind == "letters" else "gold"]
    if answer not in list(right):
      raise UserError(f"{where}: found the answer {answer!r}, expected one of {', '.join(map(str, right))}")


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of asking.

  Attributes:
    shots: answered examples before each question.
    seed: the seed of their choice.
    limit: the number of questions of a file, from the first; None means all.
    stride: the stride of windows over texts; None is their length.
    max_new_tokens: the most tokens of a generated answer.
  """

  shots: int = 0
  seed: int = 0
  limit: int | None = None
  stride: int | None = None
  max_new_tokens: int = 64


def lettered(
  questions: Questions, examples: Questions, options: Options
) -> list[tuple[str, list[tuple[str, str]], int]]:
  """Return MMLU's prompts (Hendrycks et al. 2021), which score the letters of the choices after "Answer:".

  A header names the subject, if a row has one; answered examples of the subject's split dev follow it. Rows without a
  split in another file than the questions' are of this split too. The texts are those of EleutherAI's harness, equal to
  the published ones but for a second space before the subject in the latter.

  Returns:
    For each question that is not of the split dev its place, the (context, letter) of each choice, and the index of the
    right one.

  Raises:
    UserError: all questions are of the split dev, or there are no examples of a subject.
  """
  by_subject = collections.defaultdict(list)
  for row in examples.rows:
    if row.get("split", "dev" if examples is not questions else None) == "dev":
      by_subject[row.get("subject")].append(row)
  rows = [both for both in zip(questions.wheres, questions.rows) if both[1].get("split") != "dev"]
  if not rows:
    raise UserError(f"{questions.path}: all rows are of the split dev, expected questions of another")

  def shown(row: Record) -> str:
    listed = "".join(f"\n{letter}. {choice}" for letter, choice in zip(LETTERS, row["choices"]))
    return f"{row['question'].strip()}{listed}\nAnswer:"

  asked = []
  for where, row in rows[: options.limit]:
    subject = row.get("subject")
    if options.shots and not by_subject[subject]:
      raise UserError(
        f"{where}: found no example of the split dev and the subject {subject!r} in {examples.path}; ask without shots,"
        " or give a file of examples"
      )
    about = str(subject).replace("_", " ")
    header = f"The following are multiple choice questions (with answers) about {about}.\n\n" if subject else ""
    before = "".join(f"{shown(one)} {one['answer']}\n\n" for one in by_subject[subject][: options.shots])
    pairs = [(header + before + shown(row), f" {letter}") for letter in LETTERS[: len(row["choices"])]]
    asked.append((where, pairs, LETTERS.index(row["answer"])))
  return asked


class Asker:
  """A callable that asks a model the questions of files.

  Contexts longer than the model reads lose their beginning, as in EleutherAI's harness; `truncated` is the number of
  questions with any truncated context.

  Args:
    opened: the model, a `library.model.Model`.
    options: the options of asking.
    examples: the source of answered examples; None is the file of the question itself.
  """

  def __init__(self, opened: Any, options: Options, examples: Questions | None = None):
    self._options, self._examples = options, examples
    self._prompts = Prompts(opened)

  def __call__(self, questions: Questions) -> dict[str, float]:
    """Ask the questions; return the scores and counts. Accuracy and exact match are in percent.

    Raises:
      UserError: an answer is too long for the model, or running text is given to an encoder-decoder.
    """
    if self._examples and self._examples.kind != questions.kind:
      raise UserError(
        f"{self._examples.path}: holds questions of the kind {self._examples.kind!r}, expected {questions.kind!r}, as"
        f" {questions.path} has"
      )
    return getattr(self, f"_{questions.kind}")(questions)

  def _asked(self, questions: Questions, shown: Callable[[Record], str]) -> list[tuple[str, Record, str]]:
    """Return for each question its place, its row, and its prefix of `shots` other rows with answers."""
    rows, options, out = questions.rows, self._options, []
    pool = [(json.dumps(row), row) for row in (self._examples.rows if self._examples else rows)]
    for number, row in enumerate(rows[: options.limit]):
      rng, own = random.Random(options.seed * 1_000_003 + number), json.dumps(row)
      others = [one for text, one in pool if text != own] if options.shots else []  # the same row in another file too
      chosen = rng.sample(others, min(options.shots, len(others)))
      out.append((questions.wheres[number], row, "".join(f"{shown(one)}\n\n" for one in chosen)))
    return out

  def _choices(self, questions: Questions) -> dict[str, float]:
    join = lambda query, choice: query + ("" if query[-1:].isspace() else " ") + choice  # noqa: E731
    asked = []
    for where, row, before in self._asked(questions, lambda row: join(row["query"], row["choices"][row["gold"]])):
      query = row["query"] if row["query"].endswith("\n") else row["query"].rstrip(" ")
      space = "" if query.endswith("\n") else " "
      asked.append((where, [(before + query, f"{space}{choice}") for choice in row["choices"]], row["gold"]))
    return self._likeliest(asked)

  def _schema(self, questions: Questions) -> dict[str, float]:
    asked = self._asked(questions, lambda row: f"{row['context_options'][row['gold']]} {row['continuation']}")
    return self._likeliest(
      (where, [(before + option, f" {row['continuation']}") for option in row["context_options"]], row["gold"])
      for where, row, before in asked
    )

  def _letters(self, questions: Questions) -> dict[str, float]:
    return self._likeliest(lettered(questions, self._examples or questions, self._options))

  def _likelihoods(self, asked: Iterable[tuple[str, list[tuple[str, str]]]]) -> list[list[Scored]]:
    """Score the (context, continuation) pairs of each question, which has a place."""
    pairs, counts, most = [], [], self._prompts.likelihood.longest_answer
    for where, texts in asked:
      counts.append(len(texts))
      pairs += [self._prompts.pair(*text) for text in texts]
      longest = max(len(answer) for _, answer in pairs[-len(texts) :])
      if most is not None and longest > most:
        raise UserError(
          f"{where}: an answer has {longest} tokens, expected at most {most}, as many as the model reads; leave the row"
          " out or ask a model that reads more"
        )
    found = iter(self._prompts.likelihood(pairs))
    return [list(itertools.islice(found, count)) for count in counts]

  def _likeliest(self, questions: Iterable[tuple[str, list[tuple[str, str]], int]]) -> dict[str, float]:
    """Score choices by likelihood; a question has a place, pairs and the index of the right one."""
    asked = list(questions)
    found = self._likelihoods((where, pairs) for where, pairs, _ in asked)
    hits = hits_norm = truncated = 0
    for (_, pairs, gold), part in zip(asked, found):
      scores = [one.log_probability for one in part]
      norms = [score / max(len(text.lstrip(" ")), 1) for score, (_, text) in zip(scores, pairs)]
      hits += scores.index(max(scores)) == gold
      hits_norm += norms.index(max(norms)) == gold
      truncated += any(one.truncated for one in part)
    share = 100.0 / len(asked)
    counts = {"examples": len(asked), "truncated": truncated}
    return {"accuracy": hits * share, "accuracy_norm": hits_norm * share} | counts

  def _words(self, questions: Questions) -> dict[str, float]:
    asked = self._asked(questions, lambda row: f"{row['context']} {row['continuation']}")
    pairs = (
      (where, [(before + row["context"].rstrip(), f" {row['continuation'].strip()}")]) for where, row, before in asked
    )
    found = [one for (one,) in self._likelihoods(pairs)]
    mean = -sum(one.log_probability for one in found) / len(found)
    share = 100.0 * sum(one.greedy for one in found) / len(found)
    scores = {"accuracy": share, "perplexity": math.exp(min(mean, 700.0)), "examples": len(found)}
    return scores | {"truncated": sum(one.truncated for one in found)}

  def _answers(self, questions: Questions) -> dict[str, float]:
    """Generate answers; judge texts up to the end of the line, numbers up to the end of the paragraph."""
    rows = questions.rows[: self._options.limit]
    numbers = [final_number(str(row["answer"])) for row in rows]
    numeric = all(
      number is not None and ("chain_of_thought" in row or _NUMBER.fullmatch(str(row["answer"]).strip()))
      for number, row in zip(numbers, rows)
    )

    def shown(row: Record) -> str:
      thought = f"{row['chain_of_thought']} #### " if numeric and "chain_of_thought" in row else ""
      return f"{row['context']} {thought}{row['answer']}"

    contexts = [self._prompts.encode(before + row["context"]) for _, row, before in self._asked(questions, shown)]
    texts, truncated = self._prompts.generate(contexts, self._options.max_new_tokens)
    given, right = [text.strip() for text in texts], 0
    for row, number, text in zip(rows, numbers, given):
      if numeric:
        right += final_number(text.split("\n\n")[0]) == number
      else:
        golds = {normalize_trivia_qa(str(one)) for one in (row["answer"], *row.get("aliases", ()))}
        right += normalize_trivia_qa(text.split("\n")[0]) in golds
    counts = {"examples": len(rows), "truncated": sum(truncated), "empty": sum(not text for text in given)}
    return {"exact_match": 100.0 * right / len(rows)} | counts

  def _texts(self, questions: Questions) -> dict[str, float]:
    """Score every token of each text once; see `Likelihood.rolling`."""
    if self._prompts.both:
      raise UserError(f"{questions.path}: the model is an encoder-decoder, which gives running text no probability")
    nats, counts = 0.0, collections.Counter()
    for row in questions.rows[: self._options.limit]:
      ids = self._prompts.encode(row["text"], special=False)
      nats -= self._prompts.likelihood.rolling(ids, self._prompts.start_id, self._options.stride)
      counts.update(tokens=len(ids), words=len(row["text"].split()), bytes=len(row["text"].encode()))
    per = {name: math.exp(min(nats / max(counts[name], 1), 700.0)) for name in ("tokens", "words")}
    return {
      "perplexity_per_token": per["tokens"],
      "perplexity_per_word": per["words"],
      "bits_per_byte": nats / math.log(2) / max(counts["bytes"], 1),
      **{name: float(count) for name, count in counts.items()},
    }
