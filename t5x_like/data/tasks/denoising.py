"""The unsupervised objectives that T5 compares, except span corruption: Raffel et al. 2020, section
3.3, table 3.

Example i is window i of the token stream, corrupted in one of five styles. For the window [10, 11,
12, 13, 14, 15] with noise TTFFTF, mask 50, sentinels 999, 998, ..., and EOS 1, the inputs and
targets are:

    bert_style     [50, 50, 12, 13, 731, 15, 1]   the whole window, [10, 11, 12, 13, 14, 15, 1]
    mass_style     [50, 50, 12, 13, 50, 15, 1]    the whole window
    replace_spans  [999, 12, 13, 998, 15, 1]      [999, 10, 11, 998, 14, 1]
    drop_tokens    [12, 13, 15, 1]                [10, 11, 14, 1]
    deshuffling    [13, 10, 15, 11, 14, 12, 1]    the whole window

BERT-style noise is the mask with probability 0.9, else a random ordinary token (table 3's "apple");
MASS-style noise is always the mask (Song et al. 2019, but not contiguous). In replace_spans each
run of noise becomes one sentinel, as in T5's later span corruption, but the runs are accidental. No
sentinel closes the targets.

The paper draws noise independently for every token. Here exactly `round(noise_density * window)`
tokens are noise, a uniformly random subset: the same distribution given that number, and lengths
are known in advance.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, Unpack

import numpy as np

from t5x_like import vocabularies
from t5x_like.data import features as declared
from t5x_like.data import random
from t5x_like.data.features import Features
from t5x_like.data.preprocessors import noise
from t5x_like.data.preprocessors.encoder_decoder import encoder_decoder
from t5x_like.data.preprocessors.lengths import denoising_lengths as lengths
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.task import Task
from t5x_like.data.windows import DocumentsEnd, TextArguments
from t5x_like.errors import UserError
from t5x_like.slots import Length

RANDOM_FRACTION = 0.1  # of BERT-style noise

Style = Literal["bert_style", "mass_style", "replace_spans", "drop_tokens", "deshuffling"]


def features(
  vocabulary, /, *, style: Style, inputs_length: int, noise_density: float, **_
) -> Features:
  """Return the features of the task with these arguments."""
  return declared.encoder_decoder(
    inputs_length, lengths(style, inputs_length, noise_density)[2], vocabulary
  )


def task(
  *,
  style: Style,
  inputs_length: Length = 512,
  noise_density: float = 0.15,
  documents_end: DocumentsEnd = "nothing",
  **text: Unpack[TextArguments],
) -> Task:
  """Make the task.

  Args:
    style: the objective.
    inputs_length: encoder length, EOS included; it determines the window and the targets' length.
    noise_density: fraction of tokens that are noise; deshuffling has no noise.
    documents_end: the end of each document in the store: `nothing` (T5 joins them), `eos` or `any`.
    text: see `Text`; the name in metrics is by default `<corpus>_<style>`.

  Raises:
    UserError: the store cannot be used, is shorter than one window, or its vocabulary lacks a mask
      or sentinels; impossible lengths or densities.
  """
  if not 0 < noise_density < 1:
    raise UserError(f"noise_density: found {noise_density}, expected a fraction between 0 and 1")
  if inputs_length < 3:
    raise UserError(
      f"inputs_length: found {inputs_length}, expected at least 3 (two tokens and EOS)"
    )
  window, tokens_of_noise, targets_length = lengths(style, inputs_length, noise_density)
  source = TextArguments(**text)
  tokens = source.tokens(documents_end)
  vocabulary = tokens.vocabulary
  runs = min(tokens_of_noise, window - tokens_of_noise + 1)
  if style == "replace_spans" and runs > vocabulary.extra_ids:
    raise UserError(
      f"inputs_length={inputs_length}: a window of {window} tokens can have {runs} runs of noise "
      f"but the vocabulary has {vocabulary.extra_ids} sentinels; shorten inputs_length, lower "
      f"noise_density ({noise_density}), or use a vocabulary with at least {runs} extra ids"
    )
  mask_id = (
    vocabularies.special_id(vocabulary, "mask") if style in ("bert_style", "mass_style") else None
  )
  windows = source.windows(window, documents_end)
  ordinary = tf.constant(ordinary_ids(vocabulary))
  # which tokens are noise, and what they become
  words = window * (2 if style == "bert_style" else 1)

  def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    window_BW = windows.read(example_index_B, epoch_B, seed)
    bits_BN = random.bits(random.row_keys(seed, epoch_B, example_index_B), words)
    whole = tf.pad(window_BW, [[0, 0], [0, 1]], constant_values=vocabulary.eos_id)
    if style == "deshuffling":
      inputs = noise.shuffle_tokens(window_BW, bits_BN[:, :window])
      return encoder_decoder(
        tf.pad(inputs, [[0, 0], [0, 1]], constant_values=vocabulary.eos_id), whole, vocabulary
      )
    noise_BW = noise.noise_mask(bits_BN[:, :window], tokens_of_noise)
    ends = dict(eos_id=vocabulary.eos_id, pad_id=vocabularies.padding_id(vocabulary))
    sizes = dict(inputs_length=inputs_length, targets_length=targets_length, **ends)
    if style == "replace_spans":
      out = noise.replace_spans(window_BW, noise_BW, sentinels=vocabulary.sentinels, **sizes)
      return encoder_decoder(out["inputs"], out["targets"], vocabulary)
    if style == "drop_tokens":
      out = noise.drop_tokens(window_BW, noise_BW, **sizes)
      return encoder_decoder(out["inputs"], out["targets"], vocabulary)
    inputs = noise.replace_with_masks(
      window_BW,
      noise_BW,
      mask_id=mask_id,
      random_fraction=RANDOM_FRACTION if style == "bert_style" else 0.0,
      ordinary_ids=ordinary,
      bits_BW=bits_BN[:, window:],
    )
    return encoder_decoder(
      tf.pad(inputs, [[0, 0], [0, 1]], constant_values=vocabulary.eos_id), whole, vocabulary
    )

  noisy = None if style == "deshuffling" else float(noise_density)
  made = dict(style=style, inputs_length=inputs_length, noise_density=noisy, mask_id=mask_id)
  described = declared.encoder_decoder(inputs_length, targets_length, vocabulary)
  named = dataclasses.replace(source, label=source.label or f"{tokens.name}_{style}")
  return named.task("denoising.v1", windows, batch, described, **made)


def ordinary_ids(vocabulary) -> np.ndarray:
  """Return the ids of text, int32 [N]: all but padding, EOS, unknown, sentinels and the
  vocabulary's special ids."""
  special = vocabulary.special_ids | {vocabulary.unk_id}
  return np.setdiff1d(np.arange(vocabulary.size, dtype=np.int32), np.array(sorted(special)))
