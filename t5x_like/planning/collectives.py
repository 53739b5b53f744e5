"""Read the collectives of a compiled program: bytes, mesh axes, and whether a device waits.

*Ring bytes* are the bytes one device sends when N devices run a collective around a ring, the
minimum of any algorithm (Patarasuk and Yuan 2009): (N - 1) / N * b for an all-gather with a result
of b bytes, the same for a reduce-scatter or all-to-all with an operand of b bytes, twice that for
an all-reduce, and b for a permutation. The sizes of a ragged all-to-all are known only when it
runs, so it counts as the smaller of its two arrays, as if that were full.

A reduce-scatter that the TPU compiler prints as one fusion of an all-reduce and a slice counts as a
reduce-scatter. An all-reduce whose result is sliced elsewhere counts as an all-reduce, because all
of it is sent. An asynchronous collective executes where it starts; the TPU compiler prints it
again, under the same channel, in the computations that overlap with it. A collective on a TPU's
sparse cores is in a computation that a custom call within an `async-start` names. Between slices,
the compiler prints the data that a device hands to its host, which sends it over the data-centre
network.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.planning.hlo import Instruction, Program, elements, type_bytes

KINDS = (
  "all-gather",
  "all-reduce",
  "reduce-scatter",
  "all-to-all",
  "ragged-all-to-all",
  "collective-permute",
)
_KINDS = (*KINDS, "collective-broadcast")
# Texts in the attributes that the TPU compiler prints.
_ASYNCHRONOUS_START = '"AsyncCollectiveStart"'
_RING = '"emitter":"1D'
_BETWEEN_SLICES = re.compile(
  r'_xla_megascale_target="\{[\d,]+\}x\{0:(?P<last_slice>\d+)\}",_xla_megascale_transfer_type="(?P<kind>\w+)"'
)
_TRACED_NAME = re.compile(r'op_name="([^"]*)"')


@dataclasses.dataclass
class Collective:
  """All collectives of a kind over the same mesh axes in one step.

  Attributes:
    axes: the mesh axes along which the groups extend, joined by "+"; "" for groups that match no
      axes.
    devices: the number of devices in a group.
    count: executions in a step, loops multiplied.
    bytes: bytes of the results (operands for all-reduce, reduce-scatter, all-to-all), over all
      executions.
    ring_bytes: the bytes that one device sends.
    asynchronous: whether it overlaps with other work.
    ring: whether the program sends it around one ring through all devices of a group, not along
      each dimension.
    where: the traced name of the largest collective.
    largest: ring bytes of the largest collective, over its executions.
    group: a group of devices that runs the largest collective.
  """

  kind: str
  axes: str
  devices: int
  asynchronous: bool
  ring: bool = False
  count: int = 0
  bytes: float = 0.0
  ring_bytes: float = 0.0
  where: str = ""
  largest: float = 0.0
  group: list[int] = dataclasses.field(default_factory=list)

  def add(
    self, instruction: Instruction, groups: list[list[int]], executions: int, executed_bytes: float
  ) -> None:
    """Add all executions of an instruction: their number, and their bytes together."""
    ring_bytes = executed_bytes * _ring_share(self.kind, self.devices)
    self.count += executions
    self.bytes += executed_bytes
    self.ring_bytes += ring_bytes
    if ring_bytes > self.largest:
      traced = _TRACED_NAME.search(instruction.attributes)
      self.largest = ring_bytes
      self.where = traced[1] if traced else instruction.name
      # For a permutation, choose a hop between neighbours, not the wrap-around.
      self.group = min(groups, key=lambda group: abs(group[-1] - group[0]))

  def row(self) -> dict[str, Any]:
    """Return the attributes that a plan reports."""
    row = dataclasses.asdict(self)
    del row["largest"]
    del row["group"]
    return row


def collectives(program: Program, mesh: Mapping[str, int]) -> list[Collective]:
  """Return all collectives of a program, largest first.

  Args:
    mesh: the length of each axis, in mesh order; device i of the program is the i-th device of the
      flattened mesh.
  """
  rows: dict[tuple, Collective] = {}
  starts = _asynchronous_starts(program)
  devices = math.prod(mesh.values())
  for computation, instructions in program.computations.items():
    executions = program.executions.get(computation, 0)
    if executions == 0:
      continue
    sliced_names = _names_of_sliced(instructions)
    types = program.types(computation)
    for instruction in instructions:
      kind, is_start = _kind(instruction)
      channel = instruction.attribute("channel_id")
      if kind is None or computation not in starts.get(channel, {computation}):
        continue  # printed again, in an overlapping computation or where it is awaited
      groups = _groups(instruction, devices)
      group_size = len(groups[0]) if groups else 1
      executed_bytes = executions * _bytes(instruction, kind, types, group_size)
      is_fused_slice = computation in program.fused and instruction.name in sliced_names
      if kind == "all-reduce" and is_fused_slice:
        kind = "reduce-scatter"
      axes = _axes(groups, mesh, kind)
      asynchronous = is_start or channel in starts or computation in program.asynchronous
      is_ring = _RING in instruction.attributes
      key = (kind, axes, group_size, asynchronous, is_ring)
      row = rows.setdefault(key, Collective(*key))
      row.add(instruction, groups, executions, executed_bytes)
  return sorted(rows.values(), key=lambda row: -row.ring_bytes)


def _names_of_sliced(instructions: Sequence[Instruction]) -> set[str]:
  """Return the names of the values that a computation slices at a dynamic index."""
  names = set()
  for instruction in instructions:
    if instruction.opcode == "dynamic-slice":
      names.update(instruction.operands)
  return names


def _asynchronous_starts(program: Program) -> dict[str, set[str]]:
  """Return the computations that start asynchronous collectives, by channel."""
  starts: dict[str, set[str]] = {}
  for computation, instructions in program.computations.items():
    if not any(_is_asynchronous_start(instruction) for instruction in instructions):
      continue
    for instruction in instructions:
      kind, _ = _kind(instruction)
      channel = instruction.attribute("channel_id")
      if kind is not None and channel is not None:
        starts.setdefault(channel, set()).add(computation)
  return starts


def _is_asynchronous_start(instruction: Instruction) -> bool:
  return instruction.opcode == "custom-call" and _ASYNCHRONOUS_START in instruction.attributes


def _kind(instruction: Instruction) -> tuple[str | None, bool]:
  """Return (kind, whether it is a start) of a collective instruction; (None, …) for others."""
  transfer = _transfer_between_slices(instruction)
  if transfer is not None:
    kind = transfer["kind"].lower().replace("_", "-")
    if kind not in _KINDS:
      kind = "collective-permute"
    return kind, True
  kind = instruction.opcode.removesuffix("-start")
  is_start = kind != instruction.opcode
  if kind not in _KINDS:
    return None, is_start
  return kind, is_start


def _transfer_between_slices(instruction: Instruction) -> re.Match | None:
  """Match the attributes of data for another slice; return None for other instructions.

  A device hands this data to its host.
  """
  if instruction.opcode != "send":
    return None
  return _BETWEEN_SLICES.search(instruction.attributes)


def _ring_share(kind: str, group_size: int) -> float:
  """Return the bytes sent by one device around a ring, relative to the collective's bytes."""
  if kind in ("collective-permute", "collective-broadcast"):
    return 1.0
  passes = 2.0 if kind == "all-reduce" else 1.0
  return passes * (group_size - 1) / group_size


