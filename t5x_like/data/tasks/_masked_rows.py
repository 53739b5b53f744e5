"""Rows of masked language modelling, which several tasks share; see `mlm`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from t5x_like.data import random, windows
from t5x_like.data.document_chunks import Chunks
from t5x_like.data.features import Feature, Features, encoder
from t5x_like.data.preprocessors import as_decoder, segments, sentences
from t5x_like.data.preprocessors.masking import Masking, Mode, predicted_positions
from t5x_like.data.task import Task, digest
from t5x_like.data.tasks import _packed_rows
from t5x_like.data.windows import TextArguments
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import Length
from t5x_like.store.tokens import TokenStore
from t5x_like.vocabularies import Vocabulary, special_id

_CONTEXT = 16  # tokens on either side that may decide whether a sentence begins
_PACKED = ("segment_pair", "doc_sentences")  # the formats whose rows can hold several sequences
# The names of features, by the names of the readers and masks below.
_FEATURE_NAMES = {
  "inputs": "encoder_input_tokens",
  "targets": "encoder_target_tokens",
  "weights": "encoder_loss_weights",
  "types": "encoder_token_types",
  "segments": "encoder_segment_ids",
  "positions": "encoder_positions",
  "span_starts": "encoder_span_starts",
  "span_ends": "encoder_span_ends",
  "firsts": "encoder_cls_positions",
  "label": "next_sentence_label",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedRowArguments(TextArguments):
  """The arguments of tasks on rows of masked tokens.

  Attributes:
    length: length of every feature, special tokens included.
    input_format: the format of rows, see `tasks.mlm`.
    masking: `tokens`, `words` (whole words), `spans` (SpanBERT), `ngrams` (ALBERT) or `token_spans`
      (XLNet); see `preprocessors/masking.py`.
    rate: share of the tokens that are predicted.
    random_next: share of pairs whose second segment is from another document.
    short_pairs: share of segment pairs that are cut to a random size.
    sentence_rule: `module:function`, see `data/preprocessors/sentences.py`.
    segment_ids: whether to add segments, 1 for tokens and 0 for padding. Attention cores without
      segments, such as BigBird's, need False; the vocabulary's padding id then marks padding.
    packed: several sequences per row of `doc_sentences` and `segment_pair`, separated by segments;
      a pair's features then have an axis K for the pairs of a row: `next_sentence_label`, and
      `encoder_cls_positions`, where each begins (0 also where there is none).
  """

  length: Length = 512
  input_format: segments.Format = "full_sentences"
  masking: Mode = "tokens"
  rate: float = 0.15
  random_next: float = 0.5
  short_pairs: float = 0.1
  sentence_rule: str = sentences.DEFAULT_RULE
  segment_ids: bool = True
  packed: bool = True

  @property
  def _is_packed(self) -> bool:
    """Whether rows hold several sequences."""
    return self.packed and self.segment_ids and self.input_format in _PACKED

  @property
  def _has_pairs(self) -> bool:
    """Whether sequences are pairs of segments."""
    return self.input_format in ("segment_pair", "sentence_pair")

  def row_features(self, vocabulary: Vocabulary) -> Features:
    """Return the features of masked rows."""
    length = self.length
    extra_names = ["target_tokens"]
    if self.segment_ids:
      extra_names.append("segment_ids")
    if self._is_packed:
      extra_names.append("positions")
    if self.masking == "spans":
      extra_names += ["span_starts", "span_ends"]
    features = encoder(length, *extra_names)
    features["encoder_loss_weights"] = Feature((length,), "float32")
    features["encoder_masked_positions"] = Feature((max(1, round(self.rate * length)),), "int32")
    if self._has_pairs:
      features["next_sentence_label"] = Feature((), "int32")
    if self._is_packed and self._has_pairs:
      pairs_K = Feature((_packed_rows.max_pairs(length),), "int32")
      features["next_sentence_label"] = pairs_K
      features["encoder_cls_positions"] = pairs_K
    return features

  def build_rows(
    self,
    version: str,
    *,
    mask_share: float,
    random_share: float,
    static_copies: int | None = None,
    swapped: float = 0.0,
  ) -> Task:
    """Open the store and return a task on masked rows; for the arguments see `tasks.mlm`."""
    tokens = self.tokens()
    vocabulary = tokens.vocabulary
    masks = Masking(
      vocabulary, self.length, self.masking, float(self.rate), mask_share, random_share
    )
    self._check(tokens, static_copies, swapped)
    rule = sentences.Sentences(vocabulary, self.sentence_rule)
    reader = self._reader(tokens, rule, swapped)
    features = self.row_features(vocabulary)
    if self.as_decoder:
      as_decoder.describe(self.as_decoder, features)  # raises UserError
    is_stream = self.input_format == "full_sentences"
    has_offsets = self.dynamic_offsets and is_stream and static_copies is None

    def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
      copy_B = epoch_B if static_copies is None else epoch_B % static_copies
      key_B = random.row_keys(seed, copy_B, example_index_B)
      offset_B = 0
      if has_offsets:
        offset_B = windows.epoch_offsets(epoch_B, seed, tokens.num_tokens)
      row = reader(example_index_B, key_B, offset_B)
      masked = masks(row["tokens"], random.row_keys(8, key_B))
      values = {}
      for name, value in (row | masked).items():
        if name in _FEATURE_NAMES:
          values[_FEATURE_NAMES[name]] = value
      values["encoder_masked_positions"] = predicted_positions(masked["weights"], masks.max_chosen)
      return {name: values[name] for name in features}

    facts = {
      "store": tokens.fingerprint,
      "sentence_rule": rule.fact,
      "dynamic_offsets": has_offsets,
    }
    task_name, _, _ = version.partition(".")
    return Task(
      name=self.label or f"{tokens.name}_{task_name}",
      vocabulary=vocabulary,
      fingerprint=self.fingerprint(version, **facts),
      num_examples=reader.num_examples,
      numbering=digest(task="mlm_rows", **facts, **self._numbered_rows()),
      features=features,
      batch=batch,
    )

  def _numbered_rows(self) -> dict[str, Any]:
    """Return the arguments on which the text of a row depends besides the rule on sentences."""
    arguments = {
      "length": self.length,
      "input_format": self.input_format,
      "packed": self._is_packed,
    }
    if self._is_packed and self._has_pairs:
      arguments["cut_chunks"] = bool(self.short_pairs)  # whether chunks leave room for it
    return arguments

  def _reader(self, tokens: TokenStore, rule: sentences.Sentences, swapped: float) -> Callable:
    """Return the reader of rows: (indices, keys, offsets) -> features without masks."""
    vocabulary = tokens.vocabulary
    length = self.length
    pad_id = vocabulary.eos_id if vocabulary.pad_id is None else vocabulary.pad_id
    ids = segments.Ids(special_id(vocabulary, "cls"), special_id(vocabulary, "sep"), pad_id)
    if self.input_format == "full_sentences":
      return FullSentences(tokens, length, ids, rule)
    if not self._has_pairs:
      rows = _packed_rows.DocSentences if self._is_packed else DocSentences
      return rows(tokens, length, ids)
    shares = {"random_next": float(self.random_next), "short": 0.0}
    if self.input_format == "segment_pair":
      shares["short"] = float(self.short_pairs)
    if swapped:
      shares["swapped"] = swapped
    if self._is_packed:
      return _packed_rows.Pairs(tokens, length, ids, rule, **shares)
    is_single = self.input_format == "sentence_pair"
    return Pairs(tokens, length, ids, rule, single=is_single, **shares)

  def _check(self, tokens: TokenStore, static_copies: int | None, swapped: float) -> None:
    """Raise UserError for impossible arguments."""
    random_next = self.random_next
    if not 0 <= random_next <= 1 or not 0 <= self.short_pairs <= 1:
      raise UserError(
        f"random_next, short_pairs: found {random_next} and {self.short_pairs}, expected shares of "
        "0 to 1"
      )
    if swapped and random_next:
      raise UserError(
        f"swapped, random_next: found {swapped} and {random_next}, expected one of them to be 0"
      )
    if static_copies is not None and static_copies < 1:
      raise UserError(
        f"static_copies: found {static_copies}, expected at least 1, or None for a "
        "new mask every time"
      )
    if self._has_pairs and random_next and tokens.num_documents < 2:
      raise UserError(
        f"{tokens.path}: found {tokens.num_documents} document, expected at least 2: second "
        "segments come from another one; prepare a corpus of several, or set "
        "task.input_format=full_sentences"
      )
    if self.length < 16:
      raise UserError(f"length: found {self.length}, expected at least 16")
    if tokens.vocabulary.pad_id is None and not self.segment_ids:
      raise UserError(
        f"config.task.segment_ids: found False, but the vocabulary of {tokens.path} has no padding "
        "piece, so that only segments mark padding; leave it out"
      )


class FullSentences:
  """Rows of [CLS] text [SEP] across documents; see `mlm`."""

  def __init__(self, tokens: TokenStore, length: int, ids: segments.Ids, rule: sentences.Sentences):
    self._tokens = tokens
    self._rule = rule
    self._ids = ids
    self._length = length
    # the tokens among which a sentence's beginning is sought at both ends of a row
    self._search = max(1, min(4, length // 16), length // 24)
    self._stride = length - 2 - self._search
    self._read_length = 2 * _CONTEXT + self._stride + self._search
    self.num_examples = (tokens.num_tokens - self._search - 1) // self._stride
    if self.num_examples < 1:
      raise UserError(
        f"{tokens.path}: found {tokens.num_tokens} tokens, expected at least {length - 2} for an "
        f"example of length={length}; shorten task.length or prepare a larger corpus"
      )

  def __call__(self, example_index_B, key_B, offset_B):
    starts_B = (example_index_B * self._stride + offset_B - _CONTEXT) % self._tokens.num_tokens
    stride = self._stride
    search = self._search
    R = self._read_length
    window_BR, is_first_BR = tf.numpy_function(
      self._read, [starts_B], [tf.int32, tf.bool], stateful=False
    )
    batch = example_index_B.shape[0]
    window_BR = tf.ensure_shape(window_BR, [batch, R])
    is_first_BR = tf.ensure_shape(is_first_BR, [batch, R])

    def find_begin(position: int) -> tf.Tensor:
      """Return the first beginning of a sentence within `search` tokens, or `position` itself.

      A row's end and the next row's start are found from the same tokens, and so are equal.
      """
      context_BL = window_BR[:, position - _CONTEXT : position + search + _CONTEXT]
      is_begin_BL = self._rule.starts(context_BL)  # of all tokens but the first
      candidates_BL = is_begin_BL[:, _CONTEXT - 1 : _CONTEXT - 1 + search]
      candidates_BL |= is_first_BR[:, position : position + search]
      # `argmax` is 0 if no sentence begins.
      return position + tf.argmax(candidates_BL, axis=1, output_type=tf.int32)

    start_B = find_begin(_CONTEXT)
    end_B = find_begin(_CONTEXT + stride)
    if self._tokens.append_eos:  # a separator stands between documents already
      text_BT = tf.where(window_BR == self._tokens.vocabulary.eos_id, self._ids.sep, window_BR)
      text_BT = segments.take_tokens(text_BT, start_B, self._length - 2)
      size_B = end_B - start_B - tf.cast(tf.gather(is_first_BR, end_B, batch_dims=1), tf.int32)
    else:
      text_BT, size_B = segments.insert_separators(
        window_BR, start_B, end_B, is_first_BR, self._ids.sep, self._length - 2
      )
    return segments.single_segment(text_BT, size_B, self._length, *self._ids)

  def _read(self, starts_B):
    """Return the tokens from each position on and the beginnings of documents among them."""
    R = self._read_length
    T = self._tokens.num_tokens
    window_BR = windows.read_wrapped(self._tokens.windows, starts_B, R, T)
    is_first_BR = windows.read_wrapped(self._tokens.document_begins, starts_B, R, T)
    return window_BR, is_first_BR


class DocSentences:
  """Rows of [CLS] text [SEP] from one document; see `mlm`."""

  def __init__(self, tokens: TokenStore, length: int, ids: segments.Ids):
    self._chunks = Chunks(tokens, length - 2)
    self._length = length
    self._ids = ids
    self.num_examples = self._chunks.num_examples

  def __call__(self, example_index_B, key_B, offset_B):
    chunk_BT, size_B = self._chunks.read(example_index_B)
    return segments.single_segment(chunk_BT, size_B, self._length, *self._ids)


class Pairs:
  """Rows of [CLS] A [SEP] B [SEP], labelled by the origin of B; see `mlm`."""

  def __init__(
    self,
    tokens: TokenStore,
    length: int,
    ids: segments.Ids,
    rule: sentences.Sentences,
    **options: Any,
  ):
    self._chunks = Chunks(tokens, length - 3, min_tokens=2)
    self._length = length
    self._ids = ids
    self._options = dict(sentences=rule, **options)  # see `segments.draw_pair`
    self.num_examples = self._chunks.num_examples

  def __call__(self, example_index_B, key_B, offset_B):
    chunk_BT, *other_parts = self._chunks.read_with_others(example_index_B, key_B)
    *pair, label_B = segments.draw_pair(chunk_BT, *other_parts, key_B=key_B, **self._options)
    rows = segments.segment_pair(chunk_BT, *pair, self._length, *self._ids)
    rows["label"] = label_B
    return rows
