"""Salient span masking of T5: one date, number or name of a window is the target (Roberts et al. 2020, section 3.3).

Example i is window i of `inputs_length - 1` tokens. A uniformly drawn span of the finder becomes sentinel 0; the target
is the sentinel and the span; both sequences end with EOS. In a window without a span that fits the targets, three
random consecutive tokens are the span, so that no example is lost (the papers skip such sentences).

    inputs   The tower was built in <extra_id_0> by his company </s>     targets   <extra_id_0> 1889 </s>
"""

from __future__ import annotations

from typing import Unpack

from t5x_like.data import features as declared
from t5x_like.data import random
from t5x_like.data.features import Features
from t5x_like.data.preprocessors import named_spans
from t5x_like.data.preprocessors.encoder_decoder import encoder_decoder
from t5x_like.data.preprocessors.salient_spans import DEFAULT_FINDER, TokenSpans
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.task import Task
from t5x_like.data.windows import DocumentsEnd, Text
from t5x_like.errors import UserError
from t5x_like.slots import Length
from t5x_like.vocabularies import padding

_FALLBACK = 3


def features(vocabulary, /, *, inputs_length: int, targets_length: int, **_) -> Features:
  """Return the features of the task with these arguments."""
  return declared.encoder_decoder(inputs_length, targets_length, vocabulary)


def task(
  *,
  inputs_length: Length = 512,
  targets_length: Length = 32,
  finder: str = DEFAULT_FINDER,
  documents_end: DocumentsEnd = "nothing",
  **text: Unpack[Text],
) -> Task:
  """Make the task.

  Args:
    inputs_length: encoder length, EOS included.
    targets_length: decoder length; a span has at most two tokens fewer.
    finder: `module:function`, `(text) -> list of (start, end)`, see `preprocessors/salient_spans.py`; or a `.jsonl`
      of names from a NER model, see `preprocessors/named_spans.py`.
    documents_end: the end of each document in the store: `nothing` (T5 joins them), `eos` or `any`.
    text: see `Text`.

  Raises:
    UserError: no such finder, lengths too short, a vocabulary without sentinels, or the store cannot be used.
  """
  if targets_length < _FALLBACK + 2 or inputs_length < _FALLBACK + 3:
    raise UserError(
      f"inputs_length, targets_length: found {inputs_length} and {targets_length}, expected at least "
      f"{_FALLBACK + 3} and {_FALLBACK + 2}"
    )
  source, W = Text(**text), inputs_length - 1
  windows = source.windows(W, documents_end)
  vocabulary = windows.vocabulary
  if not vocabulary.extra_ids:
    raise UserError(f"{windows.tokens.path}: its vocabulary has no sentinels, expected at least 1")
  function, facts = named_spans.load("config.task.finder", finder)
  find = TokenSpans(vocabulary, function, min(targets_length - 2, W - 1))
  sentinel, eos_id, pad_id = vocabulary.sentinels[0], vocabulary.eos_id, padding(vocabulary)

  def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    text_BW = windows.read(example_index_B, epoch_B, seed)
    bits_B2 = random.bits(random.row_keys(seed, epoch_B, example_index_B), 2)
    start_B, end_B = tf.numpy_function(find, [text_BW, bits_B2[:, 0]], [tf.int32, tf.int32], stateful=False)
    none_B = end_B == 0
    start_B = tf.where(none_B, random.integers(bits_B2[:, 1], W - _FALLBACK + 1), start_B)[:, None]
    end_B = tf.where(none_B[:, None], start_B + _FALLBACK, end_B[:, None])
    closed = tf.pad(text_BW, [[0, 0], [0, 1]], constant_values=eos_id)  # EOS is token W
    place = tf.range(inputs_length)
    source = tf.where(place <= start_B, place, place + end_B - start_B - 1)
    inputs = tf.where(source <= W, tf.gather(closed, tf.minimum(source, W), batch_dims=1), pad_id)
    inputs = tf.where(place == start_B, sentinel, inputs)
    place, size = tf.range(targets_length), end_B - start_B
    targets = tf.gather(closed, tf.clip_by_value(start_B + place - 1, 0, W), batch_dims=1)
    targets = tf.where(place <= size, targets, tf.where(place == size + 1, eos_id, pad_id))
    return encoder_decoder(inputs, tf.where(place == 0, sentinel, targets), vocabulary)

  lengths = dict(inputs_length=inputs_length, targets_length=targets_length)
  return source.task("salient_spans.v2", windows, batch, features(vocabulary, **lengths), **lengths, finder=facts)