def _bytes(instruction: Instruction, kind: str, types: Mapping[str, str], group_size: int) -> float:
  """Return the bytes of the larger side of a collective.

  They are the operands of a reduction or scatter, and the results of a gather.
  """
  parts = elements(instruction.type)
  if instruction.opcode == "send":
    copies = group_size if kind == "all-gather" else 1
    return copies * type_bytes(parts[0])
  operand_bytes = [type_bytes(types[name]) for name in instruction.operands if name in types]
  # (rows to send, the array that received rows are written into, …)
  if kind == "ragged-all-to-all":
    return min(operand_bytes[:2], default=0)
  if kind in ("all-reduce", "reduce-scatter", "all-to-all", "collective-permute"):
    return sum(operand_bytes)
  if instruction.opcode.endswith("-start"):  # (operands, results, contexts…)
    return type_bytes(parts[1])
  return sum(type_bytes(part) for part in parts)


def _groups(instruction: Instruction, devices: int) -> list[list[int]]:
  """Parse the groups of participating devices, in any of their printed forms."""
  text = instruction.attributes
  transfer = _transfer_between_slices(instruction)
  if transfer is not None:
    slices = int(transfer["last_slice"]) + 1
    # `replica` is the first axis of the mesh, so the devices of a slice are contiguous in it.
    return np.arange(devices).reshape(-1, slices).T.tolist()
  pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", text)
  if pairs:
    return [_integers(pair) for pair in re.findall(r"\{(\d+,\d+)\}", pairs[1])]
  group_list = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", text)
  if group_list:
    groups = [_integers(group) for group in re.findall(r"\{([\d,]+)\}", group_list[1])]
    return groups or [list(range(devices))]
  iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
  if iota:
    shape, dims, permutation = iota.groups()
    order = _transpose_range(dims, permutation)
    return order.reshape(_integers(shape)).tolist()
  mesh_groups = re.search(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^)]*)\))? \{([^}]*)\}", text
  )
  if mesh_groups:
    return _groups_by_axes(*mesh_groups.groups())
  return [list(range(devices))]


