"""Extractive question answering, as in SQuAD, for encoders.

Rajpurkar et al. 2016; Devlin et al. 2019, section 4.2.

  config.task = {"name": "span_qa", "source":
                 "squad:train=train-v1.1.json,validation=dev-v1.1.json", "vocabulary": "vocabulary",
                 "length": 384, "stride": 128}

A row is [CLS] question [SEP] context [SEP]. A context that is too long becomes several examples,
windows that begin `stride` tokens apart. `span_start` and `span_end` are the positions of the
answer's first and last token in the row. Both are 0, the position of [CLS], if there is no answer
or the window does not hold all of it. Of several answers the first counts. `answer_start` locates
its characters in the context, and the label is the shortest run of tokens that covers all of them:
exactly the answer, unless it begins or ends within a token. If the position is within another word,
the nearest occurrence of the answer as whole words is used, if there is one. Empty questions are
left out of training splits, whose names begin with `train`, but not of other splits. Questions with
an empty context are left out of all.

`Task.examples` gives for each window `record`, `context`, `answers` (texts), `question` (the number
of its question), `first` (the position in the row of its first context token), `spans`, int64 [n,
2]: the beginning and end of its tokens in the context, and `most_context`, bool [n]: whether no
other window has more context around the token.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from t5x_like import data, vocabularies
from t5x_like.corpora.sources import Record, Skip, field_value
from t5x_like.data.features import Feature, Features, encoder
from t5x_like.data.supervised.answers import Contexts, parse_answers, window_with_most_context
from t5x_like.data.supervised.example_store import Example, ExampleStore
from t5x_like.data.supervised.labelled import ExampleRows, LabelledArguments
from t5x_like.data.supervised.sequences import Encoded, layout_facts
from t5x_like.data.supervised.templates import to_text
from t5x_like.data.task import Task, rows_only
from t5x_like.errors import UserError
from t5x_like.slots import Length
from t5x_like.vocabularies import Vocabulary

# The arguments of the task on the built-in corpus, for `:debug`.
BUILT_IN = {"source": "builtin", "vocabulary": "bytes"}


def tiny(length: int) -> dict[str, int]:
  """Return the lengths of the recipe form `:tiny`."""
  return {"length": length, "stride": length // 4}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(LabelledArguments):
  """The arguments of extractive question answering.

  The records have fields question, context and answers, a possibly empty list of {text,
  answer_start} (or TFDS's dict of lists).

  Attributes:
    length: length of a row, its special tokens included.
    stride: context tokens from the beginning of a window to the beginning of the next.
    question_length: longer questions are truncated to this many tokens, and counted in the report.
  """

  length: Length = rows_only(default=384)
  stride: Length = rows_only(default=128)
  question_length: Length = rows_only(default=64)

  def features(self, vocabulary: Vocabulary) -> Features:
    features = encoder(self.length)
    features["span_start"] = Feature((), "int32")
    features["span_end"] = Feature((), "int32")
    features["example_weights"] = Feature((), "float32")
    return features

  def build(self) -> Task:
    """Prepare the examples and return the task.

    Raises:
      UserError: unusable lengths or an answer that is not in its context; and as
        `LabelledArguments.build_task`.
    """
    vocabulary = vocabularies.load(self.vocabulary)
    questions = _Questions(vocabulary, self.allows_gaps)

    def make_rows(store: ExampleStore) -> ExampleRows:
      windows = _ContextWindows(
        store, self.length, self.stride, self.question_length, questions.contexts
      )
      return ExampleRows(windows.example_W.size, windows.read, windows.example_W, windows.view)

    return self.build_task(
      "span_qa.v4",
      vocabulary,
      fields=("question", "context", "answers"),
      streams={"question": False, "context": False},
      make_example=questions.make_example,
      make_rows=make_rows,
      row_facts=layout_facts("encoder", vocabulary),
    )


class _Questions:
  """Questions from records, with their contexts and answers.

  Attributes:
    contexts: the tokenizer of the contexts.
  """

  def __init__(self, vocabulary: Vocabulary, allows_gaps: bool):
    self.contexts = Contexts(vocabulary)
    self._allows_gaps = allows_gaps

  def make_example(self, record: Record, where: str) -> Example | Skip:
    """Return the ids of a question and its context with the answer, or the reason to skip it."""
    question = to_text(field_value(record, "question", where), "question", where)
    context = to_text(field_value(record, "context", where), "context", where)
    words = self.contexts.split_words(question.split())
    question_ids = np.array([i for ids in words for i in ids], np.int32)
    context_ids = self.contexts(context).tokens
    if not context_ids.size:
      return Skip("empty context")
    if not question_ids.size and not self._allows_gaps:
      return Skip("empty question")
    answers = parse_answers(field_value(record, "answers", where), where)
    start = -1
    end = -1
    if answers:
      text, position = answers[0]
      start, end = self.contexts.locate(context, text, position, where)
    return {
      "question": question_ids,
      "context": context_ids,
      "answer_start": np.int32(start),
      "answer_end": np.int32(end),
    }


class _ContextWindows:
  """The windows of contexts, each in a row after its question.

  Attributes:
    example_W: int64 [W], the example of each window.
  """

  def __init__(
    self, store: ExampleStore, length: int, stride: int, question_length: int, contexts: Contexts
  ):
    self._store = store
    self._stride = stride
    self._contexts = contexts
    self._encoded = Encoded(store, ["question", "context"], length)
    self._question_N = np.minimum(store.lengths["question"], question_length)
    self._context_N = store.lengths["context"]
    self._room_N = self._encoded.room - self._question_N
    if self._room_N.min() < stride:
      raise UserError(
        f"config.task.length: found {length} with stride {stride}, but questions of up to "
        f"{self._question_N.max()} tokens leave {self._room_N.min()} for the context; raise "
        "length, or lower stride or question_length"
      )
    overhang_N = self._context_N - self._room_N
    self._windows_N = 1 + np.maximum(-(-overhang_N // stride), 0)
    self.example_W = np.repeat(np.arange(store.num_examples), self._windows_N)
    first_N = np.cumsum(self._windows_N) - self._windows_N
    within_W = np.arange(self.example_W.size) - np.repeat(first_N, self._windows_N)
    self._begin_W = stride * within_W
    self._window_with_most_context = functools.lru_cache(1)(self._find_most_context)
    num_cut = (store.lengths["question"] > question_length).sum()
    data.announce(
      f"{store.path}: {store.num_examples:,} questions ({num_cut:,} cut to {question_length} "
      f"tokens) in {self.example_W.size:,} windows"
    )

  def read(self, index_B: np.ndarray) -> dict[str, np.ndarray]:
    """Return the features of windows."""
    example_B = self.example_W[index_B]
    begin_B = self._begin_W[index_B]
    size_B = np.minimum(self._context_N[example_B] - begin_B, self._room_N[example_B])
    lengths_B2 = np.stack([self._question_N[example_B], size_B], axis=1)
    features = self._encoded(example_B, lengths_B2, begin_B)
    answer_start_B = self._store.arrays["answer_start"][example_B]
    start_B = answer_start_B - begin_B
    end_B = self._store.arrays["answer_end"][example_B] - begin_B
    is_inside_B = (answer_start_B >= 0) & (start_B >= 0) & (end_B < size_B)
    context_position_B = self._context_position(example_B)
    features["span_start"] = np.where(is_inside_B, context_position_B + start_B, 0)
    features["span_end"] = np.where(is_inside_B, context_position_B + end_B, 0)
    features["example_weights"] = np.ones(index_B.size)
    return features

  def view(self, record: Record, where: str, window: int) -> dict[str, Any]:
    """Return a window with its question's answers; see `Task.examples`."""
    example = int(self.example_W[window])
    begin = int(self._begin_W[window])
    tokens = self._window_tokens(example, begin)
    answers = parse_answers(field_value(record, "answers", where), where)
    return {
      "question": example,
      "context": record["context"],
      "answers": [text for text, _ in answers],
      "first": int(self._context_position(example)),
      "spans": self._contexts(record["context"]).spans[tokens],
      "most_context": self._window_with_most_context(example)[tokens] == begin // self._stride,
    }

  def _context_position(self, example: np.ndarray | int) -> np.ndarray | int:
    """Return the position of the first context token, after [CLS] question [SEP]."""
    return self._encoded.extra - 1 + self._question_N[example]

  def _window_tokens(self, example: int, begin: int) -> slice:
    """Return the tokens of the context in the window that begins at `begin`."""
    return slice(begin, begin + int(self._room_N[example]))

  def _find_most_context(self, example: int) -> np.ndarray:
    """Return the window with most context around each token of an example's context."""
    begins = [self._stride * number for number in range(self._windows_N[example])]
    windows = [self._window_tokens(example, begin) for begin in begins]
    return window_with_most_context(windows, int(self._context_N[example]))
