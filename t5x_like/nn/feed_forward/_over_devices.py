"""The dropless dispatch on a mesh: rows travel to the devices that hold their experts, and back.

Every device sorts the choices of its own tokens by expert. The mesh axis of `activation_expert`
splits the experts: a device sends each of the others the rows for its experts, multiplies the rows
that came in one grouped product, and returns the results. Over other axes of the batch no row
travels; `mlp` may be split too, and results are added up.

All rows of an expert group may choose the experts of one device, and none is dropped. The array for
what comes has `capacity_factor` rows for each choice of a device. Devices with more go on with the
next rows in a further round, until all have been in one. Balanced loads need one round; the number
of rounds is the same on all devices.

On TPU and GPU, rows travel by `jax.lax.ragged_all_to_all`, which sends only what is there. XLA:CPU
has no such operation; an all-to-all of padded blocks gives the same rows there.
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
from t5x_like.parallel.constrain import Layout, platform, use_layout

_MOVING = "activation_expert", "mlp"
EXTRA_ROUNDS_SCOPE = (
  "seldom"  # the scope of loops that balanced loads skip; `planning` counts them as skipped
)
Transfers = tuple[jax.Array, jax.Array, jax.Array]  # see `_sent`


class DispatchAxes(NamedTuple):
  """The mesh axes that a layer uses.

  Attributes:
    tokens: those of a batch and of its length, as parts of a `PartitionSpec`.
    expert: the axis that splits the experts; None if nothing does.
    mlp: the axes that split the hidden layer.
  """

  tokens: tuple[tuple[str, ...], tuple[str, ...]]
  expert: str | None
  mlp: tuple[str, ...]


def dispatch_axes(
  layout: Layout | None, shape: tuple[int, ...], experts: int, mlp: int
) -> DispatchAxes | None:
  """Return how a batch [B, T, D] is dispatched on a mesh; None if its sizes, or the rules, do not
  allow it."""
  if layout is None:
    return None
  tokens = (layout.axes("batch"), layout.axes("length"))
  over = layout.axes("activation_expert")
  sizes = (
    *zip(shape, map(layout.ways, ("batch", "length"))),
    *zip((experts, mlp), map(layout.ways, _MOVING)),
  )
  split = layout.axes("mlp")
  if len(over) > 1 or set(over) - set(tokens[0]) or set(split) & {*tokens[0], *tokens[1]}:
    return None
  if layout.axes("expert") != over or any(size % ways for size, ways in sizes):
    return None
  return DispatchAxes(tokens, over[0] if over else None, split)


def dispatch(
  layer, mesh, way: DispatchAxes, x_BTD: jax.Array, routing, apply: Callable, key: jax.Array | None
) -> jax.Array:
  """Return the sum of the experts' outputs of each token [B, T, D].

  Args:
    layer: the `Moe`.
    apply: (layer with a device's own experts, rows [R, D] sorted by expert, sizes of the groups) ->
      [R, D].
    key: of dropout.

  Raises:
    UserError: dropout within experts, whose masks would depend on the mesh.
  """
  if key is not None and layer.dropout_rate:
    raise UserError(
      f"config.model.design.mlp_dropout: found {layer.dropout_rate}, expected 0 for experts "
      "dispatched as 'dropless' on several devices; set it, or "
      "config.model.design.experts.dispatch=capacity"
    )
  whole = params.arrays(layer)
  arrays = {}
  parts = {}
  for name, p in params.named_params(layer).items():
    if (axes := _axes(p))[0] == "expert":  # the router's and the shared experts' do not go along
      # by as many devices
      added = math.prod(mesh.shape[axis] for axis in way.mlp) if "mlp" not in axes else 1
      arrays[name] = (whole[name] / added).astype(x_BTD.dtype)  # gathered in the compute dtype
      parts[name] = _spec(axes, way)
  tokens = PartitionSpec(*(part or None for part in way.tokens), None)

  def summed(arrays, rows_RD, sizes_E):
    with use_layout(None):
      y_RD = apply(params.with_arrays(layer, whole | arrays), rows_RD, sizes_E)
    return jax.lax.psum(y_RD, way.mlp) if way.mlp else y_RD

  def local(x_BTD, experts_BTk, gates_BTk, arrays):
    product = partial(summed, arrays)
    if way.expert is not None:
      product = partial(
        _travelled, summed, layer.experts.capacity_factor, way, mesh.shape[way.expert], arrays
      )
    return moved.combine_experts(x_BTD, experts_BTk, gates_BTk, layer.experts.experts, product)

  given = x_BTD, routing.experts_BTk, routing.gates_BTk, arrays
  specs = tokens, tokens, tokens, parts
  return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=tokens, check_vma=False)(*given)


def _axes(param) -> params.Axes:
  """Return the logical axes of a layer's parameter, whose stack has one more."""
  return param.axes[-param.get_value().ndim :]


def _spec(axes: params.Axes, way: DispatchAxes) -> PartitionSpec:
  """Return the parts of an expert parameter that a device holds within the layer."""
  parts = {"expert": way.expert, "mlp": way.mlp or None}
  return PartitionSpec(*map(parts.get, axes))


def _travelled(
  apply: Callable,
  factor: float,
  way: DispatchAxes,
  n: int,
  arrays,
  rows_MD: jax.Array,
  sizes_E: jax.Array,
):
  """Apply the experts of `n` devices to rows sorted by expert, `sizes_E` of each; return their
  outputs [M, D].

  Args:
    apply: (arrays of a device's own experts, rows [R, D] sorted by expert, sizes of the groups) ->
      [R, D].
    factor: see `R`, the rows that a device takes in one round.
  """
  M = rows_MD.shape[0]
  R = min(n * M, math.ceil(factor * M))
  # from source to destination, by its experts
  sizes_SDE = jax.lax.all_gather(sizes_E, way.expert).reshape(n, n, -1)

  def round_(arrays, rows_MD, sizes_SDE, number):
    return _round(partial(apply, arrays), rows_MD, sizes_SDE, way.expert, number * R, R)

  @jax.custom_vjp
  def further(arrays, rows_MD, sizes_SDE, y_MD):
    return over_rounds(lambda number: round_(arrays, rows_MD, sizes_SDE, number), y_MD, sizes_SDE)

  def backward(given, g_MD):
    *inputs, sizes_SDE = given

    def gradients(number):
      return jax.vjp(lambda arrays, rows_MD: round_(arrays, rows_MD, sizes_SDE, number), *inputs)[
        1
      ](g_MD)

    return (
      *over_rounds(gradients, jax.tree.map(jnp.zeros_like, tuple(inputs)), sizes_SDE),
      None,
      g_MD,
    )

  def over_rounds(of_round, first, sizes_SDE):
    """Add what each round after the first returns to `first`."""
    most = jax.lax.pmax(jnp.max(sizes_SDE.sum((0, 2))), (*way.tokens[0], *way.tokens[1]))
    with jax.named_scope(EXTRA_ROUNDS_SCOPE):
      return jax.lax.fori_loop(
        1, -(-most // R), lambda i, sums: jax.tree.map(jnp.add, sums, of_round(i)), first
      )

  further.defvjp(lambda *given: (further(*given), given[:3]), backward)
  y_MD = round_(arrays, rows_MD, sizes_SDE, 0)
  return y_MD if R == n * M else further(arrays, rows_MD, sizes_SDE, y_MD)


def _round(
  apply: Callable, rows_MD: jax.Array, sizes_SDE: jax.Array, axis: str, begin, R: int
) -> jax.Array:
  """Apply the experts to the rows that come to a device in places `begin` to `begin + R`; return
  [M, D], else zeros."""
  S, D, E = sizes_SDE.shape
  # in the rows of S, by destination and expert
  from_SDE = _starts(sizes_SDE.reshape(S, D * E)).reshape(S, D, E)
  into_SDE = jnp.moveaxis(
    _starts(jnp.moveaxis(sizes_SDE, 0, 2).reshape(D, E * S)).reshape(D, E, S), 2, 0
  )
  before_SDE = jnp.clip(begin - into_SDE, 0, sizes_SDE)
  now_SDE = jnp.clip(begin + R - into_SDE, 0, sizes_SDE) - before_SDE
  there = from_SDE + before_SDE, now_SDE, jnp.clip(into_SDE - begin, 0, R)
  came_RD = _sent(rows_MD, there, (rows_MD.shape[0], R), axis)  # sorted by expert, then by source
  y_RD = apply(came_RD, now_SDE[:, jax.lax.axis_index(axis)].sum(0))
  return _sent(y_RD, _reversed(there), (R, rows_MD.shape[0]), axis)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _sent(x: jax.Array, places: Transfers, rows: tuple[int, int], axis: str) -> jax.Array:
  """Send slices of rows between devices: [rows[0], D] -> [rows[1], D], zeros where none comes.

  Args:
    places: int32 [S, D, E], of slice E from device S to device D: its place at S, its rows, its
      place at D.
  """
  mine = jax.lax.axis_index(axis)
  from_DE, sizes_DE, into_DE = (table[mine] for table in places)
  _, sizes_SE, into_SE = (table[:, mine] for table in places)
  if platform() in ("tpu", "gpu"):
    empty = jnp.zeros((rows[1], x.shape[1]), x.dtype)
    # TPU would fill the exchange's own layout, four times slower
    empty = jax.lax.optimization_barrier(empty)
    slices = (table.reshape(-1) for table in (from_DE, sizes_DE, into_DE, sizes_SE))
    return jax.lax.ragged_all_to_all(x, empty, *slices, axis_name=axis)
  blocks = jnp.take(x, _rows_of(from_DE, sizes_DE, rows[0]), axis=0, mode="fill", fill_value=0)
  came = jax.lax.all_to_all(blocks, axis, 0, 0)
  return (
    jnp.zeros((rows[1], x.shape[1]), x.dtype)
    .at[_rows_of(into_SE, sizes_SE, rows[0])]
    .set(came, mode="drop")
  )


def _sent_backward(rows, axis, places, g):
  return _sent(g, _reversed(places), rows[::-1], axis), None


_sent.defvjp(lambda x, places, *static: (_sent(x, places, *static), places), _sent_backward)


def _reversed(places: Transfers) -> Transfers:
  """Return the places of the way back."""
  return tuple(jnp.swapaxes(table, 0, 1) for table in reversed(places))


def _rows_of(begin_NE: jax.Array, sizes_NE: jax.Array, size: int) -> jax.Array:
  """Return the places of the rows of E slices, one after the other: [N, size], beyond any array
  after the last."""
  place = jnp.arange(size, dtype=jnp.int32)
  ends_NE = jnp.cumsum(sizes_NE, axis=1)
  slice_NR = jax.vmap(lambda ends: jnp.searchsorted(ends, place, side="right"))(ends_NE)
  first_NE = begin_NE - (ends_NE - sizes_NE)
  found_NR = place + jnp.take_along_axis(first_NE, slice_NR, axis=1, mode="clip")
  return jnp.where(slice_NR < sizes_NE.shape[1], found_NR, jnp.iinfo(jnp.int32).max)


def _starts(sizes_NX: jax.Array) -> jax.Array:
  return jnp.cumsum(sizes_NX, axis=1, dtype=jnp.int32) - sizes_NX