def _groups_by_axes(mesh: str, ids: str | None, axes: str) -> list[list[int]]:
  """Return the groups of devices along some mesh axes.

  For the mesh `'a'=2, 'b'=4` and `'b'`, there is one group for each index of a. An axis may be
  split into parts: `'b':(2)2` is the part of size 2 whose preceding parts have the size 2 together.
  """
  sizes = {}
  for name, size in re.findall(r"'([^']+)'=(\d+)", mesh):
    sizes[name] = int(size)
  parts: dict[str, list[tuple[int, int]]] = {}
  for name, stride, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", axes):
    part = (int(stride), int(size)) if size else (1, sizes[name])
    parts.setdefault(name, []).append(part)
  dims: list[int] = []
  group_dims: list[int] = []
  for name, size in sizes.items():
    covered = 1
    for stride, part_size in sorted(parts.get(name, ())):
      if stride > covered:
        dims.append(stride // covered)
      group_dims.append(len(dims))
      dims.append(part_size)
      covered = stride * part_size
    if covered < size or name not in parts:
      dims.append(size // covered)
  order = np.arange(math.prod(dims)) if ids is None else _device_ids(ids)
  outer_dims = [dim for dim in range(len(dims)) if dim not in group_dims]
  by_group = order.reshape(dims).transpose(outer_dims + group_dims)
  group_size = math.prod(dims[dim] for dim in group_dims)
  return by_group.reshape(-1, group_size).tolist()


def _device_ids(text: str) -> np.ndarray:
  """Parse `0,1,2,3` or `[2,4]T(1,0)`."""
  iota = re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?$", text)
  if iota is None:
    return np.array([int(number) for number in re.findall(r"\d+", text)])
  return _transpose_range(iota[1], iota[2]).reshape(-1)


def _transpose_range(dims: str, permutation: str | None) -> np.ndarray:
  """Return 0, 1, 2, … in an array of dimensions `2,4`, transposed by a permutation like `1,0`."""
  shape = _integers(dims)
  order = np.arange(math.prod(shape)).reshape(shape)
  if permutation is None:
    return order
  return order.transpose(_integers(permutation))


def _integers(text: str) -> list[int]:
  return [int(number) for number in text.split(",")]


def _axes(groups: Sequence[Sequence[int]], mesh: Mapping[str, int], kind: str) -> str:
  """Return the mesh axes along which a group's members differ, joined by "+".

  It begins with "part of" if the groups do not span these axes, and is empty if the groups have
  devices outside the mesh.
  """
  names = list(mesh)
  shape = tuple(mesh.values())
  largest_id = max((max(group) for group in groups if group), default=0)
  if largest_id >= math.prod(shape):
    return ""
  group_axes: set[int] = set()
  for group in groups:
    coordinates = np.array(np.unravel_index(np.array(group), shape))  # [axes, members]
    differs = (coordinates != coordinates[:, :1]).any(axis=1)
    group_axes.update(np.flatnonzero(differs).tolist())
  label = "+".join(names[axis] for axis in sorted(group_axes))
  size = math.prod(shape[axis] for axis in group_axes)
  if kind != "collective-permute" and any(len(group) != size for group in groups):
    return f"part of {label}"
  return label
