"""Multi-head latent attention: keys and values are projections of one narrow vector of each token.

The vector is the token's latent (DeepSeek-AI 2024, https://arxiv.org/abs/2405.04434, section 2.1).

The cache of a token holds its latent and one rotated key that all heads share, rank + rope values
in place of `heads * (head width + value width)`. Against it, the up-projections move to the other
side of the products: queries are projected into the latent space, where all heads attend to the
same vectors, and attended latents are projected to values. Neither keys nor values of the heads are
ever made.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.nn.attention import CAUSAL_SCOPE, Attention, cache_dtype
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


@dataclasses.dataclass(frozen=True)
class Latent:
  """The sizes of `config.model.design.latent`.

  Attributes:
    rank: width of the latent of keys and values.
    query_rank: width of the latent of queries; None projects queries at once.
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
  """A projection from the latent to all heads.

  Decoding multiplies its kernel from the other side.
  """


class LatentAttention(Attention):
  """Self-attention by latents.

  Args:
    dims: `dims.head_dim` is the width of queries and keys, `latent.rope` channels included.
    latent: the fields of `Latent`.
    make_norm: `(width, rngs) -> norm` of the latents.
    others: see `Attention`.
  Raises:
    UserError: `latent` or its sizes do not fit; or a norm of queries and keys is asked for.
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
    where = "config.model.design.latent"
    self.sizes = sizes = Latent(**slots.fill(where, latent, Latent))
    D = dims.embed
    N = dims.heads
    H = dims.head_dim
    R = sizes.rank
    V = sizes.value
    if not 0 < sizes.rope < H or sizes.rope % 2:
      raise UserError(
        f"{where}.rope: found {sizes.rope}, expected an even number below the head width {H}"
      )
    if q_norm is not None or dims.kv_heads != N:
      raise UserError(
        f"{where}: found kv_heads, qk_norm or cosines, expected {N} key/value heads "
        "and none of these"
      )
    if core is not None and not core.exact and V != H:
      raise UserError(
        f"{where}.value: found {V} with core {core.name!r}, expected the width of "
        f"queries and keys, {H}"
      )
    Q = sizes.query_rank
    bias = "qkv" in biases
    self.query_down = Linear((D, Q), ("embed", None), init, rngs, bias=bias) if Q else None
    self.query_norm = make_norm(Q, rngs) if Q else None
    self.query = Linear((Q or D, N * H), ("embed", "heads"), query_init, rngs, unit=(1, H))
    self.down = Linear((D, R + sizes.rope), ("embed", None), init, rngs, bias=bias)
    self.norm = make_norm(R, rngs)
    self.key = Expansion(
      (R, N * (H - sizes.rope)), ("embed", "heads"), init, rngs, unit=(1, H - sizes.rope)
    )
    self.value = Expansion((R, N * V), ("embed", "heads"), value_init, rngs, unit=(1, V))
    self.out = Linear(
      (N * V, D), ("heads", "embed"), out_init, rngs, unit=(V, 1), bias="out" in biases
    )
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
    latent_BTR, shared_BT1H = self._latents(x_BTD, mask)
    k_BSNH = self._by_head(self.key(latent_BTR))
    v_BSNH = name_activation(self._by_head(self.value(latent_BTR)), "value")
    shared_BSNH = jnp.broadcast_to(shared_BT1H, (*k_BSNH.shape[:-1], self.sizes.rope))
    k_BSNH = name_activation(jnp.concatenate([k_BSNH, shared_BSNH], axis=-1), "key")
    q_BTNH = name_activation(jnp.concatenate([q_BTNH, rotated_q_BTNH], axis=-1), "query")
    return self._run_core(self.core, q_BTNH, k_BSNH, v_BSNH, mask, context, key)

  def _attend_latents(
    self, x_BTD: jax.Array, mask: Mask, context: Context, cache: jax.Array, key
  ) -> tuple[jax.Array, jax.Array]:
    """Write new latents into the cache and attend to it: ([B, T, N, value width], cache)."""
    q_BTNH, rotated_q_BTNH = self._queries(x_BTD, mask)
    latent_BTR, shared_BT1H = self._latents(x_BTD, mask)
    new_BTX = jnp.concatenate([latent_BTR, shared_BT1H[:, :, 0]], axis=-1).astype(cache.dtype)
    cache = jax.lax.dynamic_update_slice(cache, new_BTX, (0, context.slot, 0))
    q_BTNR = jnp.einsum("BTNH,RNH->BTNR", q_BTNH, self._kernel(self.key, x_BTD.dtype))
    q_BTNX = jnp.concatenate([q_BTNR, rotated_q_BTNH], axis=-1)
    k_BS1X = cache[:, :, None]
    v_BS1R = k_BS1X[..., : -self.sizes.rope]
    core = self.core.for_decoding()
    o_BTNR = self._run_core(core, q_BTNX, k_BS1X, v_BS1R, mask, context, key)
    o_BTNH = jnp.einsum("BTNR,RNH->BTNH", o_BTNR, self._kernel(self.value, x_BTD.dtype))
    return o_BTNH, cache

  def _queries(self, x_BTD: jax.Array, mask: Mask) -> tuple[jax.Array, jax.Array]:
    """Return queries in two parts, without and with rotation.

    Returns:
      ([B, T, N, H - rope], [B, T, N, rope])
    """
    rope = self.sizes.rope
    if self.query_down is not None:
      x_BTD = self.query_norm(self.query_down(x_BTD))
    q_BTNH = self._by_head(self.query(x_BTD))
    return q_BTNH[..., :-rope], self.position.rotate(q_BTNH[..., -rope:], mask.q_pos)

  def _latents(self, x_BTD: jax.Array, mask: Mask) -> tuple[jax.Array, jax.Array]:
    """Return the latents of tokens and their rotated shared keys: [B, T, R], [B, T, 1, rope]."""
    rope = self.sizes.rope
    down_BTX = self.down(x_BTD)
    latent_BTR = self.norm(down_BTX[..., :-rope])
    return latent_BTR, self.position.rotate(down_BTX[..., None, -rope:], mask.q_pos)

  def start_cache(self, start: CacheStart) -> jax.Array:
    shape = (start.batch, start.slots, self.sizes.rank + self.sizes.rope)
    return constrain(jnp.zeros(shape, cache_dtype(start.dtype)), "batch", None, None)

  def _run_core(self, core: Core, q, k, v, mask: Mask, context: Context, key) -> jax.Array:
    with jax.named_scope(CAUSAL_SCOPE if mask.causal and mask.k_prefix is None else "attention"):
      o = core(
        q,
        k,
        v,
        mask,
        context.bias,
        self.position,
        log_name=self.log_name,
        scale=self.scale,
        softcap=self.softcap,
        dropout=self.dropout,
        key=subkey(key, 0),
      )
    return name_activation(o.astype(q.dtype), "context")

  def _by_head(self, x_BTX: jax.Array) -> jax.Array:
    x_BTNH = x_BTX.reshape(*x_BTX.shape[:-1], self.heads, -1)
    return constrain(x_BTNH, "batch", "length", "activation_heads", None)

  def _kernel(self, linear: Linear, dtype: jnp.dtype) -> jax.Array:
    """Return the kernel of an up-projection, [R, N, width]."""
    kernel = linear.without_adapter(merged=True).kernel
    gathered_RX = gather(kernel[...].astype(dtype), kernel.axes[-2:])
    return gathered_RX.reshape(kernel.shape[-2], self.heads, -1)


def make_latent_attention(design) -> Callable:
  """Return the attention of an `architectures.design.Design`, which takes the other arguments."""
  epsilon = design.latent.get("norm_epsilon") or design.norm_epsilon
  latent_design = dataclasses.replace(design, norm_epsilon=epsilon)
  return partial(LatentAttention, latent=design.latent, make_norm=latent_design.make_norm)
