"""Tagging of words, such as named entities, for encoders (Devlin et al. 2019, section 5.3).

  config.task = {"name": "tagging", "source": "conll:train=train.conll,validation=dev.conll", "tags_field": "1",
                 "tags": ["O", "B-PER", "I-PER"], "vocabulary": "vocabulary"}

A row is [CLS] tokens [SEP]. The first token of each word has the index of its tag in `encoder_target_tokens` and
weight 1 in `encoder_loss_weights`; all others have weight 0.

`Task.examples` gives `record`, `tokens` and `tags`, all of them, also where the row is truncated.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Record, Skip, value
from t5x_like.data.features import Feature, Features, encoder
from t5x_like.data.supervised import encoder_inputs, example_store, records
from t5x_like.data.supervised.example_store import Example
from t5x_like.data.supervised.labels import number_of, numbered
from t5x_like.data.supervised.templates import as_text
from t5x_like.data.supervised.too_long import TooLong, fit
from t5x_like.data.task import Task, digest
from t5x_like.errors import UserError
from t5x_like.slots import Length
from t5x_like.store.reader import Verify

# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "builtin", "vocabulary": "bytes", "tags_field": "tags", "tags": ["short", "long"]}


def features(vocabulary, /, *, length: int, **_) -> Features:
  """Return the features of the task with these arguments."""
  return encoder(length, "target_tokens") | {"encoder_loss_weights": Feature((length,), "float32")}


def task(
  *,
  source: str,
  split: str,
  tags: list | tuple,
  tokens_field: str = "tokens",
  tags_field: str = "tags",
  vocabulary: str = "bytes",
  length: Length = 128,
  too_long: TooLong = "truncate",
  cache: str = "data/prepared",
  data_dir: str | None = None,
  label: str | None = None,
  verify: Verify = "auto",
) -> Task:
  """Make the task.

  Args:
    source, split, vocabulary, cache, data_dir, verify: see `text_to_text`.
    tags: all tags, in the order of the classes.
    tokens_field, tags_field: the fields with the list of words and the list of their tags.
    length: length of a row, [CLS] and [SEP] included.
    too_long: treatment of longer sentences; metrics do not count truncated words.
    label: the name in metrics; by default `<corpus>_tagging`.

  Raises:
    UserError: unusable source, an unknown tag, lists of different lengths, no examples, a file changed since
      preparation.
  """
  encoding = vocabularies.load(vocabulary)
  numbers = numbered(tags, "tags")
  cut = encoder_inputs.Words(encoding)

  def examples(rows: Iterator[tuple[str, Record]]) -> Iterator[Example | Skip]:
    for where, record in rows:
      words, found = value(record, tokens_field, where), value(record, tags_field, where)
      if not isinstance(words, list) or not isinstance(found, list) or len(words) != len(found):
        raise UserError(
          f"{where}: found {_size(words)} in {tokens_field!r} and {_size(found)} in {tags_field!r}, "
          "expected a list of words and a list of as many tags"
        )
      if None in words:
        raise UserError(f"{where}: found null at {tokens_field}.{words.index(None)}, expected a word")
      if not words:
        yield Skip("no words")
        continue
      pieces = cut([as_text(word, tokens_field, where) for word in words])
      targets = np.full(sum(map(len, pieces)), -1, np.int32)
      starts = np.cumsum([0, *map(len, pieces[:-1])])
      targets[starts] = [number_of(str(tag), numbers, tags_field, where) for tag in found]
      yield {"tokens": np.concatenate(pieces).astype(np.int32), "tags": targets}

  store = example_store.open_store(
    source,
    split,
    task="tagging.v1",
    fields=(tokens_field, tags_field),
    facts={"tags": list(numbers), "tokens": tokens_field, "field": tags_field},
    vocabulary=encoding,
    streams={"tokens": False},
    examples=examples,
    cache=cache,
    data_dir=data_dir,
    verify=verify,
  )
  sequences = encoder_inputs.Sequences(store, ("tokens",), length)
  if length <= sequences.extra:
    raise UserError(f"config.task.length: found {length}, expected at least {sequences.extra + 1}")
  used, lengths_n1 = fit(
    store.lengths["tokens"][:, None], (length - sequences.extra,), too_long, store.path, ("length",)
  )
  starts_N = store.ends["tokens"] - store.lengths["tokens"]

  def read(index_B: np.ndarray) -> dict[str, np.ndarray]:
    tokens, types = sequences(used[index_B], lengths_n1[index_B])
    inside = np.arange(length) - 1
    valid = (inside >= 0) & (inside < lengths_n1[index_B])
    places = np.where(valid, starts_N[used[index_B]][:, None] + inside, 0)
    targets = np.where(valid, store.arrays["tags"][places], -1)
    return {
      "encoder_input_tokens": tokens,
      "encoder_token_types": types,
      "encoder_target_tokens": np.maximum(targets, 0),
      "encoder_loss_weights": targets >= 0,
    }

  def of_records(more: Sequence[str]) -> list[dict[str, Any]]:
    fields = (tokens_field, tags_field, *more)
    found = records.used(source, split, fields=fields, data_dir=data_dir, examples=examples)
    return [
      {
        "record": record,
        "tokens": [str(word) for word in value(record, tokens_field, where)],
        "tags": [str(tag) for tag in value(record, tags_field, where)],
      }
      for where, record in (found[number] for number in used)
    ]

  described = features(encoding, length=length)
  return Task(
    name=label or f"{store.name}_tagging",
    vocabulary=encoding,
    fingerprint=digest(task="tagging.v1", examples=store.fingerprint, length=length, too_long=too_long),
    num_examples=used.size,
    features=described,
    batch=encoder_inputs.batch_of(read, described),
    examples=of_records,
    classes=tuple(numbers),
  )


def _size(found) -> str:
  return f"{len(found)} items" if isinstance(found, list) else type(found).__name__
