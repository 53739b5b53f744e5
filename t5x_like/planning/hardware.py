"""Describe named hardware, such as `v5e:16x16`, `cpu:8` or `local`, as devices to compile for.

`local` is the devices of this machine. TPU topologies come from libtpu, the compiler of TPU hosts,
which needs no TPU (the extra `plan`).
"""

import dataclasses
import importlib.util
import os
import pathlib
import re
from collections.abc import Mapping

from t5x_like.errors import UserError, did_you_mean, one_line

LOCAL = "local"  # the kind of the devices of this machine
LIBRARY = "TPU_LIBRARY_PATH"  # the path of libtpu.so, if libtpu is not an installed package


@dataclasses.dataclass(frozen=True)
class Chip:
  """Data-sheet values of one jax device: a chip, or half a chip on TPU7x.

  Attributes:
    memory: bytes of HBM.
    bandwidth: bytes per second between the HBM and the core.
    link: bytes per second of one link to a neighbour in one direction.
    clock: cycles per second; with the size and number of the matrix units it determines the peak
      rate.
    kernels: the share of the peak rate that attention kernels reach, see `KERNELS`.
    fast: the prefix of the names of the 8-bit dtypes whose products run at twice the peak rate,
      such as "s8" for int8; empty for none.
    devices: jax devices on a chip, which share its links.
    options: further arguments of libtpu's topology. By "megacore", both cores of a v4 chip are one
      device, as on real slices.
  """

  memory: float
  bandwidth: float
  link: float
  clock: float
  kernels: float
  fast: str = ""
  devices: int = 1
  options: Mapping[str, str] = dataclasses.field(default_factory=dict)


# The compiler estimates no cycles for Pallas kernels. The share for v6e is measured: in public
# XProf profiles of Qwen3 8B on v6e-8 (length 8,192, 3 rows a chip, 6,376 tokens a second and chip),
# splash attention takes 11.2 % of the step for two forward passes (30 % of the peak rate) and 12.5
# % for the backward pass (34 %); causality halves the FLOPs. Heads of width 128 fill half of the
# 256 x 256 matrix units of v6e and TPU7x. The share for the 128 x 128 units of the other chips is
# an assumption, one and a half times as much: the exponentials take the same time. By the
# compiler's schedule, the kernel `fused` reaches 57 to 75 % on v5e.
WIDE_UNIT_KERNELS = 0.32
KERNELS = 0.48

# cloud.google.com/tpu/docs/system-architecture-tpu-vm; link rates from Austin et al. 2025, "How to
# Scale Your Model".
CHIPS = {
  "v4": Chip(32 * 2**30, 1.228e12, 45e9, 1.05e9, KERNELS, options={"chip_config_name": "megacore"}),
  "v5e": Chip(16 * 2**30, 0.819e12, 45e9, 1.5e9, KERNELS, "s8"),
  "v5p": Chip(95 * 2**30, 2.765e12, 90e9, 1.75e9, KERNELS, "s8"),
  "v6e": Chip(32 * 2**30, 1.638e12, 90e9, 1.75e9, WIDE_UNIT_KERNELS, "s8"),
  "tpu7x": Chip(96 * 2**30, 3.69e12, 100e9, 2.2e9, WIDE_UNIT_KERNELS, "f8", devices=2),
}
_TPU_SHAPE = r"[1-9]\d*(x[1-9]\d*){1,2}"
_SHAPES = {"cpu": r"[1-9]\d*", LOCAL: ""}  # other shapes than a torus of TPUs
_FLAT = ("v5e", "v6e")  # slices have two dimensions, of other kinds three
_POD_SIDE = 16  # chips; on flat kinds, only a dimension of the whole pod's length is a ring
# On the other kinds, optical switches make a ring of every dimension of a slice of whole cubes.
_CUBE_SIDE = 4
NETWORK = 6.25e9  # bytes per second and chip between slices, over the data-centre network


@dataclasses.dataclass(frozen=True)
class Topology:
  """A parsed `--topology`: `v5e:16x16` is ("v5e", "16x16"), `local` is ("local", "")."""

  kind: str
  shape: str
  slices: int = 1

  @property
  def name(self) -> str:
    if self.kind == LOCAL:
      return LOCAL
    suffix = f" x {self.slices} slices" if self.slices > 1 else ""
    return f"{self.kind}:{self.shape}{suffix}"

  @property
  def chip(self) -> Chip | None:
    return CHIPS.get(self.kind)

  @property
  def dimensions(self) -> tuple[tuple[int, bool], ...]:
    """(Length in chips, whether its ends are connected) of each dimension of a TPU slice."""
    lengths = [int(length) for length in self.shape.split("x")]
    if self.kind in _FLAT:
      return tuple((length, length == _POD_SIDE) for length in lengths)
    has_whole_cubes = len(lengths) == 3 and all(length % _CUBE_SIDE == 0 for length in lengths)
    return tuple((length, has_whole_cubes) for length in lengths)


