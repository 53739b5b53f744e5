"""T5's span corruption, drawn for a whole batch at once.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer", section 3.1.4 and figure 2. A window of raw tokens is cut into alternating spans, kept
first and noise last. In the inputs every noise span becomes one sentinel; in the targets every
sentinel is followed by the tokens it stands for. Both sequences end with EOS, and no sentinel
closes the targets.

There is no per-example map: two `top_k` calls find the cut points of all rows, and inputs and
targets are each one gather whose indices are a cumulative sum with a jump at every sentinel.

T5's windows never begin with noise and always end with it (T5 issue 905). In a window with few
spans, such as a short one, the last tokens are therefore noise far more often than others.
`random_roll` (its name in the T5 library) rotates the noise mask of every window by a uniformly
random number of tokens, so that each token is noise equally often. A span rotated across the ends
becomes two; both sequences have room for the extra sentinel, and end with padding without it.
"""

from __future__ import annotations

import dataclasses

from t5x_like.data import random
from t5x_like.data.preprocessors import noise
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf


def noise_counts(
  length: int, noise_density: float, mean_noise_span_length: float
) -> tuple[int, int]:
  """Return (noise tokens, noise spans) of a window, at least one of each, rounded as in T5.

  The arithmetic is in double precision, as in the T5 library's computation of lengths. That library
  draws masks in single precision, where a few products that are exactly a half here round up (190
  tokens at 0.15 give 29 noise tokens there and 28 here).
  """
  tokens = min(max(round(length * noise_density), 1), length - 1)
  spans = min(max(round(tokens / mean_noise_span_length), 1), length - tokens)
  return tokens, spans


def random_spans_lengths(
  inputs_length: int, noise_density: float, mean_noise_span_length: float
) -> tuple[int, int]:
  """Return (the raw window that corrupts to `inputs_length` inputs, its targets' length).

  The lengths of inputs and targets include EOS. 512 inputs at 0.15 and 3.0 need 568 raw tokens and
  give 114 targets.

  Raises:
    UserError: `inputs_length` is less than 3 (a kept token, a sentinel and EOS).
  """

  def corrupted_lengths(length: int) -> tuple[int, int]:
    tokens, spans = noise_counts(length, noise_density, mean_noise_span_length)
    return length - tokens + spans + 1, tokens + spans + 1

  if inputs_length < 3:
    raise UserError(
      f"inputs_length: found {inputs_length}, expected at least 3 (a token, a sentinel and EOS)"
    )
  window = max(2, inputs_length - 1)
  while corrupted_lengths(window + 1)[0] <= inputs_length:
    window += 1
  _, targets_length = corrupted_lengths(window)
  if noise_density == 0.5 and targets_length > inputs_length:  # T5 prefers equal lengths here
    window -= 1
    _, targets_length = corrupted_lengths(window)
  return window, targets_length


def random_segments(bits_BN: tf.Tensor, segments: int) -> tf.Tensor:
  """Divide N + 1 items into non-empty segments uniformly and return the segments' ends.

  uint32 [B, N] -> int32 [B, segments]. N + 1 items have N positions to cut; a uniform choice of
  `segments - 1` positions is a uniformly random composition.
  """
  items = bits_BN.shape[1] + 1
  cuts = random.subsets(bits_BN, segments - 1) + 1
  return tf.pad(cuts, [[0, 0], [0, 1]], constant_values=items)


def _lengths(ends_BN: tf.Tensor) -> tf.Tensor:
  """Compute segment lengths from segment ends: int32 [B, N] -> int32 [B, N]."""
  return ends_BN - tf.pad(ends_BN[:, :-1], [[0, 0], [1, 0]])


def scatter(position_BN: tf.Tensor, value_BN: tf.Tensor, length: int) -> tf.Tensor:
  """Add `value_BN` at `position_BN`, all below `length`, to zeros [B, length]; all are int32."""
  batch = tf.shape(position_BN)[0]
  flat = tf.reshape(position_BN + tf.range(batch)[:, None] * length, [-1, 1])
  return tf.reshape(tf.scatter_nd(flat, tf.reshape(value_BN, [-1]), [batch * length]), [-1, length])


