"""The collectives of a compiled program: the bytes each device sends, over which mesh axes, and whether it waits.

*Ring bytes* are the bytes one device sends when N devices run a collective around a ring, the minimum of any algorithm
(Patarasuk and Yuan 2009): (N - 1) / N * b for an all-gather with a result of b bytes, the same for a reduce-scatter or
all-to-all with an operand of b bytes, twice that for an all-reduce, and b for a permutation. A ragged all-to-all sends
what its sizes say when it runs; it counts as the smaller of its two arrays, full.

A reduce-scatter that the TPU compiler prints as one fusion of an all-reduce and a slice counts as a reduce-scatter. An
all-reduce whose result is sliced elsewhere counts as an all-reduce, because all of it is sent. An asynchronous
collective executes where it starts; the TPU compiler prints it again, under the same channel, in the computations that
overlap with it. A collective on a TPU's sparse cores is in a computation that a custom call within an `async-start`
names. Between slices, the compiler prints the data that a device hands to its host, which sends it over the
data-centre network.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.planning.hlo import Instruction, Program, elements, type_bytes

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")
_KINDS = (*KINDS, "collective-broadcast")
_STARTS = '"AsyncCollectiveStart"'
_RING = '"emitter":"1D'
_BETWEEN_SLICES = re.compile(r'_xla_megascale_target="\{[\d,]+\}x\{0:(\d+)\}",_xla_megascale_transfer_type="(\w+)"')


@dataclasses.dataclass
class Collective:
  """All collectives of a kind over the same mesh axes in one step.

  Attributes:
    axes: the mesh axes along which the groups extend, joined by "+"; "" for groups that match no axes.
    devices: the number of devices in a group.
    count: executions in a step, loops multiplied.
    bytes: bytes of the results (operands for all-reduce, reduce-scatter, all-to-all), over all executions.
    ring_bytes: the bytes that one device sends.
    asynchronous: whether it overlaps with other work.
    ring: whether the program sends it around one ring through all devices of a group, not along each dimension.
    where: the traced operation behind the largest collective.
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

  def row(self) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(self).items() if key not in ("largest", "group")}


def collectives(program: Program, mesh: Mapping[str, int]) -> list[Collective]:
  """Return all collectives of a program, largest first.

  Args:
    mesh: the length of each axis, in mesh order; device i of the program is the i-th device of the flattened mesh.
  """
  found: dict[tuple, Collective] = {}
  started = _started(program)
  for computation, instructions in program.computations.items():
    times = program.executions.get(computation, 0)
    if not times:
      continue
    slices = {name for i in instructions if i.opcode == "dynamic-slice" for name in i.operands}
    shapes = program.shapes(computation)
    for instruction in instructions:
      kind, asynchronous = _kind(instruction)
      start = started.get(instruction.attribute("channel_id"), {computation})
      if kind is None or computation not in start:
        continue  # a repeated print, in an overlapping computation or where it is awaited
      fused = computation in program.fused
      scattered = kind == "all-reduce" and fused and instruction.name in slices
      asynchronous |= instruction.attribute("channel_id") in started or computation in program.asynchronous
      groups = _groups(instruction, math.prod(mesh.values()))
      n = len(groups[0]) if groups else 1
      sent = _bytes(instruction, kind, shapes, n)
      if scattered:
        kind = "reduce-scatter"
      axes = _axes(groups, mesh, kind)
      key = (kind, axes, n, asynchronous, _RING in instruction.rest)
      row = found.setdefault(key, Collective(*key))
      row.count += times
      row.bytes += times * sent
      row.ring_bytes += (ring := times * sent * _share(kind, n))
      if ring > row.largest:
        name = re.search(r'op_name="([^"]*)"', instruction.rest)
        row.largest, row.where = ring, name[1] if name else instruction.name
        row.group = min(groups, key=lambda g: abs(g[-1] - g[0]))  # of a permutation, a hop, not the way back around
  return sorted(found.values(), key=lambda row: -row.ring_bytes)


def _started(program: Program) -> dict[str | None, set[str]]:
  """Return the computations that start an asynchronous collective of the TPU compiler, by channel."""
  started: dict[str | None, set[str]] = {}
  for computation, instructions in program.computations.items():
    if any(i.opcode == "custom-call" and _STARTS in i.rest for i in instructions):
      for instruction in instructions:
        if _kind(instruction)[0]:
          started.setdefault(instruction.attribute("channel_id"), set()).add(computation)
  started.pop(None, None)
  return started


def _kind(instruction: Instruction) -> tuple[str | None, bool]:
  """Return (kind, whether it is a start) of a collective instruction; (None, …) for others."""
  opcode = instruction.opcode
  if opcode == "send" and (between := _BETWEEN_SLICES.search(instruction.rest)):
    kind = between[2].lower().replace("_", "-")
    return (kind if kind in _KINDS else "collective-permute"), True
  base = opcode.removesuffix("-start")
  return (base if base in _KINDS else None), base != opcode


