"""Ask a model questions without training, by likelihood or by generation, and judge its answers.

Questions are asked in blocks of rows of similar length. The blocks depend on the questions alone,
not on the answers that a log has already, so an evaluation that was killed continues with the same
batches and has the same result.
"""

import dataclasses
import functools
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from t5x_like import rows
from t5x_like.data.supervised import published_template
from t5x_like.errors import UserError
from t5x_like.inference.answer_log import AnswerLog, SavedAnswer
from t5x_like.inference.likelihood import Ids
from t5x_like.inference.prompts import Prompts
from t5x_like.inference.questions import Prompt, PromptSet, is_worked, right_numbers, right_texts
from t5x_like.metrics import questions as question_metrics
from t5x_like.metrics import resampling
from t5x_like.metrics.answers import final_number, normalize_trivia_qa
from t5x_like.metrics.questions import QuestionMetric
from t5x_like.runtime import process

NEW_TOKENS = 64  # the most of a generated answer, by default
WORKED_TOKENS = 256  # the most of a worked answer: `max_gen_toks` of EleutherAI's harness
_BATCHES_IN_BLOCK = 4
_EDITION = 1  # a part of the keys of answers; raise it when a model's answers change
# An answer: [log-probability or None, whether it is greedy, whether the context is truncated] of
# each pair; or [text, whether the context is truncated, whether the text is unfinished].
Answer = list[Any]
IdPair = tuple[Ids, Ids]


class _Question(NamedTuple):
  """An encoded question.

  Attributes:
    prompt: the question.
    pairs: the ids of the context and continuation of each choice, window or unconditional pair.
    length: the padded length of its rows.
    key: a digest of all that the answer depends on.
    has_long_answer: whether a continuation has more tokens than the model reads.
  """

  prompt: Prompt
  pairs: list[IdPair]
  length: int
  key: str
  has_long_answer: bool = False


@dataclasses.dataclass(frozen=True)
class Results:
  """The judged answers of a set of prompts.

  Attributes:
    metric: the metric.
    rows_NC: its row of each question, in the order of the prompts.
    num_asked: the number of questions whose answers were in no log.
  """

  metric: QuestionMetric
  rows_NC: np.ndarray
  num_asked: int

  @property
  def metrics(self) -> dict[str, float]:
    """The scores and counts by name; accuracy and exact match are in percent."""
    return self.metric.scores(self.rows_NC) | self.metric.counts(self.rows_NC)

  @functools.cached_property
  def intervals(self) -> dict[str, dict[str, float]]:
    """The 95 % interval of each score; see `resampling.score_intervals`."""
    return resampling.score_intervals(self.metric, self.rows_NC)

  def format(self) -> str:
    """Return all metrics in a line, scores with their intervals."""
    parts = []
    for name, value in self.metrics.items():
      part = f"{name} {value:,.4g}"
      if name in self.intervals:
        part += resampling.format_interval(self.intervals[name])
      parts.append(part)
    return ", ".join(parts)


def describe_template(opened: Any, template: str | None) -> str:
  """Describe in a line the chat template of the prompts, or else the template that the model has.

  Args:
    opened: the model, a `library.model.Model`.
    template: the chat template; None is no template.
  """
  if template is not None:
    return f"questions: asked by {published_template.describe(template, opened.vocabulary)}"
  description = "questions: asked as plain texts"
  default_template = opened.chat_template()
  if default_template:
    description += f"; --template={default_template} asks by its chat template"
  return description


