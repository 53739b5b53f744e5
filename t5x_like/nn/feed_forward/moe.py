"""Mixture of experts: each token uses a few of many feed-forward layers.

There are two ways to dispatch tokens to experts; they agree if no token is dropped:

- `dropless` sorts all choices of the batch by expert and multiplies them in one grouped product
  (`jax.lax.ragged_dot`). TPUs and GPUs have kernels for it, which cost no more than the chosen
  experts. On CPU, JAX replaces it by a masked product with every expert: exact in every dtype, but
  E times the work and E copies of the rows. On a mesh, rows travel to the devices of their experts
  and back (`nn.feed_forward._over_devices`).
- `capacity` gives every expert `ceil(capacity_factor * T * k / E)` slots in each row of the batch
  (Lepikhin et al. 2021; the row is the group). First choices take slots before second choices,
  earlier tokens before later ones. A choice without a slot is dropped, and only the residual
  connection carries the token on. Padding takes no slot and gets zeros. A sort assigns slots and a
  gather moves tokens, O(T k log(T k)) and O(T k D); GShard's one-hot products are quadratic in T.
  The FLOPs are `capacity_factor` times the chosen experts' FLOPs. While decoding, an expert has a
  slot for every token of the row, so that outputs do not depend on the number of tokens per call.

On a mesh whose axis `expert` is longer than 1, kernels stay in place. With `capacity`, slots switch
from a split over rows to a split over experts and back, one all-to-all each way.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.dims import NO_DROPOUT, Dropout, subkey
from t5x_like.nn.feed_forward import Experts
from t5x_like.nn.feed_forward import _over_devices as over_devices
from t5x_like.nn.feed_forward import _rows as expert_rows
from t5x_like.nn.feed_forward._noisy_top_k import NoisyRouter
from t5x_like.nn.feed_forward._router import Router, Routing
from t5x_like.nn.feed_forward._sigmoid import SigmoidRouter
from t5x_like.nn.feed_forward.mlp import Mlp, identity
from t5x_like.nn.layer import Context, Layer
from t5x_like.nn.remat import name_activation
from t5x_like.parallel.constrain import constrain, current, gather, reduce_scatter

_INWARDS = ("expert", "embed", "mlp")
_OUTWARDS = ("expert", "mlp", "embed")
# the mesh's expert axis splits the experts, not the rows
EXPERT_AXES = ("activation_expert", "batch", None)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _multiply_slots(rows_EBCX: jax.Array, kernel_EXY: jax.Array, axes: params.Axes) -> jax.Array:
  """Multiply each expert's rows by its matrix, with kernels gathered as in `linear.matmul`."""
  return _multiply_slots_forward(rows_EBCX, kernel_EXY, axes)[0]


def _multiply_slots_forward(rows_EBCX, kernel_EXY, axes):
  dtype = rows_EBCX.dtype
  whole_EXY = gather(kernel_EXY.astype(dtype), axes, EXPERT_AXES)
  y_EBCY = jnp.einsum("EBCX,EXY->EBCY", rows_EBCX, whole_EXY, preferred_element_type=dtype)
  return y_EBCY, (rows_EBCX, kernel_EXY)


def _multiply_slots_backward(axes, residuals, g_EBCY):
  rows_EBCX, kernel_EXY = residuals
  dtype = rows_EBCX.dtype
  whole_EXY = gather(kernel_EXY.astype(dtype), axes, EXPERT_AXES)
  contract = partial(jnp.einsum, "EBCX,EBCY->EXY", preferred_element_type=dtype)
  d_kernel_EXY = reduce_scatter(contract, rows_EBCX, g_EBCY, axes, EXPERT_AXES)
  d_kernel_EXY = d_kernel_EXY.astype(kernel_EXY.dtype)
  d_rows_EBCX = jnp.einsum("EBCY,EXY->EBCX", g_EBCY, whole_EXY, preferred_element_type=dtype)
  return d_rows_EBCX, d_kernel_EXY


_multiply_slots.defvjp(_multiply_slots_forward, _multiply_slots_backward)


