"""Extractive question answering, as in SQuAD, for encoders (Devlin et al. 2019, section 4.2; Rajpurkar et al. 2016).

  config.task = {"name": "span_qa", "source": "squad:train=train-v1.1.json,validation=dev-v1.1.json",
                 "vocabulary": "vocabulary", "length": 384, "stride": 128}

A row is [CLS] question [SEP] context [SEP]. A context that is too long becomes several examples, windows that begin
`stride` tokens apart. `span_start` and `span_end` are the places of the answer's first and last token in the row; both
are 0, the place of [CLS], where there is no answer or the window does not hold all of it. Of several answers the first
counts. Its characters are located in the context by `answer_start`, and the label is the shortest run of tokens that
covers all of them: exactly the answer, unless it begins or ends within a token.

`Task.examples` gives for each window `record`, `context`, `answers` (texts), `question` (the number of its question),
`first` (the position in the row of its first context token), `spans`, int64 [n, 2]: the beginning and end of its tokens
in the context, and `most_context`, bool [n]: whether no other window has more context around the token.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Record, Skip, value
from t5x_like.data.features import Feature, Features, encoder
from t5x_like.data.supervised import encoder_inputs, example_store, records
from t5x_like.data.supervised.example_store import Example
from t5x_like.data.supervised.templates import as_text
from t5x_like.data.task import Task, digest
from t5x_like.errors import UserError
from t5x_like.slots import Length
from t5x_like.store.reader import Verify
from t5x_like.vocabularies import Vocabulary

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
  source: str,
  split: str,
  vocabulary: str = "bytes",
  length: Length = 384,
  stride: Length = 128,
  question_length: Length = 64,
  cache: str = "data/prepared",
  data_dir: str | None = None,
  label: str | None = None,
  verify: Verify = "auto",
) -> Task:
  """Make the task.

  Args:
    source, split, vocabulary, cache, data_dir, verify: see `text_to_text`. The records have fields question, context
      and answers, a possibly empty list of {text, answer_start} (or TFDS's dict of lists).
    length: length of a row, its special tokens included.
    stride: context tokens from the beginning of a window to the beginning of the next.
    question_length: longer questions are truncated to this many tokens, and counted in the report.
    label: the name in metrics; by default `<corpus>_span_qa`.

  Raises:
    UserError: unusable source or lengths, an answer that is not in its context, no examples, a file changed since
      preparation.
  """
  encoding = vocabularies.load(vocabulary)
  fields = ("question", "context", "answers")
  store = example_store.open_store(
    source,
    split,
    task="span_qa.v2",
    fields=fields,
    facts={},
    vocabulary=encoding,
    streams={"question": False, "context": False},
    examples=functools.partial(_examples, encoding),
    cache=cache,
    data_dir=data_dir,
    verify=verify,
  )
  sequences = encoder_inputs.Sequences(store, ("question", "context"), length)
  question_N, context_N = np.minimum(store.lengths["question"], question_length), store.lengths["context"]
  room_N = length - sequences.extra - question_N
  if room_N.min() < stride or stride < 1 or question_length < 1:
    raise UserError(
      f"config.task.length: found {length} with stride {stride}, but questions of up to "
      f"{question_N.max()} tokens leave {room_N.min()} for the context; raise length, or lower stride or "
      "question_length"
    )
  cut = int((store.lengths["question"] > question_length).sum())
  windows_N = 1 + np.maximum(-(-(context_N - room_N) // stride), 0)
  example_W = np.repeat(np.arange(store.num_examples), windows_N)
  begin_W = stride * (np.arange(example_W.size) - np.repeat(np.cumsum(windows_N) - windows_N, windows_N))
  print(
    f"data: {store.path}: {store.num_examples:,} questions ({cut:,} cut to {question_length} tokens) in "
    f"{example_W.size:,} windows",
    flush=True,
  )

  def read(index_B: np.ndarray) -> dict[str, np.ndarray]:
    example_B, begin_B = example_W[index_B], begin_W[index_B]
    held_B = np.minimum(context_N[example_B] - begin_B, room_N[example_B])
    tokens, types = sequences(example_B, np.stack([question_N[example_B], held_B], axis=1), begin_B)
    start_B, end_B = (store.arrays[f"answer_{side}"][example_B] - begin_B for side in ("start", "end"))
    inside_B = (store.arrays["answer_start"][example_B] >= 0) & (start_B >= 0) & (end_B < held_B)
    before_B = 2 + question_N[example_B]  # [CLS] question [SEP]
    return {
      "encoder_input_tokens": tokens,
      "encoder_token_types": types,
      "span_start": np.where(inside_B, before_B + start_B, 0),
      "span_end": np.where(inside_B, before_B + end_B, 0),
      "example_weights": np.ones(index_B.size),
    }

  def of_records(more: Sequence[str]) -> list[dict[str, Any]]:
    found = records.used(
      source,
      split,
      fields=(*fields, *more),
      data_dir=data_dir,
      examples=functools.partial(_examples, encoding, locate=False),
    )
    spans = _Spans(encoding)
    made = []
    for (where, record), number in zip(found, range(len(found))):
      answers = [text for text, _ in _all(value(record, "answers", where), where)]
      made.append({"record": record, "question": number, "context": record["context"], "answers": answers})
    windows = []
    for n, about in enumerate(made):
      held = [slice(stride * window, stride * window + int(room_N[n])) for window in range(windows_N[n])]
      owner = _most_context(held, int(context_N[n]))
      for number, part in enumerate(held):
        own = {"spans": spans(about["context"])[part], "most_context": owner[part] == number}
        windows.append(about | {"first": int(2 + question_N[n])} | own)
    return windows

  described = features(encoding, length=length)
  return Task(
    name=label or f"{store.name}_span_qa",
    vocabulary=encoding,
    fingerprint=digest(
      task="span_qa.v2", examples=store.fingerprint, length=length, stride=stride, question_length=question_length
    ),
    num_examples=example_W.size,
    features=described,
    batch=encoder_inputs.batch_of(read, described),
    examples=of_records,
  )


def _most_context(windows: Sequence[slice], tokens: int) -> np.ndarray:
  """Return the window that has most context around each token of a text, int [tokens].

  A token's context is the smaller number of tokens on its two sides (Devlin et al. 2019, `run_squad.py`). Of several
  windows with equally much the longest counts, and of these the first.
  """
  score_WN = np.full((len(windows), tokens), -1.0)
  for number, part in enumerate(windows):
    place_n = np.arange(tokens)[part]
    score_WN[number, part] = np.minimum(place_n - place_n[0], place_n[-1] - place_n) + 0.01 * place_n.size
  return score_WN.argmax(axis=0)


class _Spans:
  """The first and end characters of a context's tokens, int64 [n, 2]; caches the last context."""

  def __init__(self, vocabulary: Vocabulary):
    self._vocabulary, self._cut = vocabulary, encoder_inputs.Words(vocabulary)
    self._known: dict[tuple, list[tuple[int, int]]] = {}
    self._last = ("", np.zeros((0, 2), np.int64))

  def __call__(self, context: str) -> np.ndarray:
    if context != self._last[0]:
      at, out = 0, []
      for word, ids in zip(context.split(), self._cut(context.split())):
        at = context.index(word, at)
        key = (word, *ids)
        if key not in self._known:
          self._known[key] = encoder_inputs.character_spans(word, ids, self._vocabulary)
        out += [(at + begin, at + past) for begin, past in self._known[key]]
        at += len(word)
      self._last = (context, np.array(out, np.int64).reshape(-1, 2))
    return self._last[1]


def _examples(
  vocabulary: Vocabulary, rows: Iterator[tuple[str, Record]], locate: bool = True
) -> Iterator[Example | Skip]:
  """Yield examples; without `locate`, only the choice of skipped records is right."""
  cut = encoder_inputs.Words(vocabulary)
  for where, record in rows:
    question, context = (as_text(value(record, name, where), name, where) for name in ("question", "context"))
    if not question.split() or not context.split():
      yield Skip("empty question" if not question.split() else "empty context")
      continue
    if not locate:
      yield {}
      continue
    tokens, start, end = _locate(context, _first(value(record, "answers", where), where), cut, vocabulary, where)
    yield {
      "question": np.concatenate(cut(question.split())).astype(np.int32),
      "context": tokens,
      "answer_start": np.int32(start),
      "answer_end": np.int32(end),
    }


def _first(answers, where: str) -> tuple[str, int] | None:
  """Return the first answer's text and place in the context; None without answers."""
  return next(iter(_all(answers, where)), None)


def _all(answers, where: str) -> list[tuple[str, int]]:
  """Return the answers' texts and places in the context."""
  found = answers
  try:
    if isinstance(answers, dict):  # TFDS has parallel lists
      answers = [{"text": text, "answer_start": n} for text, n in zip(answers["text"], answers["answer_start"])]
    out = []
    for found in answers or ():
      out.append((found["text"], int(found["answer_start"])))
      if not isinstance(out[-1][0], str):
        raise TypeError
  except (KeyError, OverflowError, TypeError, ValueError):
    raise UserError(
      f"{where}: found {str(found)[:80]!r} in field 'answers', expected {{text, answer_start}}: the text and "
      "its place in the context"
    ) from None
  return out


def _locate(context: str, answer, cut, vocabulary, where: str) -> tuple[np.ndarray, int, int]:
  """Return the tokens of the context and the answer's first and last token (-1 without an answer)."""
  words, places, at = context.split(), [], 0
  for word in words:
    at = context.index(word, at)
    places.append(at)
    at += len(word)
  pieces = cut(words)
  tokens = np.concatenate(pieces).astype(np.int32)
  if answer is None:
    return tokens, -1, -1
  text, begin = answer
  begin += len(text) - len(text.lstrip())
  text = text.strip()
  past = begin + len(text)
  found = context[begin:past] if begin >= 0 else ""
  if not text or found != text:
    raise UserError(f"{where}: found {found!r} at place {begin} of the context, expected the answer {text!r}")
  first, last = (int(np.searchsorted(places, x, side="right")) - 1 for x in (begin, past - 1))
  starts = np.cumsum([0, *map(len, pieces)])

  def spans(word: int) -> np.ndarray:
    found = encoder_inputs.character_spans(words[word], pieces[word], vocabulary)
    return places[word] + np.array(found).reshape(-1, 2)

  low = starts[first] + np.sum(spans(first)[:, 1] <= begin)
  high = starts[last] + np.sum(spans(last)[:, 0] < past) - 1
  if low > high:  # the vocabulary drops all of the answer's characters
    low, high = starts[first], starts[last + 1] - 1
  return tokens, int(low), int(high)