def parse(text: str, slices: int = 1) -> Topology:
  """Parse a topology's name.

  Raises:
    UserError: the kind is unknown, the shape is invalid, or there are several slices of CPUs.
  """
  kind, _, shape = text.partition(":")
  kinds = ("cpu", LOCAL, *CHIPS)
  if kind not in kinds:
    raise UserError(
      f"--topology={text}: unknown kind {kind!r}{did_you_mean(kind, kinds)}; there are "
      f"{', '.join(kinds)}"
    )
  pattern = _SHAPES.get(kind, _TPU_SHAPE)
  if not re.fullmatch(pattern, shape):
    raise UserError(
      f"--topology={text}: found the shape {shape!r}, expected one like cpu:8, "
      "v5e:16x16 or v5p:4x4x4, or local without a shape"
    )
  if kind in _FLAT and (shape.count("x") > 1 or max(map(int, shape.split("x"))) > _POD_SIDE):
    raise UserError(
      f"--topology={text}: found the shape {shape!r}, expected two sides of at most "
      f"{_POD_SIDE} chips"
    )
  if slices < 1 or kind not in CHIPS and slices > 1:
    raise UserError(
      f"--slices={slices}: expected at least 1, and 1 for {kind}; several slices are for TPUs"
    )
  return Topology(kind, shape, slices)


def library() -> str:
  """Return the path of libtpu.so, from `TPU_LIBRARY_PATH` or the installed package.

  Raises:
    UserError: libtpu.so is not there.
  """
  configured_path = os.environ.get(LIBRARY)
  if configured_path:
    if not pathlib.Path(configured_path).is_file():
      raise UserError(
        f"{LIBRARY}={configured_path}: no such file; give the path of libtpu.so, or unset it"
      )
    return configured_path
  package = importlib.util.find_spec("libtpu")
  path = None
  if package and package.origin:
    path = pathlib.Path(package.origin).with_name("libtpu.so")
  if path is None or not path.is_file():
    raise UserError(
      "plans for TPUs need libtpu, which is not installed: pip install 't5x-like[plan]', "
      f"or set {LIBRARY} to the path of a libtpu.so; --topology=cpu:8 needs neither"
    )
  return str(path)


def environment(topology: Topology) -> dict[str, str]:
  """Return the environment variables of a process that compiles for a topology.

  Unless the topology is `local`, the process never looks for devices.

  Raises:
    UserError: as `library`.
  """
  if topology.kind == LOCAL:
    return {}
  if topology.chip is None:
    flags = re.sub(
      r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", "")
    )
    flags = f"{flags} --xla_force_host_platform_device_count={topology.shape}"
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}
  return {
    "JAX_PLATFORMS": "cpu",
    LIBRARY: library(),
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-64",  # any: the topology's own name decides
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
  }


def devices(topology: Topology) -> list:
  """Return a topology's devices; the process must have its `environment`.

  Raises:
    UserError: libtpu refuses the topology.
  """
  import jax
  from jax.experimental import topologies

  if topology.kind == LOCAL:
    return jax.devices()
  if topology.chip is None:
    return jax.devices("cpu")
  name = f"{topology.kind}:{topology.shape}"
  options = dict(topology.chip.options)
  if topology.slices > 1:
    options["num_slices"] = topology.slices
  try:
    description = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
  except Exception as error:
    raise UserError(f"--topology={name}: libtpu refuses it: {one_line(error)[:300]}") from None
  return list(description.devices)


def seconds(ring_bytes: float, group: list, topology: Topology, ring: bool = False) -> float:
  """Return the least seconds of a collective in which each device of a group sends `ring_bytes`.

  Within a slice, the collective uses all of the group's `links`, or two of them if it runs around
  one `ring`. Between slices, it is hierarchical: each device sends its share of a slice's bytes
  over the data-centre network.
  """
  slices = len({getattr(device, "slice_index", 0) or 0 for device in group})
  used_links = links(group, topology)
  if ring:
    used_links = min(2.0, used_links)
  slice_seconds = ring_bytes / (topology.chip.link * used_links)
  if slices == 1:
    return slice_seconds
  slice_devices = max(1, len(group) // slices)
  network_seconds = ring_bytes / slice_devices / NETWORK
  return network_seconds + slice_seconds if slice_devices > 1 else network_seconds


def links(group: list, topology: Topology) -> float:
  """Return the number of links over which a device of the group sends at the same time.

  A dimension of the torus along which the group extends gives two links if the group fills it and
  its ends are connected, otherwise one: in a line, the devices at the ends receive everything over
  a single link. Groups that interleave along a dimension share its links, and so do groups that
  have one device of a chip each.
  """
  total = 0.0
  coordinates = [tuple(getattr(device, "coords", ())) for device in group]
  for values, (length, closed) in zip(zip(*coordinates), topology.dimensions):
    distinct = len(set(values))
    if distinct > 1:
      stride = max(1, (max(values) - min(values)) // (distinct - 1))
      directions = 2 if closed and distinct * stride == length else 1
      total += directions / stride
  chips = {(getattr(device, "slice_index", 0), chip) for device, chip in zip(group, coordinates)}
  groups_per_chip = topology.chip.devices * len(chips) / len(group)
  return (total or 1.0) / max(1.0, groups_per_chip)


def platform(topology: Topology, devices: list) -> str:
  """Return the platform of a topology's devices, such as "tpu"."""
  return "tpu" if topology.chip else devices[0].platform


def slice_shape(devices: list) -> str:
  """Return the shape in chips of the slice of TPU devices, such as 16x16x1; "" for other devices.

  All slices of a job have the same shape.
  """
  coordinates = [getattr(device, "coords", None) for device in devices]
  if not all(coordinates):
    return ""
  lengths = [max(values) - min(values) + 1 for values in zip(*coordinates)]
  return "x".join(map(str, lengths))
