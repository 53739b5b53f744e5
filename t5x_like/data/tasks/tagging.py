"""Tagging of words, such as named entities, for encoders (Devlin et al. 2019, section 5.3).

  config.task = {"name": "tagging", "source": "conll:train=train.conll,validation=dev.conll",
                 "tags_field": "1", "tags": ["O", "B-PER", "I-PER"], "vocabulary": "vocabulary"}

A row is [CLS] tokens [SEP]. The first token of each word has the index of its tag in
`encoder_target_tokens` and weight 1 in `encoder_loss_weights`; all others have weight 0.

`Task.examples` gives `record`, `tokens` and `tags`, all of them, also where the row is truncated.
"""

import dataclasses
from typing import Any

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Record, Skip, field_value
from t5x_like.data.features import Feature, Features, encoder
from t5x_like.data.supervised.example_store import Example, ExampleStore
from t5x_like.data.supervised.labelled import ExampleRows, LabelledArguments, read_parallel
from t5x_like.data.supervised.labels import label_number, number_labels
from t5x_like.data.supervised.sequences import Encoded
from t5x_like.data.supervised.templates import to_text
from t5x_like.data.supervised.too_long import TooLong
from t5x_like.data.supervised.words import Words
from t5x_like.data.task import Task, rows_only
from t5x_like.errors import UserError
from t5x_like.slots import Length
from t5x_like.vocabularies import Vocabulary

# The arguments of the task on the built-in corpus, for `:debug`.
BUILT_IN = {
  "source": "builtin",
  "vocabulary": "bytes",
  "tags_field": "tags",
  "tags": ["short", "long"],
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(LabelledArguments):
  """The arguments of tagging.

  Attributes:
    tags: all tags, in the order of the classes.
    tokens_field, tags_field: the fields with the list of words and the list of their tags.
    length: length of a row, [CLS] and [SEP] included.
    too_long: treatment of longer sentences; to metrics, words that are cut off have the tag O or,
      without it, none.
  """

  tags: list | tuple
  tokens_field: str = "tokens"
  tags_field: str = "tags"
  length: Length = rows_only(default=128)
  too_long: TooLong = rows_only(default="truncate")

  def features(self, vocabulary: Vocabulary) -> Features:
    features = encoder(self.length, "target_tokens")
    features["encoder_loss_weights"] = Feature((self.length,), "float32")
    return features

  def build(self) -> Task:
    """Prepare the examples and return the task.

    Raises:
      UserError: an unknown tag or lists of different lengths; and as
        `LabelledArguments.build_task`.
    """
    vocabulary = vocabularies.load(self.vocabulary)
    numbers = number_labels(self.tags, "tags")
    examples = _TaggedWords(vocabulary, numbers, self.tokens_field, self.tags_field)

    def make_rows(store: ExampleStore) -> ExampleRows:
      encoded = Encoded(store, ["tokens"], self.length)
      used, lengths_n1 = encoded.fit(self.too_long)

      def read(index_B: np.ndarray) -> dict[str, np.ndarray]:
        rows = encoded(used[index_B], lengths_n1[index_B])
        valid_BL = np.arange(self.length - 2) < lengths_n1[index_B]
        tags_BL = read_parallel(store, "tags", "tokens", used[index_B], valid_BL)
        tags_BL = np.where(valid_BL, tags_BL, -1)
        tags_BL = np.pad(tags_BL, ((0, 0), (1, 1)), constant_values=-1)  # [CLS] and [SEP]
        rows["encoder_target_tokens"] = np.maximum(tags_BL, 0)
        rows["encoder_loss_weights"] = tags_BL >= 0
        return rows

      truncated = encoded.truncated_share(used, lengths_n1)
      return ExampleRows(used.size, read, used, examples.view, truncated)

    return self.build_task(
      "tagging.v1",
      vocabulary,
      fields=(self.tokens_field, self.tags_field),
      streams={"tokens": False},
      make_example=examples.make_example,
      make_rows=make_rows,
      classes=tuple(numbers),
    )


class _TaggedWords:
  """Sentences from records, with the tag of each word at its first token."""

  def __init__(
    self, vocabulary: Vocabulary, numbers: dict[str, int], tokens_field: str, tags_field: str
  ):
    self._split_words = Words(vocabulary)
    self._unk_id = vocabulary.unk_id
    self._numbers = numbers
    self._tokens_field = tokens_field
    self._tags_field = tags_field

  def make_example(self, record: Record, where: str) -> Example | Skip:
    """Return the ids of a sentence and the tags of its tokens, or the reason to skip it."""
    words = field_value(record, self._tokens_field, where)
    tags = field_value(record, self._tags_field, where)
    if not isinstance(words, list) or not isinstance(tags, list) or len(words) != len(tags):
      raise UserError(
        f"{where}: found {_size(words)} in {self._tokens_field!r} and {_size(tags)} in "
        f"{self._tags_field!r}, expected a list of words and a list of as many tags"
      )
    if None in words:
      raise UserError(
        f"{where}: found null at {self._tokens_field}.{words.index(None)}, expected a word"
      )
    if not words:
      return Skip("no words")
    texts = [to_text(word, self._tokens_field, where) for word in words]
    pieces = [ids or [self._unk_id] for ids in self._split_words(texts)]
    lengths = [len(ids) for ids in pieces]
    numbers = []
    for tag in tags:
      numbers.append(label_number(str(tag), self._numbers, self._tags_field, where))
    targets = np.full(sum(lengths), -1, np.int32)
    targets[np.cumsum([0, *lengths[:-1]])] = numbers
    return {"tokens": np.concatenate(pieces).astype(np.int32), "tags": targets}

  def view(self, record: Record, where: str, _: int) -> dict[str, list[str]]:
    """Return the words of a sentence and their tags; see `Task.examples`."""
    words = field_value(record, self._tokens_field, where)
    tags = field_value(record, self._tags_field, where)
    return {"tokens": [str(word) for word in words], "tags": [str(tag) for tag in tags]}


def _size(content: Any) -> str:
  """Describe the content of a field in a message."""
  return f"{len(content)} items" if isinstance(content, list) else type(content).__name__