class Progress:
  """Reports on stderr how many questions are answered, at most every `SECONDS`.

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
      print(f"{self._name}: {done} of {total} questions", file=sys.stderr, flush=True)


class Asker:
  """A callable that asks a model questions.

  Contexts longer than the model reads lose their beginning, as in EleutherAI's harness; `truncated`
  is the number of questions with any truncated context.

  Args:
    opened: the model, a `library.model.Model`.
    template: the chat template of a decoder, see `Prompts`; None is no template.
    log: the saved answers, which are not asked again; None saves none.
    fingerprint: a digest of the model and its parameters, for the keys of the log.
  """

  def __init__(
    self,
    opened: Any,
    template: str | None = None,
    log: AnswerLog | None = None,
    fingerprint: str = "",
  ):
    # Published weights read a text as their tokenizer encodes it, as in `predict` and in lm_eval.
    self._prompts = Prompts(opened, start=not opened.is_published, template=template)
    self._block_rows = _BATCHES_IN_BLOCK * opened.run.batch_size
    self._log = log
    self._fingerprint = fingerprint

  def __call__(
    self, prompt_set: PromptSet, report: Callable[[int, int], None] = lambda done, total: None
  ) -> Results:
    """Ask the questions, and judge the answers.

    Args:
      prompt_set: the questions.
      report: is called with (answered questions, all questions) after every block.

    Raises:
      UserError: an answer is too long for an encoder-decoder, or running text is given to one.
    """
    rule = RULES[prompt_set.rule]
    new_tokens = self._new_tokens(prompt_set) if rule.is_generated else 0
    questions = [self._encode(prompt_set, prompt, new_tokens) for prompt in prompt_set.prompts]
    num_long = sum(question.has_long_answer for question in questions)
    if num_long:
      process.log(
        f"{prompt_set.path}: {num_long} of {len(questions)} questions have an answer of more than "
        f"the {self._prompts.likelihood.longest_answer} tokens that the model reads; only its end "
        "is scored, and they count as truncated"
      )
    answers: dict[str, Answer] = {}
    if self._log is not None:
      answers = self._log.recall(list(dict.fromkeys(question.key for question in questions)))
    done = 0
    num_asked = 0
    for block in _plan_blocks(questions, self._block_rows):
      pending = {}
      for question in block:
        if question.key not in answers:
          pending[question.key] = question
      if pending:
        answers |= self._answer_block(list(pending.values()), new_tokens)
        num_asked += len(pending)
      done += len(block)
      report(done, len(questions))
    judged = [rule.judge(question, answers[question.key]) for question in questions]
    return Results(rule.metric, rule.metric.rows((), judged), num_asked)

  def _answer_block(self, questions: Sequence[_Question], new_tokens: int) -> dict[str, Answer]:
    """Ask the questions of a block, and save the answers; return them by key."""
    ask = self._generate if new_tokens else self._score
    answers = ask(questions, new_tokens)
    if self._log is not None:
      saved = []
      for question, answer in zip(questions, answers):
        saved.append(SavedAnswer(question.key, question.prompt.where, answer))
      self._log.append(saved)
    return {question.key: answer for question, answer in zip(questions, answers)}

  def _score(self, questions: Sequence[_Question], new_tokens: int) -> list[Answer]:
    """Return the scores of all pairs of each question."""
    del new_tokens
    pairs = [pair for question in questions for pair in question.pairs]
    length = max(question.length for question in questions)
    scores = []
    for score in self._prompts.likelihood(pairs, length):
      is_finite = math.isfinite(score.log_probability)
      log_probability = score.log_probability if is_finite else None
      scores.append([log_probability, score.greedy, score.truncated])
    answers = []
    start = 0
    for question in questions:
      answers.append(scores[start : start + len(question.pairs)])
      start += len(question.pairs)
    return answers

  def _generate(self, questions: Sequence[_Question], new_tokens: int) -> list[Answer]:
    """Return the generated text of each question."""
    contexts = [context for question in questions for context, _ in question.pairs]
    texts, truncated, unfinished = self._prompts.generate(contexts, new_tokens)
    return [list(answer) for answer in zip(texts, truncated, unfinished)]

  def _encode(self, prompt_set: PromptSet, prompt: Prompt, new_tokens: int) -> _Question:
    """Return a question with the ids of its prompt.

    Raises:
      UserError: an answer is too long for an encoder-decoder, or running text is given to one.
    """
    likelihood = self._prompts.likelihood
    if prompt_set.rule == "texts":
      pairs = self._windows(prompt_set, prompt)
    elif new_tokens:
      pairs = [(self._prompts.encode(context), []) for context, _ in prompt.pairs]
    else:
      pairs = DIVISIONS[prompt_set.division](self._prompts, prompt.pairs)
      for context, continuation in prompt.unconditional:
        pairs.append(self._prompts.encode_pair(context, continuation))
    max_length = likelihood.longest_answer
    has_long_answer = any(max_length and len(ids) > max_length for _, ids in pairs)
    if has_long_answer:
      pairs = self._divide_long_answers(prompt, pairs)
    lengths = [likelihood.padded_length(*pair) for pair in pairs]
    settings = [_EDITION, self._fingerprint, likelihood.longest, new_tokens]
    digest = hashlib.sha256(json.dumps(settings).encode())
    for pair in pairs:
      for ids in pair:
        digest.update(np.array([len(ids), *ids], np.int32).tobytes())
    return _Question(prompt, pairs, max(lengths), digest.hexdigest()[:32], has_long_answer)

  def _divide_long_answers(self, prompt: Prompt, pairs: Sequence[IdPair]) -> list[IdPair]:
    """Return pairs whose continuations have as many tokens as a decoder reads, from their end.

    Raises:
      UserError: the model is an encoder-decoder, whose decoder reads an answer from its beginning.
    """
    max_length = self._prompts.likelihood.longest_answer
    divided = []
    for context, continuation in pairs:
      num_excess = max(0, len(continuation) - max_length)
      if num_excess and self._prompts.is_encoder_decoder:
        raise UserError(
          f"{prompt.where}: an answer has {len(continuation)} tokens, expected at most "
          f"{max_length}, as many as the decoder reads; leave the row out or ask a model that "
          "reads more"
        )
      divided.append(([*context, *continuation[:num_excess]], continuation[num_excess:]))
    return divided

  def _windows(self, prompt_set: PromptSet, prompt: Prompt) -> list[IdPair]:
    """Return the windows over a text; see `Likelihood.windows`."""
    if self._prompts.is_encoder_decoder:
      raise UserError(
        f"{prompt_set.path}: the model is an encoder-decoder, which gives running text no "
        "probability"
      )
    ids = self._prompts.encode(prompt.pairs[0][1], special=False)
    return self._prompts.likelihood.windows(ids, self._prompts.start_id, prompt_set.stride)

  def _new_tokens(self, prompt_set: PromptSet) -> int:
    """Return the most tokens of a generated answer.

    The default is `NEW_TOKENS`, or `WORKED_TOKENS` where the file has worked answers, but at most
    half of what the model reads.
    """
    if prompt_set.max_new_tokens is not None:
      return prompt_set.max_new_tokens
    is_any_worked = any(is_worked(prompt.row) for prompt in prompt_set.prompts)
    new_tokens = WORKED_TOKENS if is_any_worked else NEW_TOKENS
    likelihood = self._prompts.likelihood
    new_tokens = min(new_tokens, likelihood.longest // 2)
    if likelihood.longest_answer is not None:
      new_tokens = min(new_tokens, likelihood.longest_answer)
    return max(1, new_tokens)


def _plan_blocks(questions: Sequence[_Question], max_rows: int) -> list[list[_Question]]:
  """Divide questions into blocks of one padded length and at most `max_rows` rows.

  A question with more rows is a block of its own. Lengths with few questions join the next length.
  """
  lengths = rows.merge_lengths([question.length for question in questions], max_rows)
  questions_by_length: dict[int, list[_Question]] = {}
  for question, length in zip(questions, lengths):
    questions_by_length.setdefault(length, []).append(question._replace(length=length))
  blocks = []
  for _, equally_long in sorted(questions_by_length.items()):
    block: list[_Question] = []
    num_rows = 0
    for question in equally_long:
      if block and num_rows + len(question.pairs) > max_rows:
        blocks.append(block)
        block = []
        num_rows = 0
      block.append(question)
      num_rows += len(question.pairs)
    blocks.append(block)
  return blocks


def _divide_by_text(prompts: Prompts, pairs: Sequence[tuple[str, str]]) -> list[IdPair]:
  """Encode context and continuation of each pair separately, and join their tokens."""
  return [prompts.encode_pair(context, continuation) for context, continuation in pairs]


def _divide_at_first_difference(prompts: Prompts, pairs: Sequence[tuple[str, str]]) -> list[IdPair]:
  """Encode the whole texts; a continuation begins where the choices' tokens first differ."""
  if prompts.is_encoder_decoder:
    return _divide_by_text(prompts, pairs)
  texts = [prompts.encode(context + continuation) for context, continuation in pairs]
  shortest = min(len(ids) for ids in texts)
  start = min(_common_length(texts), shortest - 1)
  return _divide_at(texts, [start] * len(texts))


