"""The unsupervised objectives that T5 compares, except span corruption.

Raffel et al. 2020, section 3.3 and table 3. Example i is window i of the token stream, corrupted in
one of five styles. For the window [10, 11, 12, 13, 14, 15] with noise TTFFTF, mask 50, sentinels
999, 998, ..., and EOS 1, the inputs and targets are:

    bert_style     [50, 50, 12, 13, 731, 15, 1]   the whole window, [10, 11, 12, 13, 14, 15, 1]
    mass_style     [50, 50, 12, 13, 50, 15, 1]    the whole window
    replace_spans  [999, 12, 13, 998, 15, 1]      [999, 10, 11, 998, 14, 1]
    drop_tokens    [12, 13, 15, 1]                [10, 11, 14, 1]
    deshuffling    [13, 10, 15, 11, 14, 12, 1]    the whole window

BERT-style noise is the mask with probability 0.9, else a random ordinary token (table 3's "apple").
MASS-style noise is always the mask (Song et al. 2019, but not contiguous). In replace_spans each
run of noise becomes one sentinel, as in T5's later span corruption, but the lengths of runs are not
chosen. No sentinel closes the targets.

The paper draws noise independently for every token. Here exactly `round(noise_density * window)`
tokens are noise, a uniformly random subset: the same distribution given that number, and lengths
are known in advance.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from t5x_like import vocabularies
from t5x_like.data import features as layouts
from t5x_like.data import random
from t5x_like.data.features import Features
from t5x_like.data.preprocessors import noise
from t5x_like.data.preprocessors.encoder_decoder import encoder_decoder
from t5x_like.data.preprocessors.lengths import denoising_lengths
from t5x_like.data.task import Task, unfingerprinted
from t5x_like.data.windows import ONLY_CHECKED, DocumentsEnd, TextArguments
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import Length
from t5x_like.vocabularies import Vocabulary

RANDOM_FRACTION = 0.1  # the share of BERT-style noise that becomes a random token

Style = Literal["bert_style", "mass_style", "replace_spans", "drop_tokens", "deshuffling"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(TextArguments):
  """The arguments of denoising; the name in metrics is by default `<corpus>_<style>`.

  Attributes:
    style: the objective.
    inputs_length: encoder length, EOS included; it determines the window and the targets' length.
    noise_density: fraction of tokens that are noise; deshuffling has no noise.
    documents_end: the end of each document in the store: `nothing` (T5 joins them), `eos` or `any`.
  """

  style: Style
  inputs_length: Length = 512
  noise_density: float = 0.15
  documents_end: DocumentsEnd = unfingerprinted(ONLY_CHECKED, default="nothing")

  def features(self, vocabulary: Vocabulary) -> Features:
    _, _, targets_length = denoising_lengths(self.style, self.inputs_length, self.noise_density)
    return layouts.encoder_decoder(self.inputs_length, targets_length, vocabulary)

  def build(self) -> Task:
    """Open the store and return the task.

    Raises:
      UserError: the store cannot be used, is shorter than one window, or its vocabulary lacks a
        mask or sentinels; impossible lengths or densities.
    """
    self._check()
    style = self.style
    window, noise_tokens, targets_length = denoising_lengths(
      style, self.inputs_length, self.noise_density
    )
    tokens = self.tokens(self.documents_end)
    vocabulary = tokens.vocabulary
    runs = min(noise_tokens, window - noise_tokens + 1)
    if style == "replace_spans" and runs > vocabulary.extra_ids:
      raise UserError(
        f"inputs_length={self.inputs_length}: a window of {window} tokens can have {runs} runs of "
        f"noise but the vocabulary has {vocabulary.extra_ids} sentinels; shorten inputs_length, "
        f"lower noise_density ({self.noise_density}), or use a vocabulary with at least {runs} "
        "extra ids"
      )
    mask_id = None
    if style in ("bert_style", "mass_style"):
      mask_id = vocabularies.special_id(vocabulary, "mask")
    windows = self.windows(window, self.documents_end)
    denoise = _Denoising(
      style, vocabulary, self.inputs_length, targets_length, noise_tokens, mask_id
    )
    # Random words for the choice of noise and, in BERT's style, for its replacement.
    num_words = 2 * window if style == "bert_style" else window

    def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
      window_BW = windows.read(example_index_B, epoch_B, seed)
      key_B = random.row_keys(seed, epoch_B, example_index_B)
      inputs_BS, targets_BT = denoise(window_BW, random.bits(key_B, num_words))
      return encoder_decoder(inputs_BS, targets_BT, vocabulary)

    named = dataclasses.replace(self, label=self.label or f"{tokens.name}_{style}")
    return named.build_task("denoising.v1", windows, batch, mask_id=mask_id)

  def _check(self) -> None:
    """Raise UserError for an impossible density or length."""
    if not 0 < self.noise_density < 1:
      raise UserError(
        f"noise_density: found {self.noise_density}, expected a fraction between 0 and 1"
      )
    if self.inputs_length < 3:
      raise UserError(
        f"inputs_length: found {self.inputs_length}, expected at least 3 (two tokens and EOS)"
      )


class _Denoising:
  """The corruption of windows in a style: int32 [B, W], uint32 [B, N] -> inputs, targets."""

  def __init__(
    self,
    style: Style,
    vocabulary: Vocabulary,
    inputs_length: int,
    targets_length: int,
    noise_tokens: int,
    mask_id: int | None,
  ):
    self._style = style
    self._sentinels = vocabulary.sentinels
    self._inputs_length = inputs_length
    self._targets_length = targets_length
    self._noise_tokens = noise_tokens
    self._mask_id = mask_id
    self._eos_id = vocabulary.eos_id
    self._pad_id = vocabularies.padding_id(vocabulary)
    self._ordinary_ids = tf.constant(ordinary_ids(vocabulary))

  def __call__(self, window_BW: tf.Tensor, bits_BN: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    W = window_BW.shape[1]
    if self._style == "deshuffling":
      shuffled_BW = noise.shuffle_tokens(window_BW, bits_BN[:, :W])
      return self._append_eos(shuffled_BW), self._append_eos(window_BW)
    noise_BW = noise.noise_mask(bits_BN[:, :W], self._noise_tokens)
    if self._style in ("replace_spans", "drop_tokens"):
      return self._move_noise(window_BW, noise_BW)
    masked_BW = noise.replace_with_masks(
      window_BW,
      noise_BW,
      mask_id=self._mask_id,
      random_fraction=RANDOM_FRACTION if self._style == "bert_style" else 0.0,
      ordinary_ids=self._ordinary_ids,
      bits_BW=bits_BN[:, W:],
    )
    return self._append_eos(masked_BW), self._append_eos(window_BW)

  def _move_noise(self, window_BW: tf.Tensor, noise_BW: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Move the noise from the inputs to the targets, with sentinels or without."""
    options = {
      "inputs_length": self._inputs_length,
      "targets_length": self._targets_length,
      "eos_id": self._eos_id,
      "pad_id": self._pad_id,
    }
    if self._style == "replace_spans":
      rows = noise.replace_spans(window_BW, noise_BW, sentinels=self._sentinels, **options)
    else:
      rows = noise.drop_tokens(window_BW, noise_BW, **options)
    return rows["inputs"], rows["targets"]

  def _append_eos(self, tokens_BW: tf.Tensor) -> tf.Tensor:
    """Append EOS to each row."""
    return tf.pad(tokens_BW, [[0, 0], [0, 1]], constant_values=self._eos_id)


def ordinary_ids(vocabulary: Vocabulary) -> np.ndarray:
  """Return the ids of text, int32 [N]: no special ids, sentinels or unknown."""
  special = vocabulary.special_ids | {vocabulary.unk_id}
  return np.setdiff1d(np.arange(vocabulary.size, dtype=np.int32), np.array(sorted(special)))
