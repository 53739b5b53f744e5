"""Ring attention: exact, with the keys and values of a sequence split over devices and never
gathered (Liu et al. 2023, https://arxiv.org/abs/2310.01889).

Where the mesh splits the length in n, every device keeps its own queries, and the pieces of keys
and values go around the n devices by collective permutes. Each device attends to the piece it holds
as the chunked core does, and joins the results by their log-sums. In the backward pass, the
gradients of keys and values travel with them. A layer's keys and values need 1/n of the memory that
gathering takes, for the same bytes sent.

Blocks that causality hides are skipped, but every device waits for the busiest, and the last of
contiguous pieces sees all keys. For causal attention, the sequence is therefore cut into 2n pieces,
and device i attends for pieces i and 2n - 1 - i, so that all do the same work (zigzag order,
https://github.com/zhuzilin/ring-flash-attention). This moves half of each device's queries, keys,
values and results.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from t5x_like.nn.cores import _blockwise as blockwise
from t5x_like.nn.cores.chunked import Chunked
from t5x_like.nn.cores.dense import MASKED_LOGIT
from t5x_like.nn.remat import name_activation
from t5x_like.parallel import constrain

_QUERIES = ("q_pos", "q_segments")
_KEYS = ("k_pos", "k_segments", "k_valid", "k_prefix")


class Ring(Chunked):
  """Equal to the chunked core; refuses dropout of attention probabilities.

  It becomes the chunked core where nothing splits the length, in cross-attention (keys that are not
  the queries' tokens), and where the length does not divide.

  Args:
    query_chunk, key_chunk: as in `Chunked`, for a device's own piece.
  """

  refuses = ("query_bias", "dropout")
  keys_axis = "length"

  def select(self, q, k, mask, softmax):
    n = constrain.ways("length")
    around = n > 1 and q.shape[1] == k.shape[1] and q.shape[1] % n == 0
    if around or self.unsupported(
      q, k, mask, softmax
    ):  # refuse on a laptop whatever a slice refuses
      return self
    return Chunked(query_chunk=self.query_chunk, key_chunk=self.key_chunk)

  def attend(self, q, k, v, mask, softmax):
    if isinstance(softmax.bias, jax.Array):
      raise self.refusal("a position bias that is an array already")
    # another device usually holds a query's own key
    mask = dataclasses.replace(mask, aligned=False)
    over = constrain.mesh_axes("length"), constrain.ways("length")
    zigzag = mask.causal and mask.window is None and mask.k_prefix is None and q.shape[1] % 2 == 0
    if zigzag:
      fields = {name: getattr(mask, name) for name in (*_QUERIES, *_KEYS)}
      q, k, v, fields = jax.tree.map(partial(_zigzag, over), (q, k, v, fields))
      mask = dataclasses.replace(mask, **fields)
    grid, arguments = blockwise.plan_blocks(
      q, k, v, mask, softmax, self.query_chunk, self.key_chunk
    )
    out = _attend(grid, over, *arguments)
    out = out.reshape(q.shape[0], -1, q.shape[2], v.shape[-1])[:, : q.shape[1]]
    return _zigzag(over, out, back=True) if zigzag else out


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(grid, over, *arguments) -> jax.Array:
  """Attend around the ring; arguments as in `blockwise.attend`; return [B, T, K, G, H] in the dtype
  of `q`."""
  return _kept(grid, over, *arguments)[0]


def _kept(grid, over, *arguments):
  q, k, v, schemes, mask, key, places = arguments

  def attended(held):
    k, v, fields = held
    return blockwise.forward(
      grid, q, k, v, schemes, dataclasses.replace(mask, **fields), key, places
    )

  def step(carry, _):
    held, out, log_sum = carry
    held = _passed_on(over, held)
    more, more_sum = attended(held)
    joined = jnp.logaddexp(log_sum, more_sum)
    out = out * _shares(log_sum - joined, out) + more * _shares(more_sum - joined, out)
    return (held, out, joined), None

  held = k, v, {name: getattr(mask, name) for name in _KEYS}
  (_, out, log_sum), _ = jax.lax.scan(step, (held, *attended(held)), length=over[1] - 1)
  out = name_activation(out.astype(q.dtype), "context")
  log_sum = name_activation(log_sum, "context")
  return out, (*arguments, out, log_sum)


def _backward(grid, over, kept, d_out):
  q, k, v, schemes, mask, key, places, out, log_sum = kept

  def contributed(held):
    k, v, fields = held
    given = q, k, v, schemes, dataclasses.replace(mask, **fields), key, places, out, log_sum
    return blockwise.backward(grid, given, d_out)

  def step(carry, _):
    held, dq, dk, dv, d_schemes = carry
    held, dk, dv = _passed_on(over, (held, dk, dv))
    more = contributed(held)
    return (held, *jax.tree.map(jnp.add, (dq, dk, dv, d_schemes), more)), None

  held = k, v, {name: getattr(mask, name) for name in _KEYS}
  (_, dq, dk, dv, d_schemes), _ = jax.lax.scan(step, (held, *contributed(held)), length=over[1] - 1)
  dk, dv = _passed_on(over, (dk, dv))  # home again
  found = jax.tree.map(lambda d, x: d.astype(x.dtype), (dq, dk, dv, d_schemes), (q, k, v, schemes))
  return *found, None, None, None


_attend.defvjp(_kept, _backward)


def _zigzag(over, x: jax.Array, back: bool = False) -> jax.Array:
  """Exchange device i's part [B, T, ...], pieces 2i and 2i + 1 of 2n, for pieces i and 2n - 1 - i,
  or back.

  The even-numbered piece comes first.
  """
  axes, n = over
  moved = []
  for first, half in enumerate(jnp.split(x, 2, axis=1)):
    pairs = [(i, min(piece, 2 * n - 1 - piece)) for i, piece in enumerate(range(first, 2 * n, 2))]
    moved.append(jax.lax.ppermute(half, axes, [pair[::-1] for pair in pairs] if back else pairs))
  return jnp.concatenate(moved, axis=1)


def _passed_on(over, held):
  """Pass `held` on to the next device; return the previous device's."""
  axes, n = over
  return jax.tree.map(
    lambda x: jax.lax.ppermute(x, axes, [(i, (i + 1) % n) for i in range(n)]), held
  )


def _shares(log_BNT: jax.Array, out_BTKGH: jax.Array) -> jax.Array:
  """Return exp(log) as [B, T, K, G, 1]."""
  B, T, K, G, _ = out_BTKGH.shape
  return jnp.moveaxis(jnp.exp(jnp.maximum(log_BNT, MASKED_LOGIT)), 1, 2).reshape(B, T, K, G, 1)


make = Ring