def _divide_at_common_end(prompts: Prompts, pairs: Sequence[tuple[str, str]]) -> list[IdPair]:
  """Encode the whole texts; the continuation is the tokens at their end that all have in common."""
  if prompts.is_encoder_decoder:
    return _divide_by_text(prompts, pairs)
  texts = [prompts.encode(context + continuation) for context, continuation in pairs]
  length = _common_length([ids[::-1] for ids in texts])
  return _divide_at(texts, [len(ids) - length for ids in texts])


def _divide_after_context(prompts: Prompts, pairs: Sequence[tuple[str, str]]) -> list[IdPair]:
  """Encode the whole texts; the continuation begins after the tokens of the stripped context."""
  if prompts.is_encoder_decoder:
    return _divide_by_text(prompts, pairs)
  divided = []
  for context, continuation in pairs:
    ids = prompts.encode(context + continuation)
    start = _common_length([prompts.encode(context.strip()), ids])
    divided += _divide_at([ids], [start])
  return divided


def _common_length(texts: Sequence[Ids]) -> int:
  """Return the number of tokens at the beginning that all texts have."""
  length = 0
  for tokens in zip(*texts):
    if len(set(tokens)) > 1:
      break
    length += 1
  return length


def _divide_at(texts: Sequence[Ids], starts: Sequence[int]) -> list[IdPair]:
  """Divide texts at the starts of their continuations; both parts have at least one token."""
  pairs = []
  for ids, start in zip(texts, starts):
    start = max(1, min(start, len(ids) - 1))
    pairs.append((ids[:start], ids[start:]))
  return pairs


