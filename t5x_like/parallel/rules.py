"""Map logical axis names to shardings, by rules.

Parameters and activations name their axes (`embed`, `heads`, `batch`, …); a recipe's rules say
which mesh axes each is split over. Data, FSDP and tensor parallelism differ only in rules and mesh;
the model is the same.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x_like.errors import UserError, did_you_mean
from t5x_like.parallel.constrain import TOKENS, use_layout, use_platform
from t5x_like.parallel.mesh import exchange_stages, make_mesh

DEFAULT = {
  # Parameters
  "vocab": ("tensor",),
  "embed": ("fsdp",),
  "heads": ("tensor",),
  "kv_heads": ("tensor",),
  "mlp": ("tensor",),
  "expert": ("expert",),
  "layers": ("stage",),
  # For gradients and optimizer state; equals `embed` unless a recipe sets it.
  "optimizer_embed": ("fsdp",),
  # Activations
  "batch": ("replica", "data", "fsdp", "expert"),
  "length": ("sequence",),
  "residual_length": ("sequence",),  # between sublayers
  "activation_embed": (),
  "activation_heads": ("tensor",),
  "activation_kv_heads": ("tensor",),
  "activation_mlp": ("tensor",),
  "activation_vocab": ("tensor",),
  "activation_expert": ("expert",),
}


@dataclasses.dataclass(frozen=True)
class Rules:
  """A map from logical axes to mesh axes, on one mesh.

  Attributes:
    dropped: descriptions of axes that traced steps left unsplit because they are not divisible as
      the rules require.

  Raises:
    UserError: from `make`, for an unknown logical or mesh axis, or a mesh axis that no rule uses;
      names it.
  """

  mesh: Mesh
  table: Mapping[str, tuple[str, ...]]  # the mesh axes of each logical axis
  dropped: set[str] = dataclasses.field(default_factory=set, compare=False)

  @classmethod
  def make(
    cls, mesh: Mesh, changes: Mapping[str, str | tuple[str, ...] | None] | None = None
  ) -> "Rules":
    """Apply a recipe's changes to the default rules.

    Args:
      changes: for a logical axis, one or several mesh axes, or None to leave it whole.
    """
    changes = changes or {}
    table = dict(DEFAULT)
    for name, axes in changes.items():
      table[name] = _check_rule(name, axes, mesh)
    if "optimizer_embed" not in changes:
      table["optimizer_embed"] = table["embed"]
    _check_use(mesh, table)
    return cls(mesh, table)

  @classmethod
  def from_config(cls, config, devices: list[jax.Device] | None = None) -> "Rules":
    """Return the rules and the mesh of a resolved config; raise UserError if it does not fit."""
    return cls.make(make_mesh(config.mesh.to_dict(), devices), config.rules.to_dict())

  def spec(self, axes: tuple[str | None, ...], first: str | None = None) -> PartitionSpec:
    """Return the partition of an array with these logical axes.

    Each mesh axis is used once: by the axis named `first` if its rule has it, otherwise by the
    first axis whose rule has it.
    """
    used: set[str] = set()
    parts: list[Any] = [None] * len(axes)
    indices = sorted(range(len(axes)), key=lambda index: axes[index] != first)
    for index in indices:
      name = axes[index]
      if not name:
        continue
      mesh_axes = _leave_out(self.axes(name), used)
      used.update(mesh_axes)
      if len(mesh_axes) > 1:
        parts[index] = mesh_axes
      elif mesh_axes:
        parts[index] = mesh_axes[0]
    return PartitionSpec(*parts)

  def sharding(self, axes: tuple[str | None, ...], first: str | None = None) -> NamedSharding:
    return NamedSharding(self.mesh, self.spec(axes, first))

  @property
  def replicated(self) -> NamedSharding:
    return NamedSharding(self.mesh, PartitionSpec())

  def ways(self, name: str) -> int:
    """Return the number of parts into which the logical axis `name` is split."""
    return self._num_devices(self.table[name])

  def _num_devices(self, mesh_axes: Iterable[str]) -> int:
    return math.prod(self.mesh.shape[axis] for axis in mesh_axes)

  def axes(self, name: str) -> tuple[str, ...]:
    """Return the mesh axes, longer than 1, over which the logical axis `name` is split."""
    return tuple(axis for axis in self.table[name] if self.mesh.shape[axis] > 1)

  def batch(self) -> NamedSharding:
    """Return the sharding of a batch feature: rows over the batch axes, other axes whole."""
    return self.sharding(("batch",))

  def abstract_batch(self, features: Mapping[str, Any], batch_size: int) -> dict:
    """Return shapes, dtypes and shardings of a global batch.

    Args:
      features: the features of a row by name, with `.shape` and `.dtype`.
    """
    batch = {}
    for name, feature in features.items():
      shape = (batch_size, *feature.shape)
      batch[name] = jax.ShapeDtypeStruct(shape, feature.dtype, sharding=self.batch())
    return batch

  def check_batch(self, batch_size: int, parts: int, key: str = "batch_size") -> None:
    """Check that a batch divides over the mesh and into accumulation steps.

    Args:
      parts: the number of accumulation steps.
      key: the key of the batch size, for the message.
    Raises:
      UserError: it does not divide.
    """
    ways = self.ways("batch")
    divisor = ways * parts
    if batch_size % divisor:
      mesh_axes = "x".join(f"{axis}={self.mesh.shape[axis]}" for axis in self.axes("batch"))
      raise UserError(
        f"config.{key}: found {batch_size}, expected a multiple of {divisor}: it is split over "
        f"{mesh_axes or '1 device'} ({ways} ways) and into {parts} accumulation steps"
      )

  def optimizer_axes(self, axes: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """Return the axes of a parameter's optimizer state (ZeRO-1, Rajbhandari et al. 2020)."""
    return tuple("optimizer_embed" if name == "embed" else name for name in axes)

  def param_shardings(self, params: dict) -> dict[str, NamedSharding]:
    """Return the shardings of named parameters (objects with `.shape`, `.axes` and `.unit`).

    Raises:
      UserError: an axis does not divide into whole units, in the parameter or in its optimizer
        state; names the parameter, the axis and the rule.
    """
    for name, p in params.items():
      self._check_divides(name, p, p.axes)
      self._check_divides(name, p, self.optimizer_axes(p.axes))
    return {name: self.sharding(p.axes) for name, p in params.items()}

  def abstract_params(self, params: dict) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shapes, dtypes and shardings of named parameters; raise as `param_shardings`."""
    shardings = self.param_shardings(params)
    abstract = {}
    for name, p in params.items():
      abstract[name] = jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=shardings[name])
    return abstract

  def _check_divides(self, name: str, p, axes: tuple[str | None, ...]) -> None:
    """Raise UserError if a parameter does not divide into whole units, as `param_shardings`."""
    for axis, size, unit, part in zip(axes, p.shape, p.unit, self.spec(axes)):
      mesh_axes = _as_tuple(part)
      ways = self._num_devices(mesh_axes)
      units = size // unit
      if units % ways:
        width = f" of width {unit}" if unit > 1 else ""
        raise UserError(
          f"{name}: axis {axis!r} holds {units} {axis}{width}, which rule "
          f"{axis}->{'+'.join(mesh_axes)} cannot cut into {ways} equal parts; change the mesh or "
          f"set rules.{axis}=None"
        )

  @contextlib.contextmanager
  def activate(self) -> Iterator[None]:
    """Apply these rules to `parallel.constrain` within the block, a traced step.

    Layers see the platform of the mesh.
    """
    layout = self if self.mesh.size > 1 else None
    with use_platform(self.mesh.devices.flat[0].platform), use_layout(layout):
      yield

  def constrain(
    self, x: jax.Array, axes: tuple[str | None, ...], first: str | None = None
  ) -> jax.Array:
    uneven = self._uneven([(x, axes)])
    sharding = self.sharding(_without(axes, uneven), first)
    return jax.lax.with_sharding_constraint(x, sharding)

  def per_device(self, function: Callable, arguments: tuple, axes: tuple) -> jax.Array:
    """Run a function on each device's part of the arguments; see `constrain.per_device`.

    Args:
      axes: for each argument, the logical axes of its arrays.
    """
    leaves, treedef = jax.tree.flatten(arguments)
    leaf_axes = []
    for argument_axes, argument in zip(axes, arguments, strict=True):
      for leaf in jax.tree.leaves(argument):
        # An axis of length 1 is not split.
        split_axes = [axis if size > 1 else None for axis, size in zip(argument_axes, leaf.shape)]
        leaf_axes.append(tuple(split_axes))
    uneven = self._uneven(zip(leaves, leaf_axes))
    # All arguments are split as the first one.
    first_axes = _without(leaf_axes[0], uneven)
    parts = dict(zip(first_axes, self.spec(first_axes)))
    parts |= dict.fromkeys((None, *uneven))
    specs = []
    for names in leaf_axes:
      specs.append(PartitionSpec(*(parts[name] for name in names)))

    def run_on_device(*leaves):
      return function(*treedef.unflatten(leaves))

    run = jax.shard_map(
      run_on_device,
      mesh=self.mesh,
      in_specs=tuple(specs),
      out_specs=specs[0],
      check_vma=False,
    )
    return run(*leaves)

  def exchange(
    self, x: jax.Array, before: tuple[str | None, ...], after: tuple[str | None, ...]
  ) -> jax.Array:
    """Move the split over devices from the last axis to the rows; see `constrain.exchange`.

    Args:
      before, after: the logical axes of the array before and after the exchange.
    """
    x = self.constrain(x, before, first=before[-1])
    before_spec = self.spec(before, before[-1])
    rows = _as_tuple(before_spec[0])
    exchanged_axes = _as_tuple(before_spec[-1])
    after_spec = self.spec(after)
    all_rows = _as_tuple(after_spec[0])
    rows_divide = x.shape[0] % self.ways(after[0]) == 0
    columns_divide = x.shape[-1] % self.ways(before[-1]) == 0
    stages = [None]
    if len(exchanged_axes) == 1:
      stages = exchange_stages(self.mesh, *exchanged_axes)
    moves_to_rows = all_rows == (*rows, *exchanged_axes) and not after_spec[-1]
    has_stages = len(stages) > 1
    if not (has_stages and rows_divide and columns_divide and moves_to_rows):
      return self.constrain(x, after)

    # In one stage, the TPU compiler would plan a route for every pair of devices, which dominates
    # compile time.
    def exchange_on_device(x):
      lengths = [len(groups[0]) for groups in stages]
      x = x.reshape(*lengths, -1, *x.shape[1:])
      for axis, groups in enumerate(stages):
        x = jax.lax.all_to_all(x, *exchanged_axes, axis, axis, axis_index_groups=groups)
      parts = x.reshape(-1, *x.shape[len(lengths) :])
      parts = jnp.moveaxis(parts, 0, -2)
      return parts.reshape(*parts.shape[:-2], -1)

    middle = [None] * (x.ndim - 2)
    exchange = jax.shard_map(
      exchange_on_device,
      mesh=self.mesh,
      in_specs=PartitionSpec(rows or None, *middle, exchanged_axes),
      out_specs=PartitionSpec(all_rows, *middle, None),
      axis_names=set(all_rows),
      check_vma=False,
    )
    return exchange(x)

  def gather(
    self, kernel: jax.Array, axes: tuple[str | None, ...], tokens: tuple[str | None, ...]
  ) -> jax.Array:
    """Gather a kernel over the mesh axes that split the tokens; see `constrain.gather`."""
    token_axes = set().union(*self._token_parts(tokens))
    parts = []
    for part in self.spec(axes):
      parts.append(_leave_out(_as_tuple(part), token_axes))
    sharding = NamedSharding(self.mesh, PartitionSpec(*parts))
    return jax.lax.with_sharding_constraint(kernel, sharding)

  def _token_parts(self, tokens: tuple[str | None, ...]) -> list[tuple[str, ...]]:
    """Return the mesh axes of each axis of tokens; none for other axes."""
    parts = []
    for name, part in zip(tokens, self.spec(tokens)):
      parts.append(_as_tuple(part) if name in TOKENS else ())
    return parts

  def reduce_scatter(
    self,
    contract: Callable,
    x: jax.Array,
    g: jax.Array,
    axes: tuple[str | None, ...],
    tokens: tuple[str | None, ...],
  ) -> jax.Array:
    """Contract over tokens, and leave each device its part of the sum.

    See `constrain.reduce_scatter`.
    """
    # Without this, the partitioner would all-reduce the sum, which moves twice as much, and slice
    # it afterwards.
    axes = self.optimizer_axes(axes)
    token_parts = self._token_parts(self._divisible_axes(x, tokens))
    summed = set().union(*token_parts)
    # For each axis of the result: its mesh axes that are also summed over, and its other ones.
    scattered_parts = []
    local_parts = []
    for spec_part in self.spec(axes):
      part = _as_tuple(spec_part)
      scattered_parts.append(tuple(axis for axis in part if axis in summed))
      local_parts.append(_leave_out(part, summed))
    if not any(scattered_parts):
      return self.constrain(contract(x, g), axes)

    # The result has the axes that are not summed over: first shared ones (experts), then the axes
    # of `x`, then the axes of `g`. If these are split (`tensor`), each device sums its own part,
    # which the partitioner would gather and then slice.
    shared = [i for i, name in enumerate(tokens) if name and name not in TOKENS]
    shared_sizes = [x.shape[i] for i in shared]
    sizes = [*shared_sizes, *x.shape[len(tokens) :], *g.shape[len(tokens) :]]
    if not self._parts_divide(sizes, local_parts):
      local_parts = [()] * len(local_parts)
    input_parts = [part or None for part in token_parts]
    for i, part in zip(shared, local_parts):
      input_parts[i] = part
    end_of_x = len(shared) + x.ndim - len(tokens)
    x_spec = PartitionSpec(*input_parts, *local_parts[len(shared) : end_of_x])
    g_spec = PartitionSpec(*input_parts, *local_parts[end_of_x:])
    output_parts = []
    for local_part, scattered_part in zip(local_parts, scattered_parts):
      output_parts.append((*local_part, *scattered_part))
    scatter = jax.shard_map(
      self._sum_and_scatter(contract, summed, scattered_parts),
      mesh=self.mesh,
      in_specs=(x_spec, g_spec),
      out_specs=PartitionSpec(*output_parts),
      # A pipeline may map over its stages around this call.
      axis_names=summed.union(*local_parts, self.axes("layers")),
      check_vma=False,
    )
    dtype = jax.eval_shape(contract, x, g).dtype
    result = self.constrain(scatter(x, g), axes)
    return result.astype(dtype)

  def _divisible_axes(self, x: jax.Array, axes: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """Return the leading axes of an array with None where it does not divide."""
    divisible = []
    for name, size in zip(axes, x.shape):
      divides = name is None or size % self.ways(name) == 0
      divisible.append(name if divides else None)
    return tuple(divisible)

  def _parts_divide(self, sizes: list[int], parts: list[tuple[str, ...]]) -> bool:
    """Return whether axes of these sizes divide over the mesh axes of their parts."""
    if len(sizes) != len(parts):
      return False
    return all(size % self._num_devices(part) == 0 for size, part in zip(sizes, parts))

  def _sum_and_scatter(
    self, contract: Callable, summed: set[str], scattered_parts: list[tuple[str, ...]]
  ) -> Callable:
    """Return `(x, g) -> result` for each device: a contraction, reduce-scattered.

    Args:
      contract: `(x, g) -> sum over tokens`.
      summed: the mesh axes to sum over.
      scattered_parts: for each axis of the result, the mesh axes among `summed` that split it.
    """
    scattered = set().union(*scattered_parts)
    summed_only = tuple(sorted(summed - scattered))
    # XLA's CPU compiler crashes on 16-bit sums within a `shard_map` that leaves mesh axes to the
    # partitioner.
    on_cpu = self.mesh.devices.flat[0].platform == "cpu"

    def run_on_device(x, g):
      y = contract(x, g)
      if on_cpu:
        y = y.astype(jnp.float32)
      for dimension, part in enumerate(scattered_parts):
        for axis in part:
          for groups in exchange_stages(self.mesh, axis):
            y = jax.lax.psum_scatter(
              y, axis, scatter_dimension=dimension, tiled=True, axis_index_groups=groups
            )
      if summed_only:
        y = jax.lax.psum(y, summed_only)
      return y

    return run_on_device

  def _uneven(self, named: Iterable[tuple[jax.Array, tuple[str | None, ...]]]) -> set[str]:
    """Return the logical axes that do not divide and are left whole; record them in `dropped`."""
    uneven_sizes = {}
    for x, axes in named:
      for axis, size in zip(axes, x.shape):
        if axis and size % self.ways(axis):
          uneven_sizes[axis] = size
    for axis, size in uneven_sizes.items():
      rule = "+".join(self.table[axis])
      self.dropped.add(f"{axis} of {size} over {rule}={self.ways(axis)}")
    return set(uneven_sizes)


def _check_use(mesh: Mesh, table: Mapping[str, tuple[str, ...]]) -> None:
  """Raise UserError for a mesh axis longer than 1 over which no rule splits anything."""
  used = set().union(*table.values())
  for axis, size in mesh.shape.items():
    if size > 1 and axis not in used:
      rules = ", ".join(f"{name}->{'+'.join(axes)}" for name, axes in table.items() if axes)
      raise UserError(
        f"mesh.{axis}={size}: no rule splits anything over it, so its devices would repeat each "
        f"other's work; leave it out, or set a rule, such as rules.layers={axis} (there are "
        f"{rules})"
      )


def _check_rule(name: str, axes: Any, mesh: Mesh) -> tuple[str, ...]:
  """Return the mesh axes of a recipe's rule; raise UserError for an unknown name."""
  if name not in DEFAULT:
    raise UserError(f"rules.{name}: unknown logical axis{did_you_mean(name, DEFAULT)}")
  if not isinstance(axes, str | list | tuple | None):
    raise UserError(
      f"rules.{name}: found {axes!r}, expected a mesh axis, a list of them, or None for not split"
    )
  if axes is None:
    return ()
  mesh_axes = (axes,) if isinstance(axes, str) else tuple(axes)
  for axis in mesh_axes:
    if axis not in mesh.shape:
      raise UserError(f"rules.{name}: unknown mesh axis {axis!r}{did_you_mean(axis, mesh.shape)}")
  return mesh_axes