@dataclasses.dataclass(frozen=True)
class SpanCorruption:
  """A mapping from windows of raw tokens to inputs and targets of fixed lengths.

  Attributes:
    sentinels: ids of the sentinels, in the order of use.
    inputs_length: length of the inputs with EOS.
    targets_length: length of the targets with EOS; None derives it, a larger value adds padding.
    noise_density: fraction of raw tokens that are noise.
    mean_noise_span_length: mean noise tokens per span.
    eos_id: the id that closes both sequences.
    pad_id: padding.
    random_roll: whether to rotate the noise, see above; False is T5's pretraining.
    window: raw tokens per example; None takes the most whose inputs fit.
    noise_tokens: noise tokens per window (derived).
    noise_spans: noise spans per window (derived).

  Raises:
    UserError: on construction, for impossible lengths or more spans than sentinels.
  """

  sentinels: tuple[int, ...]
  inputs_length: int = 512
  targets_length: int | None = None
  noise_density: float = 0.15
  mean_noise_span_length: float = 3.0
  eos_id: int = 1
  pad_id: int = 0
  random_roll: bool = False
  window: int | None = None
  noise_tokens: int = dataclasses.field(init=False)
  noise_spans: int = dataclasses.field(init=False)

  def __post_init__(self):
    if not 0 < self.noise_density < 1:
      raise UserError(
        f"noise_density: found {self.noise_density}, expected a fraction between 0 and 1"
      )
    if not self.mean_noise_span_length >= 1:
      raise UserError(
        f"mean_noise_span_length: found {self.mean_noise_span_length}, expected at least 1"
      )
    room = 1 if self.random_roll else 0  # for the sentinel of a span cut in two
    window = self.window
    if window is None:
      window, _ = random_spans_lengths(
        self.inputs_length - room, self.noise_density, self.mean_noise_span_length
      )
    tokens, spans = noise_counts(window, self.noise_density, self.mean_noise_span_length)
    derived = tokens + spans + 1 + room
    if window - tokens + spans + 1 + room > self.inputs_length:
      raise UserError(
        f"inputs_length: found {self.inputs_length}, but windows of {window} tokens make inputs of "
        f"{window - tokens + spans + 1 + room}: set it to at least as much"
      )
    if self.targets_length is None:
      object.__setattr__(self, "targets_length", derived)
    if self.targets_length < derived:
      raise UserError(
        f"targets_length: found {self.targets_length}, but inputs_length={self.inputs_length} at "
        f"noise_density={self.noise_density} and "
        f"mean_noise_span_length={self.mean_noise_span_length} makes targets of {derived} tokens; "
        f"set it to at least {derived}, or leave it out"
      )
    if spans + room > len(self.sentinels):
      raise UserError(
        f"inputs_length={self.inputs_length}: a window of {window} tokens has {spans + room} "
        f"noise spans but the vocabulary has {len(self.sentinels)} sentinels; shorten "
        f"inputs_length, lengthen mean_noise_span_length ({self.mean_noise_span_length}), or use "
        f"a vocabulary with at least {spans + room} extra ids (of a published one, python -m "
        "tools.convert_hf --sentinels takes unused pieces)"
      )
    object.__setattr__(self, "window", window)
    object.__setattr__(self, "noise_tokens", tokens)
    object.__setattr__(self, "noise_spans", spans)

  def span_ends(self, key_B: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Draw the ends of spans, counted in kept and in noise tokens.

    uint64 [B] -> two int32 [B, noise_spans].
    """
    kept_tokens = self.window - self.noise_tokens
    # A word for each position to cut, in kept and in noise tokens.
    bits = random.bits(key_B, self.window - 2)
    kept_ends = random_segments(bits[:, : kept_tokens - 1], self.noise_spans)
    noise_ends = random_segments(bits[:, kept_tokens - 1 :], self.noise_spans)
    return kept_ends, noise_ends

  def noise_mask(self, key_B: tf.Tensor) -> tf.Tensor:
    """Mark noise tokens: uint64 [B] -> bool [B, window].

    Without a roll, rows start false and end true.
    """
    kept_ends, noise_ends = self.span_ends(key_B)
    starts = kept_ends + noise_ends - _lengths(noise_ends)
    ends = kept_ends + noise_ends
    begun = scatter(starts, tf.ones_like(starts), self.window + 1)
    ended = scatter(ends, tf.ones_like(ends), self.window + 1)
    noise_BW = tf.cumsum(begun - ended, axis=1)[:, : self.window] > 0
    if not self.random_roll:
      return noise_BW
    word_B = random.bits(key_B, self.window - 1)[:, -1]  # the word after those used for the cuts
    shift_B = random.integers(word_B, self.window)
    source_BW = (tf.range(self.window) + shift_B[:, None]) % self.window
    source_BW += tf.range(tf.shape(shift_B)[0])[:, None] * self.window
    rolled = tf.gather(tf.reshape(noise_BW, [-1]), tf.reshape(source_BW, [-1]))
    return tf.reshape(rolled, [-1, self.window])

  def __call__(self, window_BW: tf.Tensor, key_B: tf.Tensor) -> dict[str, tf.Tensor]:
    """Corrupt windows.

    Args:
      window_BW: int32 [B, window] raw tokens.
      key_B: uint64 [B], one random key per row (`random.row_keys`).

    Returns:
      `inputs` int32 [B, inputs_length] and `targets` int32 [B, targets_length].
    """
    if self.random_roll:
      return noise.replace_spans(
        window_BW,
        self.noise_mask(key_B),
        sentinels=self.sentinels,
        inputs_length=self.inputs_length,
        targets_length=self.targets_length,
        eos_id=self.eos_id,
        pad_id=self.pad_id,
      )
    kept_ends, noise_ends = self.span_ends(key_B)
    kept_lengths = _lengths(kept_ends)
    noise_lengths = _lengths(noise_ends)
    order = tf.range(self.noise_spans, dtype=tf.int32)
    # Sentinel i stands after kept span i in the inputs: there the source jumps over noise span i.
    inputs = self._assemble(
      window_BW,
      sentinels=kept_ends + order,
      jumps=noise_lengths - 1,
      start=0,
      length=self.window - self.noise_tokens + self.noise_spans,
      padded=self.inputs_length,
    )
    # Sentinel i stands before noise span i in the targets: there the source jumps over kept span i.
    targets = self._assemble(
      window_BW,
      sentinels=noise_ends - noise_lengths + order,
      jumps=kept_lengths - 1,
      start=-1,
      length=self.noise_tokens + self.noise_spans,
      padded=self.targets_length,
    )
    return {"inputs": inputs, "targets": targets}

  def _assemble(self, window_BW, sentinels, jumps, start, length, padded):
    """Assemble tokens of the window with sentinels, then EOS, then padding: int32 [B, padded].

    The sentinels are at the positions `sentinels` [B, N]. Position j holds raw token `start + j`
    plus the jumps so far. `start` is 0 if a jump applies from the position after its sentinel, and
    -1 if it applies at the sentinel already.
    """
    source = tf.cumsum(1 + scatter(sentinels, jumps, length), axis=1, exclusive=start == 0)
    if start != 0:
      source += start
    batch = tf.shape(window_BW)[0]
    offset_B1 = tf.range(batch)[:, None]
    flat_source = tf.reshape(source + offset_B1 * self.window, [-1])
    tokens = tf.gather(tf.reshape(window_BW, [-1]), flat_source)
    ids_N = tf.constant(self.sentinels[: self.noise_spans], tf.int32)
    positions = tf.reshape(sentinels + offset_B1 * length, [-1, 1])
    tokens = tf.tensor_scatter_nd_update(tokens, positions, tf.tile(ids_N, [batch]))
    tail = tf.constant([self.eos_id] + [self.pad_id] * (padded - length - 1), tf.int32)
    tail = tf.tile(tail[None], [batch, 1])
    row = tf.concat([tf.reshape(tokens, [-1, length]), tail], axis=1)
    return tf.ensure_shape(row, [None, padded])