DIVISIONS: dict[str, Callable[[Prompts, Sequence[tuple[str, str]]], list[IdPair]]] = {
  "by text": _divide_by_text,
  "at the first difference": _divide_at_first_difference,
  "at the common end": _divide_at_common_end,
  "after the context": _divide_after_context,
}


class Rule(NamedTuple):
  """How questions are answered and judged.

  Attributes:
    metric: the metric.
    judge: `(question, answer) -> the columns of the metric`.
    is_generated: whether an answer is a generated text.
  """

  metric: QuestionMetric
  judge: Callable[[_Question, Answer], tuple[float, ...]]
  is_generated: bool = False


def _log_probabilities(answer: Answer) -> list[float]:
  """Return the log-probability of each pair; -inf for a value that is not finite."""
  return [-math.inf if score[0] is None else score[0] for score in answer]


def _is_truncated(answer: Answer) -> bool:
  return any(truncated for _, _, truncated in answer)


def _is_likeliest(scores: Sequence[float], gold: int) -> bool:
  """Return whether the right choice is the first of those with the highest score."""
  return list(scores).index(max(scores)) == gold


def _judge_choices(question: _Question, answer: Answer) -> tuple[float, ...]:
  scores = _log_probabilities(answer)
  norms = []
  for score, (_, continuation) in zip(scores, question.prompt.pairs):
    norms.append(score / max(len(continuation.lstrip(" ")), 1))
  gold = question.prompt.gold
  return _is_likeliest(scores, gold), _is_likeliest(norms, gold), _is_truncated(answer)


