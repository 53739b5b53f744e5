"""The dropless dispatch on a mesh: rows travel to the devices that hold their experts, and back.

Every device sorts the choices of its own tokens by expert. The mesh axis of `activation_expert` splits the experts: a
device sends each of the others the rows for its experts, multiplies the rows that came in one grouped product, and
returns the results. Over other axes of the batch no row travels; `mlp` may be split too, and results are added up.

All rows of an expert group may choose the experts of one device, and none is dropped. The array for what comes has
`capacity_factor` rows for each choice of a device. Devices with more go on with the next rows in a further round, until
all have been in one. Balanced loads need one round; the number of rounds is the same on all devices.

On TPU and GPU, rows travel by `jax.lax.ragged_all_to_all`, which sends only what is there. XLA:CPU has no such
operation; an all-to-all of padded blocks gives the same rows there.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.feed_forward import _rows as moved
from t5x_like.parallel.constrain import Layout, activated, platform

_MOVING = "activation_expert", "mlp"
SELDOM = "seldom"  # the scope of loops that balanced loads skip; `planning` counts them as skipped


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
  others = {name: p.get_value() for name, p in named.items()}  # of the router, unused here
  experts = {name: p for name, p in named.items() if _axes(p)[0] == "expert"}
  arrays = {}
  for name, axes in ((name, _axes(p)) for name, p in experts.items()):  # they are gathered in the compute dtype
    whole = math.prod(mesh.shape[axis] for axis in way.mlp) if "mlp" not in axes else 1  # added by as many devices
    arrays[name] = (others[name] / whole).astype(x_BTD.dtype)
  tokens = PartitionSpec(*(part or None for part in way.tokens), None)

  def summed(arrays, rows_RD, sizes_E):
    with activated(None):
      y_RD = apply(params.with_arrays(layer, others | arrays), rows_RD, sizes_E)
    return jax.lax.psum(y_RD, way.mlp) if way.mlp else y_RD

  def local(x_BTD, experts_BTk, gates_BTk, arrays):
    product = partial(summed, arrays)
    if way.expert is not None:
      product = partial(_travelled, summed, layer.experts.capacity_factor, way, mesh.shape[way.expert], arrays)
    return moved.dropless(x_BTD, experts_BTk, gates_BTk, layer.experts.experts, product)

  given = x_BTD, routing.experts_BTk, routing.gates_BTk, arrays
  specs = tokens, tokens, tokens, {name: _spec(_axes(p), way) for name, p in experts.items()}
  return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=tokens, check_vma=False)(*given)


def _axes(param) -> params.Axes:
  """Return the logical axes of a layer's parameter, whose stack has one more."""
  return param.axes[-param.get_value().ndim :]


def _spec(axes: params.Axes, way: Way) -> PartitionSpec:
  """Return the parts of a parameter that a device holds within the layer."""
  parts = {"expert": way.expert, "mlp": way.mlp or None}
  return PartitionSpec(*(parts.get(name) if "expert" in axes else None for name in axes))


