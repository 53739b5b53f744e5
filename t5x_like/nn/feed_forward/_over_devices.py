"""The dropless dispatch on a mesh: rows travel to the devices that hold their experts, and back.

Every device sorts the choices of its own tokens by expert. The mesh axis of `activation_expert` splits the experts: a
device sends each of the others the rows for its experts, multiplies the rows that came in one grouped product, and
returns the results. Over other axes of the batch no row travels; `mlp` may be split too, and results are added up.

All rows of an expert group may choose the experts of one device. The array that holds what came therefore has a row for
every choice of the group, so that none is dropped; products skip the rows that are empty.

On TPU and GPU, rows travel by `jax.lax.ragged_all_to_all`, which sends only what is there. XLA:CPU has no such
operation; an all-to-all of padded blocks gives the same rows there.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.feed_forward import _rows as moved
from t5x_like.parallel.constrain import Layout, activated, platform

_MOVING = "activation_expert", "mlp"


class Way(NamedTuple):
  """The mesh axes that a layer uses.

  Attributes:
    tokens: those of a batch and of its length, as parts of a `PartitionSpec`.
    expert: the axis that splits the experts; None if nothing does.
    mlp: the axes that split the hidden layer.
  """

  tokens: tuple[tuple[str, ...], tuple[str, ...]]
  expert: str | None
  mlp: tuple[str, ...]


def way(layout: Layout | None, shape: tuple[int, ...], experts: int, mlp: int) -> Way | None:
  """Return how a batch [B, T, D] is dispatched on a mesh; None if its sizes, or the rules, do not allow it."""
  if layout is None:
    return None
  tokens, over = (layout.axes("batch"), layout.axes("length")), layout.axes("activation_expert")
  sizes = *zip(shape, map(layout.ways, ("batch", "length"))), *zip((experts, mlp), map(layout.ways, _MOVING))
  split = layout.axes("mlp")
  if len(over) > 1 or set(over) - set(tokens[0]) or set(split) & {*tokens[0], *tokens[1]}:
    return None
  if layout.axes("expert") != over or any(size % ways for size, ways in sizes):
    return None
  return Way(tokens, over[0] if over else None, split)


def dispatched(layer, mesh, way: Way, x_BTD: jax.Array, routing, apply: Callable, key: jax.Array | None) -> jax.Array:
  """Return the sum of the experts' outputs of each token [B, T, D].

  Args:
    layer: the `Moe`.
    apply: (layer with a device's own experts, rows [R, D] sorted by expert, sizes of the groups) -> [R, D].
    key: of dropout.
  Raises:
    UserError: dropout within experts, whose masks would depend on the mesh.
  """
  if key is not None and layer.dropout_rate:
    raise UserError(
      f"config.model.design.mlp_dropout: found {layer.dropout_rate}, expected 0 for experts dispatched as 'dropless' on"
      " several devices; set it, or config.model.design.experts.dispatch=capacity"
    )
  named = params.named_params(layer)
  specs = {name: _spec(_axes(p), way) for name, p in named.items()}
  arrays = {name: p.get_value() for name, p in named.items()}  # experts are gathered in the compute dtype
  for name, axes in ((name, _axes(p)) for name, p in named.items() if "expert" in p.axes):
    whole = math.prod(mesh.shape[axis] for axis in way.mlp) if "mlp" not in axes else 1  # added by as many devices
    arrays[name] = (arrays[name] / whole).astype(x_BTD.dtype)
  tokens = PartitionSpec(*(part or None for part in way.tokens), None)

  def local(x_BTD, experts_BTk, gates_BTk, arrays):
    own = params.with_arrays(layer, arrays)

    def summed(rows_RD, sizes_E):
      y_RD = apply(own, rows_RD, sizes_E)
      return jax.lax.psum(y_RD, way.mlp) if way.mlp else y_RD

    def travelled(rows_MD, sizes_E):
      return _travelled(rows_MD, sizes_E, way.expert, mesh.shape[way.expert], summed)

    with activated(None):
      product = summed if way.expert is None else travelled
      return moved.dropless(x_BTD, experts_BTk, gates_BTk, layer.experts.experts, product)

  given = x_BTD, routing.experts_BTk, routing.gates_BTk, arrays
  specs = tokens, tokens, tokens, specs
  return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=tokens, check_vma=False)(*given)


def _axes(param) -> params.Axes:
  """Return the logical axes of a layer's parameter, whose stack has one more."""
  return param.axes[-param.get_value().ndim :]


def _spec(axes: params.Axes, way: Way) -> PartitionSpec:
  """Return the parts of a parameter that a device holds within the layer."""
  parts = {"expert": way.expert, "mlp": way.mlp or None}
  return PartitionSpec(*(parts.get(name) if "expert" in axes else None for name in axes))


def _travelled(rows_MD: jax.Array, sizes_E: jax.Array, axis: str, n: int, apply: Callable) -> jax.Array:
  """Apply the experts of `n` devices to rows sorted by expert, `sizes_E` of each; return their outputs [M, D]."""
  sizes_SDE = jax.lax.all_gather(sizes_E, axis).reshape(n, n, -1)  # rows from source to destination, by its experts
  send = _ragged if platform() in ("tpu", "gpu") else _padded
  came_RD, expert_R, returned = send(rows_MD, sizes_SDE, axis)
  order_R, place_R, _, sizes = moved.by_expert(expert_R, sizes_SDE.shape[-1])
  y_RD = apply(moved.exchange(came_RD, order_R, place_R, 1), sizes)
  return returned(moved.exchange(y_RD, place_R, order_R, 1))


def _ragged(rows_MD: jax.Array, sizes_SDE: jax.Array, axis: str):
  """Send only the rows that are there; return (rows [n M, D], the local expert of each, the way back)."""
  M, n, experts = rows_MD.shape[0], *sizes_SDE.shape[1:]
  mine = jax.lax.axis_index(axis)
  sizes_SD = sizes_SDE.sum(2)
  from_SD, into_SD = _starts(sizes_SD, 1), _starts(sizes_SD, 0)  # in the sorted rows of S, in the buffer of D
  there = from_SD[mine], sizes_SD[mine], into_SD[mine], sizes_SD[:, mine]
  back = into_SD[:, mine], sizes_SD[:, mine], from_SD[:, mine], sizes_SD[mine]

  def sent(x, rows: int, sizes):
    return jax.lax.ragged_all_to_all(x, jnp.zeros((rows, x.shape[1]), x.dtype), *sizes, axis_name=axis)

  ends = jnp.cumsum(sizes_SDE[:, mine].reshape(-1))  # by source, then by expert
  run_R = jnp.searchsorted(ends, jnp.arange(n * M, dtype=jnp.int32), side="right")
  expert_R = jnp.where(run_R < n * experts, run_R % experts, experts).astype(jnp.int32)
  return sent(rows_MD, n * M, there), expert_R, lambda y_RD: sent(y_RD, M, back)


def _padded(rows_MD: jax.Array, sizes_SDE: jax.Array, axis: str):
  """Send blocks of M rows to every device; return like `_ragged`."""
  M, D = rows_MD.shape
  n, experts = sizes_SDE.shape[1:]
  mine = jax.lax.axis_index(axis)
  sent_D = sizes_SDE[mine].sum(1)
  start_D, place_M = _starts(sent_D, 0), jnp.arange(M, dtype=jnp.int32)
  index_R = jnp.where(place_M < sent_D[:, None], start_D[:, None] + place_M, M).reshape(-1)
  to_M = jnp.searchsorted(jnp.cumsum(sent_D), place_M, side="right").astype(jnp.int32)
  back_M = to_M * M + place_M - start_D[to_M]

  def swapped(x_RD):
    return jax.lax.all_to_all(x_RD.reshape(n, M, D), axis, 0, 0).reshape(n * M, D)

  ends_SE = jnp.cumsum(sizes_SDE[:, mine], axis=1)
  expert_R = jax.vmap(lambda ends: jnp.searchsorted(ends, place_M, side="right"))(ends_SE).astype(jnp.int32)
  came_RD = swapped(moved.exchange(rows_MD, index_R, back_M, 1))
  return came_RD, expert_R.reshape(-1), lambda y_RD: moved.exchange(swapped(y_RD), back_M, index_R, 1)


def _starts(sizes: jax.Array, axis: int) -> jax.Array:
  return jnp.cumsum(sizes, axis=axis, dtype=jnp.int32) - sizes