def _without(axes: tuple[str | None, ...], names: set[str]) -> tuple[str | None, ...]:
  """Return axes with None instead of some names."""
  return tuple(None if axis in names else axis for axis in axes)


def _leave_out(mesh_axes: tuple[str, ...], names: set[str]) -> tuple[str, ...]:
  """Return mesh axes without some of them."""
  return tuple(axis for axis in mesh_axes if axis not in names)


def _as_tuple(part: str | tuple[str, ...] | None) -> tuple[str, ...]:
  """Return the mesh axes of a part of a `PartitionSpec`."""
  if part is None:
    return ()
  if isinstance(part, str):
    return (part,)
  return part


def local_rows(sharding: NamedSharding, batch_size: int) -> np.ndarray:
  """Return the rows of a global batch that this process's devices hold: int64, ascending.

  They need not be contiguous: on a TPU slice, the devices of a host are a block of the torus, and a
  mesh axis that runs through several hosts enters the block repeatedly.
  """
  indices = sharding.addressable_devices_indices_map((batch_size,)).values()
  return _row_numbers(batch_size, indices)


def rows_by_process(sharding: NamedSharding, batch_size: int) -> dict[int, np.ndarray]:
  """Return `local_rows` of every process of the mesh."""
  indices_by_process: dict[int, list] = {}
  for device, index in sharding.devices_indices_map((batch_size,)).items():
    indices_by_process.setdefault(device.process_index, []).append(index)
  rows = {}
  for process, indices in sorted(indices_by_process.items()):
    rows[process] = _row_numbers(batch_size, indices)
  return rows


