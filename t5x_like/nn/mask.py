"""Attention masks, kept symbolic until a core needs them.

A `Mask` holds positions, segments and valid keys, so that a core can read the fields it has a fast
path for, and the dense core can compute the boolean array.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp


def _static(default):
  return dataclasses.field(default=default, metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class Mask:
  """An attention mask: attention is allowed where every field that is set allows it.

  The batch axis of a field may be 1 if it is the same for the whole batch, as positions of unpacked
  sequences are. Masks and position biases are then not materialised once per example.

  Attributes:
    q_pos: int32 [B or 1, T], position of each query within its own sequence.
    k_pos: int32 [B or 1, S], position of each key.
    q_segments, k_segments: int32 [B, T] and [B, S]; queries see only keys of their own segment.
      Both or neither.
    k_valid: bool [B, S]; False for padding and for empty cache slots.
    k_prefix: bool [B, S]; keys that causality does not hide (the inputs of a prefix LM).
    causal: whether keys after the query (by position) are hidden.
    window: if causal, a query sees the `window` latest keys, its own included; otherwise the keys
      less than `window` away on either side. None for no limit.
    aligned: whether query i and key i are the same token, and positions grow by one from slot to
      slot within a segment (but not in padding). Cores then know which keys are visible without
      reading the arrays.
  """

  q_pos: jax.Array
  k_pos: jax.Array
  q_segments: jax.Array | None = None
  k_segments: jax.Array | None = None
  k_valid: jax.Array | None = None
  k_prefix: jax.Array | None = None
  causal: bool = _static(False)
  window: int | None = _static(None)
  aligned: bool = _static(False)

  def dense(self) -> jax.Array | None:
    """Return bool [B or 1, 1, T, S], True where attention is allowed.

    Return None if it is allowed everywhere.
    """
    q_pos = self.q_pos[:, None, :, None]
    k_pos = self.k_pos[:, None, None, :]
    rules = []
    if self.causal:
      visible = k_pos <= q_pos
      if self.k_prefix is not None:
        visible = visible | self.k_prefix[:, None, None, :]
      rules.append(visible)
    if self.window is not None:
      rules.append(k_pos > q_pos - self.window)
      if not self.causal or self.k_prefix is not None:
        rules.append(k_pos < q_pos + self.window)
    if self.q_segments is not None:
      rules.append(self.q_segments[:, None, :, None] == self.k_segments[:, None, None, :])
    if self.k_valid is not None:
      rules.append(self.k_valid[:, None, None, :])
    if not rules:
      return None
    return functools.reduce(jnp.logical_and, rules)


jax.tree_util.register_dataclass(Mask)


def positions(length: int) -> jax.Array:
  """Return the positions of unpacked sequences, shared by the whole batch: int32 [1, length]."""
  return jnp.arange(length, dtype=jnp.int32)[None]
