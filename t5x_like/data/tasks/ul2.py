"""UL2's mixture of denoisers: seven span corruptions of one corpus.

Tay et al. 2022, section 3.1 and table 1. Example i is window i of `length` raw tokens, as for every
task on running text, so an epoch holds each window once. A key of seed, epoch and i selects its
denoiser in each epoch, all equally often or by `rates`.

                  mean span  noise                       mode token
    R  regular        3, 8    15%                          [NLU]
    S  sequential     L / 4   25%, one span at the end     [S2S]
    X  extreme        3, 8    50%; 64 at 15% and at 50%    [NLG]

S is a prefix LM in the paper's form: the last quarter of the window is one span of noise. Features
have the greatest lengths of all denoisers: the encoder's length comes from R, the decoder's from X.
For example, with L = 512, R (3, 0.15) has 462 inputs and 104 targets, S has 386 and 130, and
X (3, 0.5) has 342 and 342 in 85 spans, so the vocabulary needs 85 sentinels.

Spans are cut as in T5 (uniformly among all cuts with this mean; the paper allows "normal or
uniform"). A denoiser with a single span therefore has it at the end of the window, such as
X (64, 0.15) at L = 512 with a span of 77 tokens; `random_roll` puts the span anywhere.

With `mode_tokens` every input begins with the text of its mode, as in the prompts of the released
models. It is one token if the vocabulary has it as a piece, and otherwise several.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from t5x_like import slots
from t5x_like.data import features as layouts
from t5x_like.data import mixture, random
from t5x_like.data.features import Features
from t5x_like.data.preprocessors.encoder_decoder import encoder_decoder
from t5x_like.data.preprocessors.lengths import DENOISERS, MODE_TOKENS, QUARTER, denoiser_lengths
from t5x_like.data.preprocessors.span_corruption import SpanCorruption, noise_counts
from t5x_like.data.task import Task, unfingerprinted
from t5x_like.data.windows import ONLY_CHECKED, DocumentsEnd, TextArguments
from t5x_like.errors import UserError, did_you_mean
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import Length
from t5x_like.vocabularies import Vocabulary, padding_id

SENTINELS = True  # the targets have sentinels before their spans; see `laptop`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(TextArguments):
  """The arguments of UL2's mixture.

  Attributes:
    length: raw tokens in a window.
    mode_tokens: begin the inputs with `lengths.MODE_TOKENS`.
    rates: rates of some `DENOISERS`; the others have 1, and 0 leaves a denoiser out.
    random_roll: let the noise of R and X lie anywhere; see `preprocessors/span_corruption.py`.
    documents_end: the end of each document in the store: `nothing` (T5 joins them), `eos` or `any`.
  """

  length: Length = 512
  mode_tokens: bool = False
  rates: dict = dataclasses.field(default_factory=dict)
  random_roll: bool = False
  documents_end: DocumentsEnd = unfingerprinted(ONLY_CHECKED, default="nothing")

  def features(self, vocabulary: Vocabulary) -> Features:
    """Return the features: the greatest lengths of the denoisers."""
    longest_inputs = 0
    longest_targets = 0
    for name in DENOISERS:
      if self.rates.get(name, 1):
        inputs_length, targets_length = denoiser_lengths(name, self.length, self.random_roll)
        if self.mode_tokens:
          inputs_length += len(vocabulary.encode(MODE_TOKENS[name[0]]))
        longest_inputs = max(longest_inputs, inputs_length)
        longest_targets = max(longest_targets, targets_length)
    return layouts.encoder_decoder(longest_inputs, longest_targets, vocabulary)

  def build(self) -> Task:
    """Open the store and return the task.

    Raises:
      UserError: the store cannot be used, is shorter than one window, or its vocabulary has too few
        sentinels; a window too short for a quarter of it to be noise; rates of unknown denoisers.
    """
    if self.length < 8:
      raise UserError(f"length: found {self.length}, expected windows of at least 8 tokens")
    shares = _shares(self.rates)
    windows = self.windows(self.length, self.documents_end)
    vocabulary = windows.vocabulary
    denoisers = []
    for name in shares:
      denoisers.append(_Denoiser(name, vocabulary, self.length, self.mode_tokens, self.random_roll))
    features = self.features(vocabulary)
    upper_limits = _upper_limits(list(shares.values()))

    def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
      window_BL = windows.read(example_index_B, epoch_B, seed)
      key_B = random.row_keys(seed, epoch_B, example_index_B)
      word_B1 = tf.cast(random.bits(random.row_keys(1, key_B), 1), tf.int64)
      denoiser_B = tf.reduce_sum(tf.cast(word_B1 >= upper_limits, tf.int32), axis=1)
      rows = tf.dynamic_partition(tf.range(tf.size(denoiser_B)), denoiser_B, len(denoisers))
      parts = []
      for denoiser, row_N in zip(denoisers, rows, strict=True):
        part = denoiser(tf.gather(window_BL, row_N), tf.gather(key_B, row_N))
        parts.append(mixture.pad_features(part, features, vocabulary.pad_id))
      return {name: tf.dynamic_stitch(rows, [part[name] for part in parts]) for name in features}

    return self.build_task("ul2.v2", windows, batch, rates=shares)


def _shares(rates: dict[str, float]) -> dict[str, float]:
  """Return the rate of each denoiser that is drawn.

  Raises:
    UserError: an unknown denoiser, an impossible rate, or no denoiser left.
  """
  for name, rate in rates.items():
    if not slots.fits(rate, float) or rate < 0:
      raise UserError(
        f"config.task.rates.{name}: found {rate!r}, expected a number, 0 to leave it out"
      )
    if name not in DENOISERS:
      raise UserError(
        f"config.task.rates.{name}: no such denoiser{did_you_mean(name, DENOISERS)}; there are "
        f"{', '.join(DENOISERS)}"
      )
  shares = {name: float(rates.get(name, 1.0)) for name in DENOISERS}
  shares = {name: share for name, share in shares.items() if share}
  if not shares:
    raise UserError(
      "config.task.rates: found 0 for every denoiser, expected at least one that is drawn"
    )
  return shares


class _Denoiser:
  """One of `DENOISERS` on windows of `length` tokens.

  Attributes:
    corruption: its span corruption of a window.
    inputs_length: the length of its inputs, with EOS and the text of its mode.
  """

  def __init__(
    self, name: str, vocabulary: Vocabulary, length: int, mode_tokens: bool, random_roll: bool
  ):
    mean, density = DENOISERS[name]
    is_sequential = mean is QUARTER
    if is_sequential:
      mean = length * density
    rolls = random_roll and not is_sequential
    noise, spans = noise_counts(length, density, mean)
    # Rotating the noise may cut a span in two, which needs one more sentinel.
    extra_sentinels = 1 if rolls else 0
    self._vocabulary = vocabulary
    self._prefix = vocabulary.encode(MODE_TOKENS[name[0]]) if mode_tokens else []
    self.corruption = SpanCorruption(
      sentinels=vocabulary.sentinels,
      window=length,
      inputs_length=length - noise + spans + 1 + extra_sentinels,
      noise_density=density,
      mean_noise_span_length=float(noise if is_sequential else mean),
      eos_id=vocabulary.eos_id,
      pad_id=padding_id(vocabulary),
      random_roll=rolls,
    )
    self.inputs_length = len(self._prefix) + self.corruption.inputs_length

  def __call__(self, window_NL: tf.Tensor, key_N: tf.Tensor) -> dict[str, tf.Tensor]:
    corrupted = self.corruption(window_NL, key_N)
    prefix_NP = tf.tile(tf.constant([self._prefix], tf.int32), [tf.size(key_N), 1])
    return encoder_decoder(
      tf.concat([prefix_NP, corrupted["inputs"]], axis=1), corrupted["targets"], self._vocabulary
    )


def _upper_limits(shares: list[float]) -> np.ndarray:
  """Return the limits, int64 [N - 1], that divide the 32-bit words into N ranges by the shares."""
  return np.round(np.cumsum(shares)[:-1] / sum(shares) * 2**32).astype(np.int64)