def _row_numbers(batch_size: int, indices: Iterable[tuple[slice, ...]]) -> np.ndarray:
  """Return the rows of a batch that indices select, ascending, each once."""
  all_rows = np.arange(batch_size)
  parts = [all_rows[row_slice] for (row_slice,) in indices]
  return np.unique(np.concatenate(parts))


def from_local_rows(sharding: NamedSharding, rows_R: np.ndarray, x, batch_size: int):
  """Build a global array [batch_size, ...] from this process's rows `x` [R, ...].

  Args:
    rows_R: the `local_rows` of this process.

  `x` may be a tree of such arrays; the result is then a tree.
  """
  if jax.process_count() == 1:
    return jax.device_put(x, sharding)

  def build_array(x: np.ndarray) -> jax.Array:
    def read_shard(index: tuple[slice, ...]) -> np.ndarray:
      row_slice, *other_slices = index
      start, stop, _ = row_slice.indices(batch_size)
      first = np.searchsorted(rows_R, start)
      shard_rows = x[first : first + stop - start]
      return shard_rows[:, *other_slices]

    shape = (batch_size, *x.shape[1:])
    return jax.make_array_from_callback(shape, sharding, read_shard)

  return jax.tree.map(build_array, x)


def fetch(x: jax.Array) -> np.ndarray:
  """Return an entire global array on this host, whichever processes hold it."""
  if x.is_fully_addressable:
    return np.asarray(x)
  return np.asarray(multihost_utils.process_allgather(x, tiled=True))