def _travelled(apply: Callable, factor: float, way: Way, n: int, arrays, rows_MD: jax.Array, sizes_E: jax.Array):
  """Apply the experts of `n` devices to rows sorted by expert, `sizes_E` of each; return their outputs [M, D].

  Args:
    apply: (arrays of a device's own experts, rows [R, D] sorted by expert, sizes of the groups) -> [R, D].
    factor: see `R`, the rows that a device takes in one round.
  """
  M = rows_MD.shape[0]
  R = min(n * M, math.ceil(factor * M))
  sizes_SDE = jax.lax.all_gather(sizes_E, way.expert).reshape(n, n, -1)  # from source to destination, by its experts

  def round_(arrays, rows_MD, sizes_SDE, number):
    return _round(partial(apply, arrays), rows_MD, sizes_SDE, way.expert, number * R, R)

  @jax.custom_vjp
  def further(arrays, rows_MD, sizes_SDE):
    return summed(lambda number: round_(arrays, rows_MD, sizes_SDE, number), rows_MD, sizes_SDE)

  def backward(given, g_MD):
    *inputs, sizes_SDE = given

    def gradients(number):
      return jax.vjp(lambda arrays, rows_MD: round_(arrays, rows_MD, sizes_SDE, number), *inputs)[1](g_MD)

    return *summed(gradients, tuple(inputs), sizes_SDE), None

  def summed(of_round, like, sizes_SDE):
    most = jax.lax.pmax(jnp.max(sizes_SDE.sum((0, 2))), (*way.tokens[0], *way.tokens[1]))
    zeros = jax.tree.map(jnp.zeros_like, like)
    with jax.named_scope(SELDOM):
      return jax.lax.fori_loop(1, -(-most // R), lambda i, sums: jax.tree.map(jnp.add, sums, of_round(i)), zeros)

  further.defvjp(lambda *given: (further(*given), given), backward)
  y_MD = round_(arrays, rows_MD, sizes_SDE, 0)
  return y_MD if R == n * M else y_MD + further(arrays, rows_MD, sizes_SDE)


def _round(apply: Callable, rows_MD: jax.Array, sizes_SDE: jax.Array, axis: str, begin, R: int) -> jax.Array:
  """Apply the experts to the rows that come to a device in places `begin` to `begin + R`; return [M, D], else zeros."""
  experts, mine = sizes_SDE.shape[2], jax.lax.axis_index(axis)
  sizes_SD = sizes_SDE.sum(2)
  from_SD, into_SD = _starts(sizes_SD, 1), _starts(sizes_SD, 0)  # in the sorted rows of S, among all that come to D
  before_SD = jnp.clip(begin - into_SD, 0, sizes_SD)
  now_SD = jnp.clip(begin + R - into_SD, 0, sizes_SD) - before_SD
  from_SD, into_SD = from_SD + before_SD, jnp.clip(into_SD - begin, 0, R)
  send = _ragged if platform() in ("tpu", "gpu") else _padded
  came_RD = send(rows_MD, R, from_SD, now_SD, into_SD, axis, mine)

  ends = jnp.cumsum(sizes_SDE[:, mine].reshape(-1))  # by source, then by expert
  run_R = jnp.searchsorted(ends, begin + jnp.arange(R, dtype=jnp.int32), side="right")
  expert_R = jnp.where(run_R < ends.size, run_R % experts, experts).astype(jnp.int32)
  order_R, place_R, _, sizes = moved.by_expert(expert_R, experts)
  y_RD = apply(moved.exchange(came_RD, order_R, place_R, 1), sizes)
  y_RD = moved.exchange(y_RD, place_R, order_R, 1)
  return send(y_RD, rows_MD.shape[0], into_SD.T, now_SD.T, from_SD.T, axis, mine)


def _ragged(x, rows: int, from_SD, sizes_SD, into_SD, axis: str, mine) -> jax.Array:
  """Send `sizes_SD` rows of each device to each, from and into these places; return [rows, D], zeros elsewhere."""
  places = from_SD[mine], sizes_SD[mine], into_SD[mine], sizes_SD[:, mine]
  return jax.lax.ragged_all_to_all(x, jnp.zeros((rows, x.shape[1]), x.dtype), *places, axis_name=axis)


def _padded(x, rows: int, from_SD, sizes_SD, into_SD, axis: str, mine) -> jax.Array:
  """Send blocks of as many rows as there are; return like `_ragged`."""
  n, size = sizes_SD.shape[0], x.shape[0]
  blocks = jnp.take(x, from_SD[mine, :, None] + jnp.arange(size), axis=0, mode="clip")
  came = jax.lax.all_to_all(blocks, axis, 0, 0).reshape(n * size, -1)
  begin_S, place = into_SD[:, mine], jnp.arange(rows, dtype=jnp.int32)
  source = jnp.searchsorted(begin_S + sizes_SD[:, mine], place, side="right")
  there = (source < n) & (place >= jnp.take(begin_S, source, mode="clip"))
  index = jnp.where(there, source * size + place - jnp.take(begin_S, source, mode="clip"), n * size)
  return jnp.take(came, index, axis=0, mode="fill", fill_value=0)


def _starts(sizes: jax.Array, axis: int) -> jax.Array:
  return jnp.cumsum(sizes, axis=axis, dtype=jnp.int32) - sizes
