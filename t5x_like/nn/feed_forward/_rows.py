"""Rows of tokens in the order of their experts: sorting, moving and adding up."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from t5x_like.nn.remat import name_activation


def combine_experts(
  x_BTD: jax.Array, experts_BTk: jax.Array, gates_BTk: jax.Array, experts: int, apply: Callable
) -> jax.Array:
  """Sum the gated outputs of each token's experts, in one pass over all choices; return [B, T, D].

  Args:
    experts_BTk, gates_BTk: see `Routing`.
    experts: their number.
    apply: (rows [M, D] sorted by expert, int32 [E] the number of each expert's rows) -> [M, D].
  """
  B, T, D = x_BTD.shape
  k = experts_BTk.shape[-1]
  N = B * T
  experts_M = experts_BTk.reshape(N, k).T.reshape(-1)
  order_M, rank_M, _, sizes_E = sort_by_expert(experts_M, experts)
  rows_MD = move_rows(x_BTD.reshape(N, D), order_M, rank_M, k, True)
  outputs_MD = apply(rows_MD, sizes_E)
  y_MD = move_rows(outputs_MD, rank_M, order_M, 1, True)
  gates_kN = gates_BTk.reshape(N, k).T
  y_ND = sum_gated(y_MD.reshape(k, N, D), gates_kN)
  return y_ND.reshape(B, T, D)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def move_rows(
  x_ND: jax.Array, index_M: jax.Array, inverse: jax.Array, copies: int, complete: bool = False
) -> jax.Array:
  """Move rows: `y[m] = x[index[m] % N]`, zeros where `index[m]` is `copies * N`.

  Args:
    x_ND: rows; index `c * N + n` is copy c of row n.
    index_M: int32, each copy of a row at most once.
    inverse: int32 [copies * N], the inverse of `index_M`: the destination of each copy, M if none.
      It makes the gradient a gather, which unlike a scatter is deterministic and fast everywhere.
    copies: number of copies of each row.
    complete: whether every copy has a destination, and every destination a copy.
  """
  N = x_ND.shape[0]
  row_M = index_M % N
  if not complete:
    row_M = jnp.where(index_M < copies * N, row_M, N)
  return _take(x_ND, row_M, complete)


def _move_forward(x_ND, index_M, inverse, copies, complete):
  return move_rows(x_ND, index_M, inverse, copies, complete), inverse


def _move_backward(copies, complete, inverse, g_MD):
  g_XD = _take(g_MD, inverse, complete)
  g_cND = g_XD.reshape(copies, -1, g_MD.shape[1])
  return jnp.sum(g_cND, axis=0), None, None


move_rows.defvjp(_move_forward, _move_backward)


def _take(x_ND: jax.Array, index_M: jax.Array, complete: bool) -> jax.Array:
  if complete:
    return jnp.take(x_ND, index_M, axis=0, mode="clip")
  # A fill is a pass of its own on TPU.
  return jnp.take(x_ND, index_M, axis=0, mode="fill", fill_value=0)


def sort_by_expert(experts_M: jax.Array, experts: int):
  """Sort choices by expert, stably; choices of no expert (E) come last.

  Returns:
    (int32 [M] sorted choices, int32 [M] rank of each choice among them, int32 [E] first rank of
    each expert, int32 [E] number of its choices)
  """
  order_M = jnp.argsort(experts_M, stable=True).astype(jnp.int32)
  rank_M = jnp.argsort(order_M).astype(jnp.int32)
  is_expert_ME = experts_M[:, None] == jnp.arange(experts, dtype=jnp.int32)[None, :]
  sizes_E = jnp.sum(is_expert_ME, axis=0, dtype=jnp.int32)
  first_E = jnp.cumsum(sizes_E, dtype=jnp.int32) - sizes_E
  return order_M, rank_M, first_E, sizes_E


def sum_gated(y_kND: jax.Array, gates_kN: jax.Array) -> jax.Array:
  """Sum each token's gated expert outputs in float32; return the sum in their dtype."""
  return _sum_products(name_activation(y_kND, "mlp_out"), gates_kN)


@jax.checkpoint  # keeps the outputs in their own dtype
def _sum_products(y_kND, gates_kN):
  y32_kND = y_kND.astype(jnp.float32)
  sum_ND = jnp.sum(y32_kND * gates_kN[..., None], axis=0)
  return sum_ND.astype(y_kND.dtype)