class Moe(Layer):
  """Router and experts. Each expert is `wo(activation(wi(x)))`, gated or not.

  It returns its router's statistics. `Stack` reduces them to scalars and sums them over its layers:

    moe_balance_loss, moe_z_loss, or moe_importance_loss, moe_load_loss (router "noisy_top_k"):
      weighted losses over tokens that are not padding; an objective adds them to its loss per
      target token. With gradient accumulation, each part of the batch is balanced by itself.
    moe_violation: the excess of the largest load over the mean, as a fraction of the mean.
    moe_dropped: the fraction of choices without a slot.
    moe_violation_weights, moe_dropped_weights: 1, so that the metrics of both are means over
      layers.

  Kernels are `wi` and `gate` [E, D, F] and `wo` [E, F, D].

  Args:
    gated: see `Mlp`.
    bias: whether experts and router have biases.

  Attributes:
    multiply: the product of the "capacity" dispatch, exact or one of `nn.quantization`.
  """

  multiply = staticmethod(_multiply_slots)

  def __init__(
    self,
    embed: int,
    mlp: int,
    rngs: nnx.Rngs,
    experts: Experts,
    *,
    activation: Callable,
    gated: bool | Callable,
    bias: bool = False,
    init: Callable | None = None,
    out_init: Callable | None = None,
    dropout: Dropout = NO_DROPOUT,
  ):
    E = experts.experts
    init = init or params.fan_in_normal(embed)
    make_router = _ROUTERS[experts.router]
    self.router = make_router(embed, experts, rngs, init=init, bias=bias)
    self.gate = params.param(rngs, init, (E, embed, mlp), _INWARDS) if gated else None
    self.wi = params.param(rngs, init, (E, embed, mlp), _INWARDS)
    wo_init = out_init or params.fan_in_normal(mlp)
    self.wo = params.param(rngs, wo_init, (E, mlp, embed), _OUTWARDS)
    make_hidden_bias = partial(params.param, rngs, params.zeros, (E, mlp), ("expert", "mlp"))
    make_output_bias = partial(params.param, rngs, params.zeros, (E, embed), ("expert", "embed"))
    self.gate_bias = make_hidden_bias() if bias and gated else None
    self.wi_bias = make_hidden_bias() if bias else None
    self.wo_bias = make_output_bias() if bias else None
    shared = None
    if experts.shared:
      shared = Mlp(
        embed,
        mlp * experts.shared,
        rngs,
        activation=activation,
        gated=gated,
        bias=bias,
        init=init,
        out_init=out_init,
        dropout=dropout,
      )
    self.shared = shared
    self.experts = experts
    self.activation = activation
    self.gated_function = gated if callable(gated) else identity
    self.dropout_rate = dropout.rate  # without shared axes: each row is one token's

  def __call__(
    self, x_BTD: jax.Array, context: Context, cache, key: jax.Array | None
  ) -> tuple[jax.Array, dict, None]:
    decoding = context.slot is not None  # the layer itself keeps no cache
    valid_BT = None if decoding else _valid(context, x_BTD.shape[:2])
    routing = self.router(x_BTD, subkey(key, 0))
    routing = self.router.count_load(routing, valid_BT)
    if self.experts.dispatch == "dropless":
      y_BTD = self._dropless(x_BTD, routing, subkey(key, 1))
      dropped = jnp.float32(0)
    else:
      y_BTD, dropped = self._capacity(x_BTD, routing, valid_BT, decoding, subkey(key, 1))
    if self.shared is not None:
      shared_BTD, _, _ = self.shared(x_BTD, context, None, subkey(key, 2))
      y_BTD = y_BTD + shared_BTD
    aux = self.router.statistics(routing, valid_BT, dropped, self.experts)
    return y_BTD, aux, None

  def _dropless(self, x_BTD: jax.Array, routing: Routing, key) -> jax.Array:
    """Dispatch without dropping choices; return [B, T, D]."""
    layout = current()
    E = self.experts.experts
    apply = partial(_apply_sorted, key=key)
    axes = over_devices.dispatch_axes(layout, x_BTD.shape, E, self.wi.shape[-1])
    if axes is not None:
      return over_devices.dispatch(self, layout.mesh, axes, x_BTD, routing, apply, key)
    y_BTD = expert_rows.combine_experts(
      x_BTD, routing.experts_BTk, routing.gates_BTk, E, partial(apply, self)
    )
    return constrain(y_BTD, "batch", "length", "activation_embed")

  def _capacity(
    self, x_BTD: jax.Array, routing: Routing, valid_BT, decoding: bool, key
  ) -> tuple[jax.Array, jax.Array]:
    """Dispatch by capacity; return (output, number of dropped choices of valid tokens)."""
    B, T, D = x_BTD.shape
    E = self.experts.experts
    k = self.experts.top_k
    C = T if decoding else self._capacity_of_expert(T, is_training=key is not None)
    experts_BkT = jnp.swapaxes(routing.experts_BTk, 1, 2)
    if valid_BT is not None:
      # no expert: padding takes no slot
      experts_BkT = jnp.where(valid_BT[:, None, :], experts_BkT, E)
    experts_BM = experts_BkT.reshape(B, k * T)
    source_BS, slot_BM = jax.vmap(partial(_slots, experts=E, capacity=C))(experts_BM)
    move = jax.vmap(expert_rows.move_rows, in_axes=(0, 0, 0, None))
    # Rows may be split over the expert axis too. This pair of constraints is the all-to-all, the
    # next its inverse.
    x_BSD = move(x_BTD, source_BS, slot_BM, k)
    x_BECD = constrain(x_BSD.reshape(B, E, C, D), *_ROWS)
    x_EBCD = constrain(jnp.swapaxes(x_BECD, 0, 1), *EXPERT_AXES, "activation_embed")
    hidden_axes = (*EXPERT_AXES, "activation_mlp")
    y_EBCD = self.apply_experts(x_EBCD, self.multiply, _bias_of_slots, hidden_axes, key)
    y_EBCD = constrain(y_EBCD, *EXPERT_AXES, "activation_embed")
    y_BECD = constrain(jnp.swapaxes(y_EBCD, 0, 1), *_ROWS)
    y_BMD = move(y_BECD.reshape(B, E * C, D), slot_BM, source_BS, 1)
    y_BkTD = y_BMD.reshape(B, k, T, D)
    gates_BkT = jnp.swapaxes(routing.gates_BTk, 1, 2)
    y_BTD = jax.vmap(expert_rows.sum_gated)(y_BkTD, gates_BkT)
    choices = jnp.sum(experts_BM < E, dtype=jnp.float32)
    dropped = choices - jnp.sum(slot_BM < E * C, dtype=jnp.float32)
    return constrain(y_BTD, "batch", "length", "activation_embed"), dropped

  def _capacity_of_expert(self, tokens: int, *, is_training: bool) -> int:
    """Return the number of slots of an expert in a row of the batch."""
    factor = self.experts.capacity_factor
    if not is_training:
      factor = self.experts.eval_capacity_factor or factor
    slots = math.ceil(factor * tokens * self.experts.top_k / self.experts.experts)
    return min(tokens, slots)

  def apply_experts(
    self, rows: jax.Array, product: Callable, bias_rows: Callable, axes: tuple, key
  ) -> jax.Array:
    """Apply the experts to their rows.

    Args:
      product: `(rows, kernel_EXY, its axes)` multiplies each row by its expert's matrix.
      bias_rows: `(bias_EX)` returns the bias of each row's expert.
      axes: logical axes of the hidden layer.
    """

    def linear(rows, kernel, bias, kernel_axes):
      y = product(rows, kernel[...], kernel_axes)
      if bias is None:
        return y
      return y + bias_rows(bias[...].astype(y.dtype))

    def hidden(kernel, bias):
      h = constrain(linear(rows, kernel, bias, _INWARDS), *axes)
      return name_activation(h, "mlp_hidden")

    h = hidden(self.wi, self.wi_bias)
    if self.gate is None:
      h = self.activation(h)
    else:
      gate = hidden(self.gate, self.gate_bias)
      h = self.activation(gate) * self.gated_function(h)
    h = Dropout(self.dropout_rate)(h, key)
    return linear(h, self.wo, self.wo_bias, _OUTWARDS)


