"""The dropless dispatch on a mesh: rows travel to the devices of their experts, and back.

Every device sorts the choices of its own tokens by expert. The mesh axis of `activation_expert`
splits the experts: a device sends each of the others the rows for its experts, multiplies the
received rows in one grouped product, and returns the results. Over other axes of the batch no row
travels; `mlp` may be split too, and results are added up.

All rows of an expert group may choose the experts of one device, and none is dropped. The array of
received rows has `capacity_factor` rows for each choice of a device. Devices with more rows receive
the next ones in a further round, until all have been in one. Balanced loads need one round; the
number of rounds is the same on all devices.

On TPU and GPU, rows travel by `jax.lax.ragged_all_to_all`, which sends no padding. XLA:CPU has no
such operation; an all-to-all of padded blocks gives the same rows there.
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
from t5x_like.nn.feed_forward import _rows as expert_rows
from t5x_like.parallel.constrain import Layout, platform, use_layout

# The scope of loops that balanced loads skip; `planning` counts them as skipped.
EXTRA_ROUNDS_SCOPE = "seldom"


class DispatchAxes(NamedTuple):
  """The mesh axes that a layer uses.

  Attributes:
    tokens: the axes of a batch and of its length, as parts of a `PartitionSpec`.
    expert: the axis that splits the experts; None if nothing does.
    mlp: the axes that split the hidden layer.
  """

  tokens: tuple[tuple[str, ...], tuple[str, ...]]
  expert: str | None
  mlp: tuple[str, ...]


class Transfers(NamedTuple):
  """Slices of rows that devices send to each other: slice E from device S to device D.

  Attributes:
    source_starts, sizes, destination_starts: int32 [S, D, E], the first row at the source, the
      number of rows, and the first row at the destination.
  """

  source_starts: jax.Array
  sizes: jax.Array
  destination_starts: jax.Array

  def reverse(self) -> "Transfers":
    """Return the transfers of the way back."""
    return Transfers(
      jnp.swapaxes(self.destination_starts, 0, 1),
      jnp.swapaxes(self.sizes, 0, 1),
      jnp.swapaxes(self.source_starts, 0, 1),
    )


def dispatch_axes(
  layout: Layout | None, shape: tuple[int, ...], experts: int, mlp: int
) -> DispatchAxes | None:
  """Return the mesh axes that dispatch a batch [B, T, D].

  Return None if sizes or rules do not allow a dispatch over devices.
  """
  if layout is None:
    return None
  batch_axes = layout.axes("batch")
  length_axes = layout.axes("length")
  expert_axes = layout.axes("activation_expert")
  mlp_axes = layout.axes("mlp")
  if len(expert_axes) > 1 or set(expert_axes) - set(batch_axes):
    return None
  if set(mlp_axes) & {*batch_axes, *length_axes}:
    return None
  if layout.axes("expert") != expert_axes:
    return None
  sizes = {"batch": shape[0], "length": shape[1], "activation_expert": experts, "mlp": mlp}
  if any(size % layout.ways(axis) for axis, size in sizes.items()):
    return None
  expert_axis = expert_axes[0] if expert_axes else None
  return DispatchAxes((batch_axes, length_axes), expert_axis, mlp_axes)


def dispatch(
  layer, mesh, axes: DispatchAxes, x_BTD: jax.Array, routing, apply: Callable, key: jax.Array | None
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
  layer_arrays = params.arrays(layer)
  expert_arrays, expert_specs = _expert_parameters(layer, mesh, axes, x_BTD.dtype)
  batch_axes, length_axes = axes.tokens
  token_spec = PartitionSpec(batch_axes or None, length_axes or None, None)

  def apply_experts(arrays, rows_RD, sizes_E):
    with use_layout(None):
      device_layer = params.with_arrays(layer, layer_arrays | arrays)
      y_RD = apply(device_layer, rows_RD, sizes_E)
    if axes.mlp:
      y_RD = jax.lax.psum(y_RD, axes.mlp)
    return y_RD

  def run_on_device(x_BTD, experts_BTk, gates_BTk, arrays):
    product = partial(apply_experts, arrays)
    if axes.expert is not None:
      exchange = _Exchange(apply_experts, axes, mesh.shape[axes.expert])
      product = partial(exchange.run, layer.experts.capacity_factor, arrays)
    return expert_rows.combine_experts(
      x_BTD, experts_BTk, gates_BTk, layer.experts.experts, product
    )

  run = jax.shard_map(
    run_on_device,
    mesh=mesh,
    in_specs=(token_spec, token_spec, token_spec, expert_specs),
    out_specs=token_spec,
    check_vma=False,
  )
  return run(x_BTD, routing.experts_BTk, routing.gates_BTk, expert_arrays)


def _expert_parameters(
  layer, mesh, axes: DispatchAxes, dtype: jnp.dtype
) -> tuple[dict[str, jax.Array], dict[str, PartitionSpec]]:
  """Return the parameters of a layer's experts by name, in the compute dtype, and their specs.

  The router and the shared experts are left out. The devices that split the hidden layer add up
  their results, so each has its share of a parameter that is not split, such as the last bias.
  """
  layer_arrays = params.arrays(layer)
  mlp_ways = math.prod(mesh.shape[axis] for axis in axes.mlp)
  expert_arrays = {}
  expert_specs = {}
  for name, param in params.named_params(layer).items():
    param_axes = _axes(param)
    if param_axes[0] != "expert":
      continue
    added_results = 1 if "mlp" in param_axes else mlp_ways
    share = layer_arrays[name] / added_results
    expert_arrays[name] = share.astype(dtype)
    expert_specs[name] = _spec(param_axes, axes)
  return expert_arrays, expert_specs


def _axes(param) -> params.Axes:
  """Return the logical axes of a layer's parameter, whose stack has one more."""
  return param.axes[-param.get_value().ndim :]


