"""Ring attention: exact, with keys and values split over devices and never gathered.

It follows Liu et al. 2023 (https://arxiv.org/abs/2310.01889).

Where the mesh splits the length in n, every device keeps its own queries, and the pieces of keys
and values go around the n devices by collective permutes. Each device attends to the piece it holds
as the chunked core does, and combines the results by their log-sums. In the backward pass, the
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

_QUERY_FIELDS = ("q_pos", "q_segments")
_KEY_FIELDS = ("k_pos", "k_segments", "k_valid", "k_prefix")


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
    forms_ring = n > 1 and q.shape[1] == k.shape[1] and q.shape[1] % n == 0
    # Refuse on one device the calls that many devices refuse.
    if forms_ring or self.unsupported(q, k, mask, softmax):
      return self
    return Chunked(query_chunk=self.query_chunk, key_chunk=self.key_chunk)

  def attend(self, q, k, v, mask, softmax):
    if isinstance(softmax.bias, jax.Array):
      raise self.refusal("a position bias that is an array already")
    # Another device usually holds a query's own key.
    mask = dataclasses.replace(mask, aligned=False)
    ring = DeviceRing(constrain.mesh_axes("length"), constrain.ways("length"))
    zigzag = mask.causal and mask.window is None and mask.k_prefix is None and q.shape[1] % 2 == 0
    if zigzag:
      fields = {name: getattr(mask, name) for name in (*_QUERY_FIELDS, *_KEY_FIELDS)}
      q, k, v, fields = jax.tree.map(ring.to_zigzag, (q, k, v, fields))
      mask = dataclasses.replace(mask, **fields)
    grid, arguments = blockwise.plan_blocks(
      q, k, v, mask, softmax, self.query_chunk, self.key_chunk
    )
    out = _attend(grid, ring, *arguments)
    out = out.reshape(q.shape[0], -1, q.shape[2], v.shape[-1])[:, : q.shape[1]]
    return ring.from_zigzag(out) if zigzag else out


@dataclasses.dataclass(frozen=True)
class DeviceRing:
  """The devices that split a sequence.

  Attributes:
    axes: the mesh axes that split the length.
    size: number of devices, n.
  """

  axes: tuple[str, ...]
  size: int

  def pass_on(self, pieces):
    """Pass arrays on to the next device; return the previous device's."""
    n = self.size
    pairs = [(i, (i + 1) % n) for i in range(n)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, self.axes, pairs), pieces)

  def to_zigzag(self, x: jax.Array) -> jax.Array:
    """Exchange device i's part [B, T, ...], pieces 2i and 2i + 1 of 2n, for i and 2n - 1 - i.

    The even-numbered piece comes first.
    """
    first, second = jnp.split(x, 2, axis=1)
    first = jax.lax.ppermute(first, self.axes, self._zigzag_pairs(0))
    second = jax.lax.ppermute(second, self.axes, self._zigzag_pairs(1))
    return jnp.concatenate([first, second], axis=1)

  def from_zigzag(self, x: jax.Array) -> jax.Array:
    """Undo `to_zigzag`."""
    first, second = jnp.split(x, 2, axis=1)
    first = jax.lax.ppermute(first, self.axes, _reverse(self._zigzag_pairs(0)))
    second = jax.lax.ppermute(second, self.axes, _reverse(self._zigzag_pairs(1)))
    return jnp.concatenate([first, second], axis=1)

  def _zigzag_pairs(self, half: int) -> list[tuple[int, int]]:
    """Return (source, destination) of a half of every device's part."""
    pairs = []
    for source in range(self.size):
      piece = 2 * source + half
      pairs.append((source, min(piece, 2 * self.size - 1 - piece)))
    return pairs


def _reverse(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
  return [(destination, source) for source, destination in pairs]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(grid, ring: DeviceRing, *arguments) -> jax.Array:
  """Attend around the ring; return [B, T, K, G, H] in the dtype of `q`.

  Args:
    arguments: as in `blockwise.attend`.
  """
  return _attend_forward(grid, ring, *arguments)[0]


def _attend_forward(grid, ring: DeviceRing, *arguments):
  q, k, v, schemes, mask, key, device_slice = arguments

  def attend_to(piece):
    k, v, fields = piece
    piece_mask = dataclasses.replace(mask, **fields)
    return blockwise.forward(grid, q, k, v, schemes, piece_mask, key, device_slice)

  def step(carry, _):
    piece, out, log_sum = carry
    piece = ring.pass_on(piece)
    piece_out, piece_log_sum = attend_to(piece)
    joint_log_sum = jnp.logaddexp(log_sum, piece_log_sum)
    out = out * _exp_rows(log_sum - joint_log_sum, out)
    out = out + piece_out * _exp_rows(piece_log_sum - joint_log_sum, out)
    return (piece, out, joint_log_sum), None

  piece = k, v, {name: getattr(mask, name) for name in _KEY_FIELDS}
  (_, out, log_sum), _ = jax.lax.scan(step, (piece, *attend_to(piece)), length=ring.size - 1)
  out = name_activation(out.astype(q.dtype), "context")
  log_sum = name_activation(log_sum, "context")
  return out, (*arguments, out, log_sum)


def _attend_backward(grid, ring: DeviceRing, residuals, d_out):
  q, k, v, schemes, mask, key, device_slice, out, log_sum = residuals

  def piece_gradients(piece):
    k, v, fields = piece
    piece_mask = dataclasses.replace(mask, **fields)
    piece_residuals = (q, k, v, schemes, piece_mask, key, device_slice, out, log_sum)
    return blockwise.backward(grid, piece_residuals, d_out)

  def step(carry, _):
    piece, dq, dk, dv, d_schemes = carry
    piece, dk, dv = ring.pass_on((piece, dk, dv))
    sums = jax.tree.map(jnp.add, (dq, dk, dv, d_schemes), piece_gradients(piece))
    return (piece, *sums), None

  piece = k, v, {name: getattr(mask, name) for name in _KEY_FIELDS}
  start = (piece, *piece_gradients(piece))
  (_, dq, dk, dv, d_schemes), _ = jax.lax.scan(step, start, length=ring.size - 1)
  dk, dv = ring.pass_on((dk, dv))  # back to the devices that hold these keys
  gradients = (dq, dk, dv, d_schemes)
  gradients = jax.tree.map(lambda d, x: d.astype(x.dtype), gradients, (q, k, v, schemes))
  return *gradients, None, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _exp_rows(log_BNT: jax.Array, out_BTKGH: jax.Array) -> jax.Array:
  """Return exp(log) as [B, T, K, G, 1]."""
  B, T, K, G, _ = out_BTKGH.shape
  factors_BTN = jnp.moveaxis(jnp.exp(jnp.maximum(log_BNT, MASKED_LOGIT)), 1, 2)
  return factors_BTN.reshape(B, T, K, G, 1)


make = Ring
