"""Encoder inputs, one example per row: [CLS] a [SEP] or [CLS] a [SEP] b [SEP]; and words split into tokens.

A vocabulary without these pieces lends sentinels, see `vocabularies.special`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import numpy as np

from t5x_like import vocabularies
from t5x_like.data.features import Feature
from t5x_like.data.features import encoder as features
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.supervised.example_store import ExampleStore
from t5x_like.errors import UserError

__all__ = ["Sequences", "Words", "batch_of", "features"]


class Sequences:
  """Rows of one or two streams of a store.

  Args:
    store: the store of the streams, without EOS.
    streams: one or two names.
    length: length of a row.

  Attributes:
    extra: the number of special tokens in a row.
  """

  def __init__(self, store: ExampleStore, streams: tuple[str, ...], length: int):
    self._store, self._streams, self._length = store, streams, length
    self._cls = vocabularies.special(store.vocabulary, "cls")
    self._sep = vocabularies.special(store.vocabulary, "sep")
    self.extra = 1 + len(streams)
    if store.vocabulary.pad_id is None:
      raise UserError(
        f"{store.path}: its vocabulary has no padding piece, expected one, by which encoders tell padding; add one to "
        "the published tokenizer (tokenizer.add_special_tokens, then model.resize_token_embeddings)"
      )
    self._pad = store.vocabulary.pad_id

  def __call__(
    self, example_B: np.ndarray, lengths_BD: np.ndarray, skip_B: np.ndarray | int = 0
  ) -> tuple[np.ndarray, np.ndarray]:
    """Make rows of the first `lengths` tokens of each stream, after `skip` tokens in the last stream.

    Returns:
      `encoder_input_tokens` and `encoder_token_types` (0 up to the first [SEP], 1 after it), int32 [B, length].
    """
    tokens_BS, types_BS = np.zeros((2, example_B.size, self._length), np.int32)
    tokens_BS[:], tokens_BS[:, 0] = self._pad, self._cls
    rows, place_B = np.arange(example_B.size), np.ones(example_B.size, np.int64)
    for number, stream in enumerate(self._streams):
      length_B = lengths_BD[:, number]
      skip = skip_B if number == len(self._streams) - 1 else 0
      part_BL, valid_BL = self._store.read(stream, example_B, length_B, skip)
      at = place_B[:, None] + np.arange(part_BL.shape[1])
      row_BL = np.broadcast_to(rows[:, None], at.shape)
      tokens_BS[row_BL[valid_BL], at[valid_BL]] = part_BL[valid_BL]
      tokens_BS[rows, place_B + length_B] = self._sep
      places = np.arange(self._length)
      types_BS[(places >= place_B[:, None]) & (places <= (place_B + length_B)[:, None])] = number
      place_B = place_B + length_B + 1
    return tokens_BS, types_BS


def batch_of(read: Callable[[np.ndarray], dict[str, np.ndarray]], described: dict[str, Feature]):
  """Make a task's `batch` from a function of the example indices alone."""

  def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    def arrays(index_B: np.ndarray) -> list[np.ndarray]:
      made = read(index_B)
      return [made[name].astype(feature.dtype, copy=False) for name, feature in described.items()]

    kinds = [getattr(tf, feature.dtype) for feature in described.values()]
    out = tf.numpy_function(arrays, [example_index_B], kinds, stateful=False)
    return {
      name: tf.ensure_shape(x, [example_index_B.shape[0], *described[name].shape]) for name, x in zip(described, out)
    }

  return batch


def character_spans(word: str, ids: list[int], vocabulary) -> list[tuple[int, int]]:
  """Return the characters of each token of a word, (begin, end).

  A vocabulary of the tokenizers library keeps these places itself. For any other, the decoded tokens are aligned with
  the word: cased and accented letters equal those to which a vocabulary folds them. If the ids do not spell the word,
  each token covers all of it.
  """
  if hasattr(vocabulary, "encode_with_offsets"):
    for lead in ("", " "):  # the ids may be those of the word after a space
      found, spans = vocabulary.encode_with_offsets(lead + word)
      if found == list(ids):
        spans = [(max(begin - len(lead), 0), past - len(lead)) for begin, past in spans]
        return _with_accents(word, spans)
  places, letters = [], []
  for place, letter in enumerate(word):
    folded = _folded(letter)
    letters.append(folded)
    places += [place] * len(folded)
  ends = [len(_folded(vocabulary.decode(ids[: number + 1]))) for number in range(len(ids))]
  if _folded(vocabulary.decode(ids)) != "".join(letters) or sorted(ends) != ends or not places:
    return [(0, len(word))] * len(ids)
  begins = [min(begin, len(places) - 1) for begin in [0, *ends[:-1]]]
  return [(places[begin], places[max(begin, end - 1)] + 1) for begin, end in zip(begins, ends)]


def _with_accents(word: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
  """Return the spans, each with the combining characters behind it that the vocabulary drops."""
  following = [begin for begin, _ in spans[1:]] + [len(word)]
  return [
    (begin, max(past, after) if all(map(unicodedata.combining, word[past:after])) else past)
    for (begin, past), after in zip(spans, following)
  ]


def _folded(text: str) -> str:
  letters = unicodedata.normalize("NFKD", text.lower())
  return "".join(x for x in letters if not (x.isspace() or unicodedata.combining(x) or x == "\ufffd"))


class Words:
  """A splitter of single words into the tokens they have in running text; it caches results."""

  def __init__(self, vocabulary):
    self._vocabulary, self._known = vocabulary, {}
    together = [int(i) for i in vocabulary.encode("a b")]
    alone = [int(i) for word in ("a", "b") for i in vocabulary.encode(word)]
    self._lead = "" if together == alone else " "  # bytes and byte-level BPE see the space before a word

  def __call__(self, words: list[str]) -> list[list[int]]:
    """Return the ids of each word; a word without ids becomes the unknown id."""
    out = []
    for number, word in enumerate(words):
      text = (self._lead if number else "") + word
      if text not in self._known:
        self._known[text] = [int(i) for i in self._vocabulary.encode(text)] or [self._vocabulary.unk_id]
      out.append(self._known[text])
    return out