def _spec(param_axes: params.Axes, axes: DispatchAxes) -> PartitionSpec:
  """Return the parts of an expert parameter that a device holds within the layer."""
  parts = {"expert": axes.expert, "mlp": axes.mlp or None}
  return PartitionSpec(*(parts.get(axis) for axis in param_axes))


class _Exchange(NamedTuple):
  """Rounds in which rows travel to the devices of their experts, and back.

  Attributes:
    apply: (arrays of a device's own experts, rows [R, D] sorted by expert, sizes of the groups) ->
      [R, D].
    axes: the mesh axes.
    devices: number of devices that split the experts.
  """

  apply: Callable
  axes: DispatchAxes
  devices: int

  def run(self, factor: float, arrays, rows_MD: jax.Array, sizes_E: jax.Array) -> jax.Array:
    """Apply the experts of all devices to rows sorted by expert; return their outputs [M, D].

    Args:
      factor: rows that a device takes in one round, in multiples of its own M.
      sizes_E: number of rows of each expert.
    """
    M = rows_MD.shape[0]
    R = min(self.devices * M, math.ceil(factor * M))
    # from source to destination, by its experts
    sizes_SDE = jax.lax.all_gather(sizes_E, self.axes.expert)
    sizes_SDE = sizes_SDE.reshape(self.devices, self.devices, -1)
    y_MD = self.apply_round(R, 0, arrays, rows_MD, sizes_SDE)
    if R == self.devices * M:
      return y_MD
    return _add_rounds(self, R, arrays, rows_MD, sizes_SDE, y_MD)

  def sum_rounds(self, R: int, run_round: Callable, first, sizes_SDE: jax.Array):
    """Add the results of each round after the first to `first`."""
    batch_axes, length_axes = self.axes.tokens
    rows_D = sizes_SDE.sum((0, 2))
    rows_of_busiest = jax.lax.pmax(jnp.max(rows_D), (*batch_axes, *length_axes))

    def add_round(number, sums):
      return jax.tree.map(jnp.add, sums, run_round(number))

    with jax.named_scope(EXTRA_ROUNDS_SCOPE):
      rounds = -(-rows_of_busiest // R)
      return jax.lax.fori_loop(1, rounds, add_round, first)

  def apply_round(
    self, R: int, number, arrays, rows_MD: jax.Array, sizes_SDE: jax.Array
  ) -> jax.Array:
    """Apply the experts to the rows of a round of R; return [M, D], zeros for other rows."""
    M = rows_MD.shape[0]
    axis = self.axes.expert
    transfers = _round_transfers(sizes_SDE, number * R, R)
    # sorted by expert, then by source
    received_RD = _send(rows_MD, transfers, (M, R), axis)
    sizes_SE = transfers.sizes[:, jax.lax.axis_index(axis)]
    y_RD = self.apply(arrays, received_RD, sizes_SE.sum(0))
    return _send(y_RD, transfers.reverse(), (R, M), axis)


def _round_transfers(sizes_SDE: jax.Array, begin, R: int) -> Transfers:
  """Return the transfers of the round that fills the received rows from `begin` to `begin + R`.

  Rows are received in the order of their experts, then of their sources.

  Args:
    sizes_SDE: number of rows of each source for each expert E of each destination.
  """
  S, D, E = sizes_SDE.shape
  # first rows in the source, by destination and expert
  from_SDE = _starts(sizes_SDE.reshape(S, D * E)).reshape(S, D, E)
  sizes_DES = jnp.moveaxis(sizes_SDE, 0, 2)
  # first rows in the destination, by expert and source
  into_DES = _starts(sizes_DES.reshape(D, E * S)).reshape(D, E, S)
  into_SDE = jnp.moveaxis(into_DES, 2, 0)
  earlier_SDE = jnp.clip(begin - into_SDE, 0, sizes_SDE)
  now_SDE = jnp.clip(begin + R - into_SDE, 0, sizes_SDE) - earlier_SDE
  source_starts = from_SDE + earlier_SDE
  destination_starts = jnp.clip(into_SDE - begin, 0, R)
  return Transfers(source_starts, now_SDE, destination_starts)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _add_rounds(exchange: _Exchange, R: int, arrays, rows_MD, sizes_SDE, y_MD) -> jax.Array:
  """Add the outputs of the rounds after the first to `y_MD`."""

  def run_round(number):
    return exchange.apply_round(R, number, arrays, rows_MD, sizes_SDE)

  return exchange.sum_rounds(R, run_round, y_MD, sizes_SDE)


def _add_rounds_forward(exchange, R, arrays, rows_MD, sizes_SDE, y_MD):
  y_MD = _add_rounds(exchange, R, arrays, rows_MD, sizes_SDE, y_MD)
  return y_MD, (arrays, rows_MD, sizes_SDE)


def _add_rounds_backward(exchange, R, residuals, g_MD):
  arrays, rows_MD, sizes_SDE = residuals

  def gradients(number):
    def run_round(arrays, rows_MD):
      return exchange.apply_round(R, number, arrays, rows_MD, sizes_SDE)

    _, pull_back = jax.vjp(run_round, arrays, rows_MD)
    return pull_back(g_MD)

  zeros = jax.tree.map(jnp.zeros_like, (arrays, rows_MD))
  d_arrays, d_rows_MD = exchange.sum_rounds(R, gradients, zeros, sizes_SDE)
  return d_arrays, d_rows_MD, None, g_MD


_add_rounds.defvjp(_add_rounds_forward, _add_rounds_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _send(x: jax.Array, transfers: Transfers, counts: tuple[int, int], axis: str) -> jax.Array:
  """Send slices of rows between devices: [counts[0], D] -> [counts[1], D], zeros for no row."""
  sent, received = counts
  device = jax.lax.axis_index(axis)
  from_DE = transfers.source_starts[device]
  sizes_DE = transfers.sizes[device]
  into_DE = transfers.destination_starts[device]
  sizes_SE = transfers.sizes[:, device]
  into_SE = transfers.destination_starts[:, device]
  zeros = jnp.zeros((received, x.shape[1]), x.dtype)
  if platform() in ("tpu", "gpu"):
    # TPU would fill the exchange's own layout, four times slower.
    zeros = jax.lax.optimization_barrier(zeros)
    slices = [table.reshape(-1) for table in (from_DE, sizes_DE, into_DE, sizes_SE)]
    return jax.lax.ragged_all_to_all(x, zeros, *slices, axis_name=axis)
  sent_rows_DX = _slice_rows(from_DE, sizes_DE, sent)
  blocks = jnp.take(x, sent_rows_DX, axis=0, mode="fill", fill_value=0)
  blocks = jax.lax.all_to_all(blocks, axis, 0, 0)
  received_rows_SX = _slice_rows(into_SE, sizes_SE, sent)
  return zeros.at[received_rows_SX].set(blocks, mode="drop")


def _send_forward(x, transfers, counts, axis):
  return _send(x, transfers, counts, axis), transfers


def _send_backward(counts, axis, transfers, g):
  return _send(g, transfers.reverse(), counts[::-1], axis), None


_send.defvjp(_send_forward, _send_backward)


def _slice_rows(begin_NE: jax.Array, sizes_NE: jax.Array, size: int) -> jax.Array:
  """Return the rows of E slices, one after the other: [N, size], beyond any array at the end."""
  position_R = jnp.arange(size, dtype=jnp.int32)
  ends_NE = jnp.cumsum(sizes_NE, axis=1)
  find_slice = jax.vmap(lambda ends_E: jnp.searchsorted(ends_E, position_R, side="right"))
  slice_NR = find_slice(ends_NE)
  offset_NE = begin_NE - (ends_NE - sizes_NE)
  offset_NR = jnp.take_along_axis(offset_NE, slice_NR, axis=1, mode="clip")
  row_NR = position_R + offset_NR
  is_in_slice_NR = slice_NR < sizes_NE.shape[1]
  return jnp.where(is_in_slice_NR, row_NR, jnp.iinfo(jnp.int32).max)


def _starts(sizes_NX: jax.Array) -> jax.Array:
  """Return the first index of consecutive slices of these sizes."""
  return jnp.cumsum(sizes_NX, axis=1, dtype=jnp.int32) - sizes_NX
