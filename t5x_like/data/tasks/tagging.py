"""Tagging of words, such as named entities, for encoders (Devlin et al. 2019, section 5.3).

  config.task = {"name": "tagging", "source": "conll:train=train.conll,validation=dev.conll",
                 "tags_field": "1", "tags": ["O", "B-PER", "I-PER"], "vocabulary": "vocabulary"}

A row is [CLS] tokens [SEP]. The first token of each word has the index of its tag in
`encoder_target_tokens` and weight 1 in `encoder_loss_weights`; all others have weight 0.

`Task.examples` gives `record`, `tokens` and `tags`, all of them, also where the row is truncated.
"""

from typing import Unpack

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Skip, field_value
from t5x_like.data.features import Feature, Features, encoder
from t5x_like.data.supervised.labelled import ExampleRows, LabelledSource, build_task, read_parallel
from t5x_like.data.supervised.labels import label_number, number_labels
from t5x_like.data.supervised.sequences import Encoded
from t5x_like.data.supervised.templates import to_text
from t5x_like.data.supervised.too_long import TooLong
from t5x_like.data.supervised.words import Words
from t5x_like.data.task import Task
from t5x_like.errors import UserError
from t5x_like.slots import Length

# On the built-in corpus, for `:debug`.
BUILT_IN = {
  "source": "builtin",
  "vocabulary": "bytes",
  "tags_field": "tags",
  "tags": ["short", "long"],
}


def features(vocabulary, /, *, length: int, **_) -> Features:
  """Return the features of the task with these arguments."""
  return encoder(length, "target_tokens") | {"encoder_loss_weights": Feature((length,), "float32")}


def task(
  *,
  tags: list | tuple,
  tokens_field: str = "tokens",
  tags_field: str = "tags",
  length: Length = 128,
  too_long: TooLong = "truncate",
  **records: Unpack[LabelledSource],
) -> Task:
  """Make the task.

  Args:
    tags: all tags, in the order of the classes.
    tokens_field, tags_field: the fields with the list of words and the list of their tags.
    length: length of a row, [CLS] and [SEP] included.
    too_long: treatment of longer sentences; to metrics, words that are cut off have the tag O or,
      without it, none.
    records: see `Records`.

  Raises:
    UserError: an unknown tag or lists of different lengths; and as `labelled`.
  """
  source = LabelledSource(**records)
  vocabulary = vocabularies.load(source.vocabulary)
  numbers = number_labels(tags, "tags")
  cut = Words(vocabulary)

  def example(record, where):
    words = field_value(record, tokens_field, where)
    found = field_value(record, tags_field, where)
    if not isinstance(words, list) or not isinstance(found, list) or len(words) != len(found):
      raise UserError(
        f"{where}: found {_size(words)} in {tokens_field!r} and {_size(found)} in {tags_field!r}, "
        "expected a list of words and a list of as many tags"
      )
    if None in words:
      raise UserError(f"{where}: found null at {tokens_field}.{words.index(None)}, expected a word")
    if not words:
      return Skip("no words")
    pieces = [
      ids or [vocabulary.unk_id]
      for ids in cut([to_text(word, tokens_field, where) for word in words])
    ]
    targets = np.full(sum(map(len, pieces)), -1, np.int32)
    starts = np.cumsum([0, *map(len, pieces[:-1])])
    targets[starts] = [label_number(str(tag), numbers, tags_field, where) for tag in found]
    return {"tokens": np.concatenate(pieces).astype(np.int32), "tags": targets}

  def view(record, where, _):
    named = ("tokens", tokens_field), ("tags", tags_field)
    return {name: [str(one) for one in field_value(record, field, where)] for name, field in named}

  def rows(store):
    row = Encoded(store, ["tokens"], length)
    used, lengths_n1 = row.fit(too_long)

    def read(index_B):
      valid = np.arange(length - 2) < lengths_n1[index_B]
      tags = np.where(valid, read_parallel(store, "tags", "tokens", used[index_B], valid), -1)
      tags = np.pad(tags, ((0, 0), (1, 1)), constant_values=-1)
      targets = {"encoder_target_tokens": np.maximum(tags, 0), "encoder_loss_weights": tags >= 0}
      return row(used[index_B], lengths_n1[index_B]) | targets

    return ExampleRows(used.size, read, used, view, row.truncated_share(used, lengths_n1))

  return build_task(
    "tagging.v1",
    source,
    vocabulary,
    fields=(tokens_field, tags_field),
    facts={"tags": list(numbers), "tokens": tokens_field, "field": tags_field},
    streams={"tokens": False},
    make_example=example,
    make_rows=rows,
    features=features(vocabulary, length=length),
    row_facts={"length": length, "too_long": too_long},
    classes=tuple(numbers),
  )


def _size(found) -> str:
  return f"{len(found)} items" if isinstance(found, list) else type(found).__name__
