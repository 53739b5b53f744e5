"""BART's pretraining task: restore a window of text from a noised copy.

Lewis et al. 2020, section 2.2. The defaults come from the large model (section 5.1): 30% of the
tokens in text infilling, and all sentences permuted. Example i is window i of `length - 1` tokens:
the encoder reads it with noise, and the decoder restores it. Both end with EOS and are padded to
`length`. With a vocabulary published with BART, both also begin with BOS, as that model was
trained, and windows are a token shorter. `preprocessors/bart.py` defines each noise.
"""

from __future__ import annotations

import dataclasses

from t5x_like.data import features as layouts
from t5x_like.data import random
from t5x_like.data.features import Feature, Features
from t5x_like.data.preprocessors import bart, sentences
from t5x_like.data.preprocessors.encoder_decoder import encoder_decoder
from t5x_like.data.task import Task
from t5x_like.data.windows import TextArguments
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import Length
from t5x_like.vocabularies import Vocabulary, opening_ids, padding_id, special_id


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(TextArguments):
  """The arguments of BART's task.

  Attributes:
    length: length of inputs and targets, EOS included.
    infill: fraction of the tokens in spans that become one mask each.
    poisson_mean: mean tokens of such a span.
    permute_sentences: whether to put the sentences in a random order.
    rotate: whether to begin the window at a random token.
    mask: fraction of tokens that become the mask.
    delete: fraction of tokens deleted.
    sentence_rule: `module:function`, see `data/preprocessors/sentences.py`.
  """

  length: Length = 512
  infill: float = 0.3
  poisson_mean: float = 3.0
  permute_sentences: bool = True
  rotate: bool = False
  mask: float = 0.0
  delete: float = 0.0
  sentence_rule: str = sentences.DEFAULT_RULE

  def features(self, vocabulary: Vocabulary) -> Features:
    features = layouts.encoder_decoder(self.length, self.length)
    features["encoder_segment_ids"] = Feature((self.length,), "int32")
    return features

  def build(self) -> Task:
    """Open the store and return the task.

    Raises:
      UserError: more than one of infill, mask and delete, which the paper does not combine; an
        impossible fraction; the store cannot be used.
    """
    self._check()
    vocabulary = self.tokens().vocabulary
    opening = opening_ids(vocabulary)
    windows = self.windows(self.length - 1 - len(opening))
    rule = sentences.Sentences(vocabulary, self.sentence_rule)
    noise = _Noise(self, vocabulary, rule)
    pad_id = padding_id(vocabulary)

    def close(tokens_BT: tf.Tensor, size_B: tf.Tensor | None) -> tf.Tensor:
      return _close(tokens_BT, size_B, self.length, opening, vocabulary.eos_id, pad_id)

    def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
      text_BW = windows.read(example_index_B, epoch_B, seed)
      noised_BU, size_B = noise(text_BW, random.row_keys(seed, epoch_B, example_index_B))
      inputs_BS = close(noised_BU, size_B)
      rows = encoder_decoder(inputs_BS, close(text_BW, None), vocabulary)
      rows["encoder_segment_ids"] = tf.cast(inputs_BS != pad_id, tf.int32)
      return rows

    return self.build_task("bart.v3", windows, batch, sentence_rule=rule.fact)

  def _check(self) -> None:
    """Raise UserError for impossible numbers, or several noises that exclude each other."""
    rates = {"infill": self.infill, "mask": self.mask, "delete": self.delete}
    for key, rate in rates.items():
      if not 0 <= rate < 1:
        raise UserError(f"{key}: found {rate}, expected a fraction of at least 0 and less than 1")
    positive = [f"{key}={rate}" for key, rate in rates.items() if rate > 0]
    if len(positive) > 1:
      raise UserError(
        f"bart: found {', '.join(positive)}, expected one of infill, mask and delete above 0; set "
        "the others to 0"
      )
    if not self.poisson_mean >= 1:
      raise UserError(f"poisson_mean: found {self.poisson_mean}, expected at least 1")
    if self.length < 8:
      raise UserError(f"length: found {self.length}, expected at least 8")


class _Noise:
  """The noise of windows: int32 [B, W], keys [B] -> noised windows, their sizes or None for all."""

  def __init__(self, arguments: Arguments, vocabulary: Vocabulary, rule: sentences.Sentences):
    self._arguments = arguments
    self._rule = rule
    self._mask_id = special_id(vocabulary, "mask")

  def __call__(self, tokens_BW: tf.Tensor, key_B: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
    arguments = self._arguments
    if arguments.permute_sentences:
      tokens_BW = bart.permute_sentences(tokens_BW, self._rule, random.row_keys(1, key_B))
    if arguments.rotate:
      tokens_BW = bart.rotate(tokens_BW, random.row_keys(2, key_B))
    noise_key_B = random.row_keys(3, key_B)
    infill = arguments.infill
    if infill and round(infill * tokens_BW.shape[1]):
      return bart.infill(tokens_BW, infill, arguments.poisson_mean, self._mask_id, noise_key_B)
    if arguments.mask:
      return bart.mask(tokens_BW, arguments.mask, self._mask_id, noise_key_B), None
    if arguments.delete:
      return bart.delete(tokens_BW, arguments.delete, noise_key_B), None
    return tokens_BW, None


def _close(
  tokens_BT: tf.Tensor,
  size_B: tf.Tensor | None,
  length: int,
  opening: list[int],
  eos_id: int,
  pad_id: int,
) -> tf.Tensor:
  """Join opening ids, tokens up to their size, EOS and padding: int32 [B, length].

  Tokens that do not fit are dropped.
  """
  if opening:
    tokens_BT = tf.pad(tokens_BT, [[0, 0], [len(opening), 0]], constant_values=opening[0])
    if size_B is not None:
      size_B += len(opening)
  T = min(tokens_BT.shape[1], length - 1)
  padded_BL = tf.pad(tokens_BT[:, :T], [[0, 0], [0, length - T]])
  end = T if size_B is None else tf.minimum(size_B, length - 1)[:, None]
  position_L = tf.range(length)
  return tf.where(position_L < end, padded_BL, tf.where(position_L == end, eos_id, pad_id))