_ROUTERS = {"softmax": Router, "noisy_top_k": NoisyRouter, "sigmoid": SigmoidRouter}
_ROWS = ("batch", None, None, "activation_embed")


def _bias_of_slots(bias_EX: jax.Array) -> jax.Array:
  """Return the biases of experts, to be added to their slots [E, B, C, X]."""
  return bias_EX[:, None, None]


def _slots(experts_M: jax.Array, *, experts: int, capacity: int) -> tuple[jax.Array, jax.Array]:
  """Assign the slots of one row.

  Returns:
    (int32 [E * C] the choice in each slot, M if empty; int32 [M] the slot of each choice, E * C if
    none)
  """
  M = experts_M.shape[0]
  C = capacity
  order_M, rank_M, first_E, sizes_E = expert_rows.sort_by_expert(experts_M, experts)
  slot_EC = jnp.broadcast_to(jnp.arange(C, dtype=jnp.int32)[None, :], (experts, C))
  choice_EC = jnp.take(order_M, first_E[:, None] + slot_EC, mode="clip")
  source_EC = jnp.where(slot_EC < sizes_E[:, None], choice_EC, M)
  # rank of a choice among its expert's
  expert_rank_M = rank_M - jnp.take(first_E, experts_M, mode="clip")
  has_slot_M = (experts_M < experts) & (expert_rank_M < C)
  slot_M = jnp.where(has_slot_M, experts_M * C + expert_rank_M, experts * C)
  return source_EC.reshape(-1), slot_M


def _apply_sorted(layer: Moe, rows_MD: jax.Array, sizes_E: jax.Array, *, key) -> jax.Array:
  """Apply a layer's experts to rows sorted by expert, `sizes_E` of each."""

  def bias_rows(bias_EX: jax.Array) -> jax.Array:
    row_M = jnp.arange(rows_MD.shape[0])
    expert_M = jnp.searchsorted(jnp.cumsum(sizes_E), row_M, side="right")
    return jnp.take(bias_EX, expert_M, axis=0, mode="clip")

  product = partial(_multiply_groups, sizes_E)
  return layer.apply_experts(rows_MD, product, bias_rows, (None, "activation_mlp"), key)


def _multiply_groups(
  sizes_E: jax.Array, rows_MX: jax.Array, kernel_EXY: jax.Array, axes
) -> jax.Array:
  """Multiply sorted rows, `sizes_E` of each expert, by their experts' matrices."""
  dtype = rows_MX.dtype
  kernel_EXY = kernel_EXY.astype(dtype)
  return jax.lax.ragged_dot(rows_MX, kernel_EXY, sizes_E, preferred_element_type=dtype)


def _valid(context: Context, shape: tuple[int, int]) -> jax.Array | None:
  """Return bool [B, T], False for padding; None if the context does not contain it."""
  mask = context.mask
  if context.valid is not None:
    return context.valid
  if mask.q_segments is not None:
    return mask.q_segments > 0
  if mask.k_valid is not None and mask.k_valid.shape == shape:
    return mask.k_valid
  return None


make = Moe
