"""Extractive question answering, as in SQuAD, for encoders (Devlin et al. 2019, section 4.2;
Rajpurkar et al. 2016).

  config.task = {"name": "span_qa", "source":
                 "squad:train=train-v1.1.json,validation=dev-v1.1.json", "vocabulary": "vocabulary",
                 "length": 384, "stride": 128}

A row is [CLS] question [SEP] context [SEP]. A context that is too long becomes several examples,
windows that begin `stride` tokens apart. `span_start` and `span_end` are the places of the answer's
first and last token in the row; both are 0, the place of [CLS], where there is no answer or the
window does not hold all of it. Of several answers the first counts. Its characters are located in
the context by `answer_start`, and the label is the shortest run of tokens that covers all of them:
exactly the answer, unless it begins or ends within a token. An answer placed within another word is
taken where it stands as words of its own, if it does anywhere. Training splits, whose names begin
with `train`, lack empty questions; other splits have them. No split has questions with an empty
context.

`Task.examples` gives for each window `record`, `context`, `answers` (texts), `question` (the number
of its question), `first` (the position in the row of its first context token), `spans`, int64 [n,
2]: the beginning and end of its tokens in the context, and `most_context`, bool [n]: whether no
other window has more context around the token.
"""

import functools
from typing import Unpack

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Skip, field_value
from t5x_like.data.features import Feature, Features, encoder
from t5x_like.data.supervised.answers import Contexts, parse_answers, window_with_most_context
from t5x_like.data.supervised.labelled import ExampleRows, LabelledSource, build_task
from t5x_like.data.supervised.sequences import Encoded, layout_facts
from t5x_like.data.supervised.templates import to_text
from t5x_like.data.task import Task
from t5x_like.errors import UserError
from t5x_like.slots import Length

# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "builtin", "vocabulary": "bytes"}


def tiny(length: int) -> dict[str, int]:
  """Return the lengths of its laptop form."""
  return {"length": length, "stride": length // 4}


def features(vocabulary, /, *, length: int, **_) -> Features:
  """Return the features of the task with these arguments."""
  ends = {name: Feature((), "int32") for name in ("span_start", "span_end")}
  return encoder(length) | ends | {"example_weights": Feature((), "float32")}


def task(
  *,
  length: Length = 384,
  stride: Length = 128,
  question_length: Length = 64,
  **records: Unpack[LabelledSource],
) -> Task:
  """Make the task.

  Args:
    length: length of a row, its special tokens included.
    stride: context tokens from the beginning of a window to the beginning of the next.
    question_length: longer questions are truncated to this many tokens, and counted in the report.
    records: see `Records`. The records have fields question, context and answers, a possibly empty
      list of {text, answer_start} (or TFDS's dict of lists).

  Raises:
    UserError: unusable lengths or an answer that is not in its context; and as `labelled`.
  """
  source = LabelledSource(**records)
  vocabulary = vocabularies.load(source.vocabulary)
  contexts = Contexts(vocabulary)

  def example(record, where):
    question, context = (
      to_text(field_value(record, name, where), name, where) for name in ("question", "context")
    )
    asked = np.array(sum(contexts.split_words(question.split()), []), np.int32)
    told = contexts(context).tokens
    if not told.size or not (asked.size or source.allows_gaps):
      return Skip("empty context" if not told.size else "empty question")
    answers = parse_answers(field_value(record, "answers", where), where)
    start, end = contexts.locate(context, *answers[0], where) if answers else (-1, -1)
    return {
      "question": asked,
      "context": told,
      "answer_start": np.int32(start),
      "answer_end": np.int32(end),
    }

  def rows(store):
    row = Encoded(store, ["question", "context"], length)
    question_N = np.minimum(store.lengths["question"], question_length)
    context_N = store.lengths["context"]
    room_N = row.room - question_N
    if room_N.min() < stride:
      raise UserError(
        f"config.task.length: found {length} with stride {stride}, but questions of up to "
        f"{question_N.max()} tokens "
        f"leave {room_N.min()} for the context; raise length, or lower stride or question_length"
      )
    windows_N = 1 + np.maximum(-(-(context_N - room_N) // stride), 0)
    example_W = np.repeat(np.arange(store.num_examples), windows_N)
    begin_W = stride * (
      np.arange(example_W.size) - np.repeat(np.cumsum(windows_N) - windows_N, windows_N)
    )
    cut = (store.lengths["question"] > question_length).sum()
    print(
      f"data: {store.path}: {store.num_examples:,} questions ({cut:,} cut to {question_length} "
      f"tokens) in {example_W.size:,} windows",
      flush=True,
    )

    def read(index_B):
      example_B = example_W[index_B]
      begin_B = begin_W[index_B]
      held_B = np.minimum(context_N[example_B] - begin_B, room_N[example_B])
      found = row(example_B, np.stack([question_N[example_B], held_B], axis=1), begin_B)
      start_B, end_B = (
        store.arrays[f"answer_{side}"][example_B] - begin_B for side in ("start", "end")
      )
      inside_B = (store.arrays["answer_start"][example_B] >= 0) & (start_B >= 0) & (end_B < held_B)
      before_B = row.extra - 1 + question_N[example_B]  # [CLS] question [SEP]
      spans = {"span_start": before_B + start_B, "span_end": before_B + end_B}
      spans = {name: np.where(inside_B, place_B, 0) for name, place_B in spans.items()}
      return found | spans | {"example_weights": np.ones(index_B.size)}

    def window(n, begin):
      return slice(begin, begin + int(room_N[n]))

    @functools.lru_cache(1)
    def owner(n):
      return window_with_most_context(
        [window(n, stride * number) for number in range(windows_N[n])], int(context_N[n])
      )

    def view(record, where, w):
      n = int(example_W[w])
      begin = int(begin_W[w])
      return {
        "question": n,
        "context": record["context"],
        "answers": [
          text for text, _ in parse_answers(field_value(record, "answers", where), where)
        ],
        "first": int(row.extra - 1 + question_N[n]),
        "spans": contexts(record["context"]).spans[window(n, begin)],
        "most_context": owner(n)[window(n, begin)] == begin // stride,
      }

    return ExampleRows(example_W.size, read, example_W, view)

  return build_task(
    "span_qa.v4",
    source,
    vocabulary,
    fields=("question", "context", "answers"),
    facts=source.gap_facts,
    streams={"question": False, "context": False},
    make_example=example,
    make_rows=rows,
    features=features(vocabulary, length=length),
    row_facts={"length": length, "stride": stride, "question_length": question_length}
    | layout_facts("encoder", vocabulary),
  )