def _share(kind: str, n: int) -> float:
  if kind in ("collective-permute", "collective-broadcast"):
    return 1.0
  return (2.0 if kind == "all-reduce" else 1.0) * (n - 1) / n


def _bytes(instruction: Instruction, kind: str, shapes: Mapping[str, str], n: int) -> float:
  """Return the bytes of the larger side: the operands of a reduction or scatter, the results of a gather."""
  if instruction.opcode == "send":
    return type_bytes(elements(instruction.type)[0]) * (n if kind == "all-gather" else 1)
  if kind == "ragged-all-to-all":  # (rows to send, the array that those of others are written into, …)
    return min((type_bytes(shapes[name]) for name in instruction.operands[:2] if name in shapes), default=0)
  if kind in ("all-reduce", "reduce-scatter", "all-to-all", "collective-permute"):
    return sum(type_bytes(shapes[name]) for name in instruction.operands if name in shapes)
  parts = elements(instruction.type)
  if instruction.opcode.endswith("-start"):  # (operands, results, contexts…)
    return type_bytes(parts[1])
  return sum(map(type_bytes, parts))


def _groups(instruction: Instruction, devices: int) -> list[list[int]]:
  """Parse the groups of participating devices, in any of their printed forms."""
  text = instruction.rest
  if instruction.opcode == "send" and (between := _BETWEEN_SLICES.search(text)):
    return np.arange(devices).reshape(-1, int(between[1]) + 1).T.tolist()  # slices are one after another in the mesh
  pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", text)
  if pairs:
    return [list(map(int, pair.split(","))) for pair in re.findall(r"\{(\d+,\d+)\}", pairs[1])]
  listed = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", text)
  if listed:
    found = [list(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", listed[1])]
    return found or [list(range(devices))]
  iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
  if iota:
    shape, dims = (tuple(map(int, iota[i].split(","))) for i in (1, 2))
    order = np.arange(math.prod(dims)).reshape(dims)
    if iota[3]:
      order = order.transpose(tuple(map(int, iota[3].split(","))))
    return order.reshape(shape).tolist()
  named = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^)]*)\))? \{([^}]*)\}", text)
  if named:
    return _named_groups(*named.groups())
  return [list(range(devices))]


def _named_groups(mesh: str, ids: str | None, chosen: str) -> list[list[int]]:
  """Return the groups along the chosen axes: for mesh `'a'=2, 'b'=4` and `'b'`, one group for each index of a.

  `'b':(2)2` is a part of an axis.
  """
  sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)}
  dims, along = [], []
  parts = {}
  for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen):
    parts.setdefault(name, []).append((int(before), int(size)) if size else (1, sizes[name]))
  for name, size in sizes.items():
    done = 1
    for before, part in sorted(parts.get(name, ())):
      if before > done:
        dims.append(before // done)
      along.append(len(dims))
      dims.append(part)
      done = before * part
    if done < size or not parts.get(name):
      dims.append(size // done)
  order = np.arange(math.prod(dims)) if ids is None else _listed_ids(ids)
  across = [axis for axis in range(len(dims)) if axis not in along]
  order = order.reshape(dims).transpose(across + along)
  return order.reshape(-1, math.prod(dims[axis] for axis in along)).tolist()


def _listed_ids(text: str) -> np.ndarray:
  """Parse `0,1,2,3` or `[2,4]T(1,0)`."""
  iota = re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?$", text)
  if iota is None:
    return np.array(list(map(int, re.findall(r"\d+", text))))
  dims = tuple(map(int, iota[1].split(",")))
  order = np.arange(math.prod(dims)).reshape(dims)
  return (order.transpose(tuple(map(int, iota[2].split(",")))) if iota[2] else order).reshape(-1)


def _axes(groups: Sequence[Sequence[int]], mesh: Mapping[str, int], kind: str) -> str:
  """Return the mesh axes along which a group's members differ; "part of …" if the groups do not span these axes."""
  names, shape = list(mesh), tuple(mesh.values())
  if max((max(group) for group in groups if group), default=0) >= math.prod(shape):
    return ""
  along: set[int] = set()
  for group in groups:
    places = np.array(np.unravel_index(np.array(group), shape))
    along.update(np.flatnonzero((places != places[:, :1]).any(axis=1)).tolist())
  size = math.prod(shape[axis] for axis in along)
  if kind != "collective-permute" and any(len(group) != size for group in groups):
    return "part of " + "+".join(names[axis] for axis in sorted(along))
  return "+".join(names[axis] for axis in sorted(along))
