"""Sharding rules: from logical axis names to shardings.

Parameters and activations name their axes (`embed`, `heads`, `batch`, …); a recipe's rules say
which mesh axes each is split over. Data, FSDP and tensor parallelism differ only in rules and mesh;
the model is the same.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

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
  # for gradients and optimizer state; follows `embed` unless a recipe sets it
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
    dropped: descriptions of axes that traced steps left unsplit because they do not divide as the
      rules ask.

  Raises:
    UserError: from `make`, for an unknown logical or mesh axis, or a mesh axis that no rule uses;
      names it.
  """

  mesh: Mesh
  table: Mapping[str, tuple[str, ...]]
  dropped: set[str] = dataclasses.field(default_factory=set, compare=False)

  @classmethod
  def make(
    cls, mesh: Mesh, changes: Mapping[str, str | tuple[str, ...] | None] | None = None
  ) -> "Rules":
    """Apply a recipe's changes to the default rules; a value is one or several mesh axes, or None
    for not split."""
    table = dict(DEFAULT)
    for name, axes in (changes or {}).items():
      if name not in DEFAULT:
        raise UserError(f"rules.{name}: unknown logical axis{did_you_mean(name, DEFAULT)}")
      if not isinstance(axes, str | list | tuple | None):
        raise UserError(
          f"rules.{name}: found {axes!r}, expected a mesh axis, a list of them, or "
          "None for not split"
        )
      axes = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
      for axis in axes:
        if axis not in mesh.shape:
          raise UserError(
            f"rules.{name}: unknown mesh axis {axis!r}{did_you_mean(axis, mesh.shape)}"
          )
      table[name] = axes
    if "optimizer_embed" not in (changes or {}):
      table["optimizer_embed"] = table["embed"]
    used = {axis for axes in table.values() for axis in axes}
    for axis, size in mesh.shape.items():
      if size > 1 and axis not in used:
        rules = ", ".join(f"{name}->{'+'.join(axes)}" for name, axes in table.items() if axes)
        raise UserError(
          f"mesh.{axis}={size}: no rule splits anything over it, so its devices would repeat each "
          f"other's work; leave it out, or set a rule, such as rules.layers={axis} (there are "
          f"{rules})"
        )
    return cls(mesh, table)

  @classmethod
  def from_config(cls, config, devices: list[jax.Device] | None = None) -> "Rules":
    """Return the rules and the mesh of a resolved config; raise UserError if the mesh does not fit
    the devices."""
    return cls.make(make_mesh(config.mesh.to_dict(), devices), config.rules.to_dict())

  def spec(self, axes: tuple[str | None, ...], first: str | None = None) -> PartitionSpec:
    """Return the partition of an array with these logical axes.

    Each mesh axis is used once: by the axis named `first` if it asks for it, otherwise by the first
    that does.
    """
    used: set[str] = set()
    parts = {}
    for i in sorted(range(len(axes)), key=lambda i: axes[i] != first):
      split = (
        tuple(a for a in self.table[axes[i]] if self.mesh.shape[a] > 1 and a not in used)
        if axes[i]
        else ()
      )
      used.update(split)
      parts[i] = split if len(split) > 1 else split[0] if split else None
    return PartitionSpec(*(parts[i] for i in range(len(axes))))

  def sharding(self, axes: tuple[str | None, ...], first: str | None = None) -> NamedSharding:
    return NamedSharding(self.mesh, self.spec(axes, first))

  @property
  def replicated(self) -> NamedSharding:
    return NamedSharding(self.mesh, PartitionSpec())

  def ways(self, name: str) -> int:
    """Return the number of parts into which the logical axis `name` is split."""
    return math.prod(self.mesh.shape[a] for a in self.table[name])

  def axes(self, name: str) -> tuple[str, ...]:
    """Return the mesh axes, longer than 1, over which the logical axis `name` is split."""
    return tuple(a for a in self.table[name] if self.mesh.shape[a] > 1)

  def batch(self) -> NamedSharding:
    """Return the sharding of any batch feature: rows split over the batch axes, other axes
    whole."""
    return self.sharding(("batch",))

  def check_batch(self, batch_size: int, parts: int, key: str = "batch_size") -> None:
    """Check that a batch divides over the mesh and into `parts` accumulation steps; raise UserError
    naming `key`."""
    ways = self.ways("batch")
    if batch_size % (ways * parts):
      over = "x".join(f"{axis}={self.mesh.shape[axis]}" for axis in self.axes("batch")) or (
        "1 device"
      )
      raise UserError(
        f"config.{key}: found {batch_size}, expected a multiple of {ways * parts}: it is split "
        f"over {over} ({ways} ways) and into {parts} accumulation steps"
      )

  def optimizer_axes(self, axes: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """Return the logical axes of a parameter's gradient and optimizer state (ZeRO-1, Rajbhandari et
    al. 2020)."""
    return tuple("optimizer_embed" if a == "embed" else a for a in axes)

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

  def _check_divides(self, name: str, p, axes: tuple[str | None, ...]) -> None:
    for axis, size, unit, part in zip(axes, p.shape, p.unit, self.spec(axes)):
      over = _tuple(part)
      ways = math.prod(self.mesh.shape[a] for a in over)
      if (size // unit) % ways:
        held = f"{size // unit} {axis}" + (f" of width {unit}" if unit > 1 else "")
        raise UserError(
          f"{name}: axis {axis!r} holds {held}, which rule {axis}->{'+'.join(over)} cannot cut "
          f"into {ways} equal parts; change the mesh or set rules.{axis}=None"
        )

  @contextlib.contextmanager
  def activate(self) -> Iterator[None]:
    """Apply these rules to `parallel.constrain` within the block (a traced step), for the mesh's
    platform."""
    with (
      use_platform(self.mesh.devices.flat[0].platform),
      use_layout(self if self.mesh.size > 1 else None),
    ):
      yield

  def constrain(
    self, x: jax.Array, axes: tuple[str | None, ...], first: str | None = None
  ) -> jax.Array:
    uneven = self._uneven([(x, axes)])
    return jax.lax.with_sharding_constraint(
      x, self.sharding(tuple(None if a in uneven else a for a in axes), first)
    )

  def per_device(self, function: Callable, arguments: tuple, axes: tuple) -> jax.Array:
    leaves, treedef = jax.tree.flatten(arguments)
    names = [a for a, tree in zip(axes, arguments, strict=True) for _ in jax.tree.leaves(tree)]
    names = [
      tuple(a if n > 1 else None for a, n in zip(axes, x.shape)) for x, axes in zip(leaves, names)
    ]
    uneven = self._uneven(zip(leaves, names))
    led = tuple(None if a in uneven else a for a in names[0])
    # all follow the first argument
    parts = dict(zip(led, self.spec(led))) | dict.fromkeys((None, *uneven))
    specs = tuple(PartitionSpec(*(parts[a] for a in axes)) for axes in names)
    local = jax.shard_map(
      lambda *leaves: function(*treedef.unflatten(leaves)),
      mesh=self.mesh,
      in_specs=specs,
      out_specs=specs[0],
      check_vma=False,
    )
    return local(*leaves)

  def exchange(
    self, x: jax.Array, before: tuple[str | None, ...], after: tuple[str | None, ...]
  ) -> jax.Array:
    x = self.constrain(x, before, first=before[-1])
    rows, *_, moved = (_tuple(part) for part in self.spec(before, before[-1]))
    all_rows, *_, rest = (_tuple(part) for part in self.spec(after))
    even = x.shape[0] % self.ways(after[0]) == 0 and x.shape[-1] % self.ways(before[-1]) == 0
    groups = exchange_stages(self.mesh, *moved) if len(moved) == 1 else [None]
    if len(groups) == 1 or not even or rest or all_rows != (*rows, *moved):
      return self.constrain(x, after)

    # In one stage, the TPU compiler would plan a route for every pair of devices, which dominates
    # compile time.
    def local(x):
      lengths = [len(group[0]) for group in groups]
      x = x.reshape(*lengths, -1, *x.shape[1:])
      for i, group in enumerate(groups):
        x = jax.lax.all_to_all(x, *moved, i, i, axis_index_groups=group)
      x = jnp.moveaxis(x.reshape(-1, *x.shape[len(lengths) :]), 0, -2)
      return x.reshape(*x.shape[:-2], -1)

    whole = [None] * (x.ndim - 2)
    return jax.shard_map(
      local,
      mesh=self.mesh,
      in_specs=PartitionSpec(rows or None, *whole, moved),
      out_specs=PartitionSpec(all_rows, *whole, None),
      axis_names=set(all_rows),
      check_vma=False,
    )(x)

  def gather(
    self, kernel: jax.Array, axes: tuple[str | None, ...], tokens: tuple[str | None, ...]
  ) -> jax.Array:
    over = {axis for part in self._token_parts(tokens) for axis in part}
    parts = [tuple(a for a in _tuple(part) if a not in over) for part in self.spec(axes)]
    return jax.lax.with_sharding_constraint(kernel, NamedSharding(self.mesh, PartitionSpec(*parts)))

  def _token_parts(self, tokens: tuple[str | None, ...]) -> list[tuple[str, ...]]:
    return [_tuple(part) if name in TOKENS else () for name, part in zip(tokens, self.spec(tokens))]

  def reduce_scatter(
    self,
    contract: Callable,
    x: jax.Array,
    g: jax.Array,
    axes: tuple[str | None, ...],
    tokens: tuple[str | None, ...],
  ) -> jax.Array:
    # On its own, the partitioner would all-reduce the sum, which moves twice as much, and slice it
    # afterwards.
    even = tuple(
      a if a is None or size % self.ways(a) == 0 else None for a, size in zip(tokens, x.shape)
    )
    inputs = PartitionSpec(*(part or None for part in self._token_parts(even)))
    summed = {axis for part in inputs for axis in _tuple(part)}
    axes = self.optimizer_axes(axes)
    whole = [_tuple(part) for part in self.spec(axes)]
    parts = [tuple(axis for axis in part if axis in summed) for part in whole]
    rest = tuple(sorted(summed - {axis for part in parts for axis in part}))
    if not any(parts):
      return self.constrain(contract(x, g), axes)

    # The result has the axes that are not summed over: first shared ones (experts), then those of
    # `x`, then those of `g`. Where these are split (`tensor`), each device sums its own part; the
    # partitioner would gather, then slice.
    shared = [i for i, name in enumerate(tokens) if name and name not in TOKENS]
    sizes = [x.shape[i] for i in shared] + [*x.shape[len(tokens) :], *g.shape[len(tokens) :]]
    own = [tuple(axis for axis in part if axis not in summed) for part in whole]
    parted = [math.prod(self.mesh.shape[axis] for axis in o) for o in own]
    if len(sizes) != len(own) or any(n % p for n, p in zip(sizes, parted)):
      own = [()] * len(own)
    led = dict(zip(shared, own))
    inputs = [led.get(i, part) for i, part in enumerate(inputs)]
    end = len(shared) + x.ndim - len(tokens)
    of_x = own[len(shared) : end]
    of_g = own[end:]

    # XLA's CPU compiler crashes on 16-bit sums within a `shard_map` that leaves mesh axes to the
    # partitioner.
    on_cpu = self.mesh.devices.flat[0].platform == "cpu"

    def local(x, g):
      y = contract(x, g)
      y = y.astype(jnp.float32) if on_cpu else y
      for i, part in enumerate(parts):
        for axis in part:
          for groups in exchange_stages(self.mesh, axis):
            y = jax.lax.psum_scatter(
              y, axis, scatter_dimension=i, tiled=True, axis_index_groups=groups
            )
      return jax.lax.psum(y, rest) if rest else y

    scatter = jax.shard_map(
      local,
      mesh=self.mesh,
      in_specs=(PartitionSpec(*inputs, *of_x), PartitionSpec(*inputs, *of_g)),
      out_specs=PartitionSpec(*((*o, *part) for o, part in zip(own, parts))),
      # a pipeline's stages may be mapped over around this
      axis_names=summed.union(*own, self.axes("layers")),
      check_vma=False,
    )
    dtype = jax.eval_shape(contract, x, g).dtype
    return self.constrain(scatter(x, g), axes).astype(dtype)

  def _uneven(self, named: Iterable[tuple[jax.Array, tuple[str | None, ...]]]) -> set[str]:
    """Return the logical axes that do not divide and are left whole; record them in `dropped`."""
    found = {a: n for x, axes in named for a, n in zip(axes, x.shape) if a and n % self.ways(a)}
    self.dropped.update(
      f"{a} of {n} over {'+'.join(self.table[a])}={self.ways(a)}" for a, n in found.items()
    )
    return set(found)


def _tuple(part: str | tuple[str, ...] | None) -> tuple[str, ...]:
  return (part,) if isinstance(part, str) else part or ()


def local_rows(sharding: NamedSharding, batch_size: int) -> np.ndarray:
  """Return the rows of a global batch that this process's devices hold: int64, ascending.

  They need not be contiguous: on a TPU slice, the devices of a host are a block of the torus, and a
  mesh axis that runs through several hosts enters the block repeatedly.
  """
  held = sharding.addressable_devices_indices_map((batch_size,)).values()
  return _union(batch_size, held)


def rows_by_process(sharding: NamedSharding, batch_size: int) -> dict[int, np.ndarray]:
  """Return `local_rows` of every process of the mesh."""
  held: dict[int, list] = {}
  for device, index in sharding.devices_indices_map((batch_size,)).items():
    held.setdefault(device.process_index, []).append(index)
  return {process: _union(batch_size, indices) for process, indices in sorted(held.items())}


def _union(batch_size: int, held: Iterable[tuple[slice, ...]]) -> np.ndarray:
  return np.unique(np.concatenate([np.arange(batch_size)[rows] for (rows,) in held]))


def from_local_rows(sharding: NamedSharding, rows_R: np.ndarray, x, batch_size: int):
  """Build a global array [batch_size, ...] from this process's rows `x` [R, ...], where `rows_R`
  are its `local_rows`.

  `x` may be a tree of such arrays; the result is then a tree.
  """
  if jax.process_count() == 1:
    return jax.device_put(x, sharding)

  def made(x: np.ndarray) -> jax.Array:
    def shard(index: tuple[slice, ...]) -> np.ndarray:
      start, stop, _ = index[0].indices(batch_size)
      first = np.searchsorted(rows_R, start)
      return x[first : first + stop - start][:, *index[1:]]

    return jax.make_array_from_callback((batch_size, *x.shape[1:]), sharding, shard)

  return jax.tree.map(made, x)


def fetch(x: jax.Array) -> np.ndarray:
  """Return an entire global array on this host, whichever processes hold it."""
  if x.is_fully_addressable:
    return np.asarray(x)
  return np.asarray(multihost_utils.process_allgather(x, tiled=True))