def _judge_likeliest(question: _Question, answer: Answer) -> tuple[float, ...]:
  scores = _log_probabilities(answer)
  return _is_likeliest(scores, question.prompt.gold), _is_truncated(answer)


def _judge_per_character(question: _Question, answer: Answer) -> tuple[float, ...]:
  scores = []
  for score, (_, continuation) in zip(_log_probabilities(answer), question.prompt.pairs):
    scores.append(score / max(len(continuation), 1))
  return _is_likeliest(scores, question.prompt.gold), _is_truncated(answer)


def _judge_per_token(question: _Question, answer: Answer) -> tuple[float, ...]:
  scores = []
  for score, (_, continuation) in zip(_log_probabilities(answer), question.pairs):
    scores.append(score / len(continuation))
  return _is_likeliest(scores, question.prompt.gold), _is_truncated(answer)


def _judge_against_unconditional(question: _Question, answer: Answer) -> tuple[float, ...]:
  scores = _log_probabilities(answer)
  num_choices = len(question.prompt.pairs)
  gains = []
  for score, unconditional in zip(scores[:num_choices], scores[num_choices:]):
    gains.append(score - unconditional if math.isfinite(unconditional) else -math.inf)
  return _is_likeliest(gains, question.prompt.gold), _is_truncated(answer[:num_choices])


def _judge_greedy(question: _Question, answer: Answer) -> tuple[float, ...]:
  ((_, is_greedy, truncated),) = answer
  return is_greedy, truncated


def _judge_words(question: _Question, answer: Answer) -> tuple[float, ...]:
  ((_, is_greedy, truncated),) = answer
  (log_probability,) = _log_probabilities(answer)
  return is_greedy, -log_probability, truncated


def _judge_text(question: _Question, answer: Answer) -> tuple[float, ...]:
  text = question.prompt.pairs[0][1]
  num_tokens = sum(len(continuation) for _, continuation in question.pairs)
  nats = -sum(_log_probabilities(answer))
  return nats, num_tokens, len(text.split()), len(text.encode())


def _judge_generated(question: _Question, answer: Answer) -> tuple[float, ...]:
  """Judge a text up to the end of the line, a number up to the paragraph's.

  Each row is judged by its own answer: by the final number if that is a number, or ends a worked
  answer.
  """
  text, truncated, is_unfinished = answer
  row = question.prompt.row
  answers = right_texts(question.prompt.where, row)
  numbers = right_numbers(row, answers)
  judged_text, end_mark, _ = text.strip().partition("\n\n" if numbers else "\n")
  if numbers:
    is_right = final_number(judged_text) in numbers
  else:
    is_right = any(_same_words(judged_text, right_text) for right_text in answers)
  return is_right, truncated, not text.strip(), is_unfinished and not end_mark


def _same_words(text: str, answer: str) -> bool:
  """Return whether a text equals an answer after TriviaQA's normalisation.

  Answers without words are compared as they are.
  """
  words = normalize_trivia_qa(answer)
  return normalize_trivia_qa(text) == words if words else text.strip() == answer.strip()


RULES: dict[str, Rule] = {
  "choices": Rule(question_metrics.Choices(), _judge_choices),
  "words": Rule(question_metrics.Words(), _judge_words),
  "answers": Rule(question_metrics.Answers(), _judge_generated, is_generated=True),
  "texts": Rule(question_metrics.Texts(), _judge_text),
  # Rules of frozen suites.
  "likeliest": Rule(question_metrics.Accuracy(), _judge_likeliest),
  "per character": Rule(question_metrics.Accuracy(), _judge_per_character),
  "per token": Rule(question_metrics.Accuracy(), _judge_per_token),
  "against unconditional": Rule(question_metrics.Accuracy(), _judge_against_unconditional),
  "greedy": Rule(question_metrics.Accuracy(), _judge_greedy),
}
