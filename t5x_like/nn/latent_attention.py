"""Multi-head latent attention: keys and values are projections of one narrow vector of each token.

The vector is the token's latent (DeepSeek-AI 2024, https://arxiv.org/abs/2405.04434, section 2.1).

The cache of a token holds its latent and one rotated key that all heads share, rank + rope values
instead of `heads * (head width + value width)`. With a cache, neither the keys nor the values of
the heads are computed. Instead, the kernel of the keys projects queries into the space of latents,
where all heads attend to the same vectors, and the kernel of the values projects the attended
latents.

X in a shape stands for the channels of latent and shared key together, rank + rope.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.nn.attention import Attention, attention_scope, cache_dtype
from t5x_like.nn.cores import Core
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.dims import NO_DROPOUT, Dims, Dropout, subkey
from t5x_like.nn.layer import CacheStart, Context
from t5x_like.nn.linear import Linear
from t5x_like.nn.mask import Mask
from t5x_like.nn.positions import Position
from t5x_like.nn.remat import name_activation
from t5x_like.parallel.constrain import constrain, gather
from t5x_like.slots import PositiveFloat, PositiveInt

_LATENT_KEY = "config.model.design.latent"


@dataclasses.dataclass(frozen=True)
class Latent:
  """The sizes of `config.model.design.latent`.

  Attributes:
    rank: width of the latent of keys and values.
    query_rank: width of the latent of queries; None projects queries directly.
    rope: channels of a head that rotate; the remaining `head_dim - rope` do not.
    value: width of a head's values.
    norm_epsilon: epsilon of the norms of latents; None for the epsilon of the stack's norms.
  """

  rank: PositiveInt = 512
  query_rank: PositiveInt | None = 1536
  rope: PositiveInt = 64
  value: PositiveInt = 128
  norm_epsilon: PositiveFloat | None = None


class Expansion(Linear):
  """A projection from the latent to the keys or values of all heads.

  Decoding uses only its kernel, to project queries and attended latents.
  """


class LatentAttention(Attention):
  """Self-attention by latents.

  Args:
    dims: `dims.head_dim` is the width of queries and keys, `latent.rope` channels included.
    latent: the fields of `Latent`.
    make_norm: `(width, rngs) -> norm` of the latents.

  The other arguments are the same as for `Attention`.

  Raises:
    UserError: `latent` has an unknown field or a size that does not fit `dims` or the core, or the
      design has a norm of queries and keys.
  """

  def __init__(
    self,
    dims: Dims,
    rngs: nnx.Rngs,
    *,
    latent: dict,
    make_norm: Callable,
    scale: float,
    init: Callable,
    query_init: Callable,
    value_init: Callable,
    out_init: Callable,
    biases: tuple[str, ...] = (),
    q_norm: nnx.Module | None = None,
    k_norm: nnx.Module | None = None,
    position: Position | None = None,
    core: Core | None = None,
    softcap: float | None = None,
    window: int | None = None,
    dropout: Dropout = NO_DROPOUT,
  ):
    sizes = Latent(**slots.fill(_LATENT_KEY, latent, Latent))
    _check_sizes(sizes, dims, q_norm, core)
    D = dims.embed
    N = dims.heads
    H = dims.head_dim
    R = sizes.rank
    V = sizes.value
    Q = sizes.query_rank
    bias = "qkv" in biases
    out_bias = "out" in biases
    down_axes = ("embed", None)
    up_axes = ("embed", "heads")
    unrotated = H - sizes.rope  # channels of a head
    self.query_down = Linear((D, Q), down_axes, init, rngs, bias=bias) if Q else None
    self.query_norm = make_norm(Q, rngs) if Q else None
    self.query = Linear((Q or D, N * H), up_axes, query_init, rngs, unit=(1, H))
    self.down = Linear((D, R + sizes.rope), down_axes, init, rngs, bias=bias)
    self.norm = make_norm(R, rngs)
    self.key = Expansion((R, N * unrotated), up_axes, init, rngs, unit=(1, unrotated))
    self.value = Expansion((R, N * V), up_axes, value_init, rngs, unit=(1, V))
    self.out = Linear((N * V, D), ("heads", "embed"), out_init, rngs, unit=(V, 1), bias=out_bias)
    self.sizes = sizes
    self.position = position or Position()
    self.core = core or Dense()
    self.scale = scale
    self.softcap = softcap
    self.window = window
    self.heads = N
    self.dropout = dropout

  def __call__(
    self, x_BTD: jax.Array, context: Context, cache: jax.Array | None, key: jax.Array | None
  ):
    """Return ([B, T, D], {}, cache).

    A cache is [B, S, rank + rope]; new entries start at `context.slot`.
    """
    mask = context.mask
    if self.window is not None:
      mask = dataclasses.replace(mask, window=self.window)
    if cache is None:
      o_BTNH = self._attend_heads(x_BTD, mask, context, key)
    else:
      o_BTNH, cache = self._attend_latents(x_BTD, mask, context, cache, key)
    out_BTD = self.out(o_BTNH.reshape(*o_BTNH.shape[:2], -1))
    return name_activation(out_BTD, "attention_out"), {}, cache

  def _attend_heads(self, x_BTD: jax.Array, mask: Mask, context: Context, key) -> jax.Array:
    """Attend with the keys and values of all heads: [B, T, N, value width]."""
    q_BTNH, rotated_q_BTNH = self._queries(x_BTD, mask)
    latent_BTR, shared_key_BT1H = self._latents(x_BTD, mask)
    k_BSNH = self._split_by_head(self.key(latent_BTR))
    v_BSNH = self._split_by_head(self.value(latent_BTR))
    v_BSNH = name_activation(v_BSNH, "value")
    shared_key_BSNH = jnp.broadcast_to(shared_key_BT1H, (*k_BSNH.shape[:-1], self.sizes.rope))
    k_BSNH = jnp.concatenate([k_BSNH, shared_key_BSNH], axis=-1)
    k_BSNH = name_activation(k_BSNH, "key")
    q_BTNH = jnp.concatenate([q_BTNH, rotated_q_BTNH], axis=-1)
    q_BTNH = name_activation(q_BTNH, "query")
    return self._run_core(self.core, q_BTNH, k_BSNH, v_BSNH, mask, context, key)

  def _attend_latents(
    self, x_BTD: jax.Array, mask: Mask, context: Context, cache: jax.Array, key
  ) -> tuple[jax.Array, jax.Array]:
    """Write new latents into the cache and attend to it: ([B, T, N, value width], cache)."""
    q_BTNH, rotated_q_BTNH = self._queries(x_BTD, mask)
    latent_BTR, shared_key_BT1H = self._latents(x_BTD, mask)
    entries_BTX = jnp.concatenate([latent_BTR, shared_key_BT1H[:, :, 0]], axis=-1)
    entries_BTX = entries_BTX.astype(cache.dtype)
    cache = jax.lax.dynamic_update_slice(cache, entries_BTX, (0, context.slot, 0))
    key_kernel_RNH = self._gather_kernel(self.key, x_BTD.dtype)
    q_BTNR = jnp.einsum("BTNH,RNH->BTNR", q_BTNH, key_kernel_RNH)
    q_BTNX = jnp.concatenate([q_BTNR, rotated_q_BTNH], axis=-1)
    k_BS1X = cache[:, :, None]
    v_BS1R = k_BS1X[..., : -self.sizes.rope]
    core = self.core.for_decoding()
    o_BTNR = self._run_core(core, q_BTNX, k_BS1X, v_BS1R, mask, context, key)
    value_kernel_RNH = self._gather_kernel(self.value, x_BTD.dtype)
    o_BTNH = jnp.einsum("BTNR,RNH->BTNH", o_BTNR, value_kernel_RNH)
    return o_BTNH, cache

  def _queries(self, x_BTD: jax.Array, mask: Mask) -> tuple[jax.Array, jax.Array]:
    """Return queries in two parts, without and with rotation.

    Returns:
      ([B, T, N, H - rope], [B, T, N, rope])
    """
    rope = self.sizes.rope
    if self.query_down is not None:
      x_BTD = self.query_norm(self.query_down(x_BTD))
    q_BTNH = self._split_by_head(self.query(x_BTD))
    unrotated_BTNH = q_BTNH[..., :-rope]
    rotated_BTNH = self.position.rotate(q_BTNH[..., -rope:], mask.q_pos)
    return unrotated_BTNH, rotated_BTNH

  def _latents(self, x_BTD: jax.Array, mask: Mask) -> tuple[jax.Array, jax.Array]:
    """Return the latents of tokens and their rotated shared keys: [B, T, R], [B, T, 1, rope]."""
    rope = self.sizes.rope
    down_BTX = self.down(x_BTD)
    latent_BTR = self.norm(down_BTX[..., :-rope])
    shared_key_BT1H = self.position.rotate(down_BTX[..., None, -rope:], mask.q_pos)
    return latent_BTR, shared_key_BT1H

  def start_cache(self, start: CacheStart) -> jax.Array:
    shape = (start.batch, start.slots, self.sizes.rank + self.sizes.rope)
    zeros_BSX = jnp.zeros(shape, cache_dtype(start.dtype))
    return constrain(zeros_BSX, "batch", None, None)

  def _run_core(
    self, core: Core, q_BTNH, k_BSKH, v_BSKH, mask: Mask, context: Context, key
  ) -> jax.Array:
    """Attend to keys and values of all heads, or to latents shared by them."""
    with attention_scope(mask):
      o_BTNH = core(
        q_BTNH,
        k_BSKH,
        v_BSKH,
        mask,
        context.bias,
        self.position,
        log_name=self.log_name,
        scale=self.scale,
        softcap=self.softcap,
        dropout=self.dropout,
        key=subkey(key, 0),
      )
    return name_activation(o_BTNH.astype(q_BTNH.dtype), "context")

  def _split_by_head(self, x_BTY: jax.Array) -> jax.Array:
    """Split the last axis into heads, and shard them over the mesh."""
    x_BTNH = x_BTY.reshape(*x_BTY.shape[:-1], self.heads, -1)
    return constrain(x_BTNH, "batch", "length", "activation_heads", None)

  def _gather_kernel(self, linear: Linear, dtype: jnp.dtype) -> jax.Array:
    """Return the kernel of an up-projection, [R, N, width]."""
    kernel = linear.without_adapter(merged=True).kernel
    kernel_RY = kernel[...].astype(dtype)
    gathered_RY = gather(kernel_RY, kernel.axes[-2:])
    return gathered_RY.reshape(kernel.shape[-2], self.heads, -1)


def _check_sizes(sizes: Latent, dims: Dims, q_norm: nnx.Module | None, core: Core | None) -> None:
  """Raise UserError if the sizes of latents do not fit the heads, their norms or the core."""
  N = dims.heads
  H = dims.head_dim
  if not 0 < sizes.rope < H or sizes.rope % 2:
    raise UserError(
      f"{_LATENT_KEY}.rope: found {sizes.rope}, expected an even number below the head width {H}"
    )
  if dims.kv_heads != N:
    raise UserError(
      f"{_LATENT_KEY}: found {dims.kv_heads} kv_heads, expected as many as heads, {N}"
    )
  if q_norm is not None:
    raise UserError(
      f"{_LATENT_KEY}: found qk_norm or attention_scale 'cosine', expected neither with latents"
    )
  if core is not None and not core.exact and sizes.value != H:
    raise UserError(
      f"{_LATENT_KEY}.value: found {sizes.value} with core {core.name!r}, expected the width of "
      f"queries and keys, {H}"
    )


def make_latent_attention(design) -> Callable:
  """Bind the arguments of `LatentAttention` that come from `design.latent`.

  Args:
    design: an `architectures.design.Design` with latents.
  Returns:
    A function of the remaining arguments of `LatentAttention`.
  """
  epsilon = design.latent.get("norm_epsilon") or design.norm_epsilon
  latent_design = dataclasses.replace(design, norm_epsilon=epsilon)
  return partial(LatentAttention, latent=design.latent, make_norm=latent_design.make_norm)
