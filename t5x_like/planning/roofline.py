"""Estimate the least time of a program at the full rate of matrix units or memory.

It complements the compiler's estimated cycles, which are two to three times as long for elementwise
operations: the true time is between the two. Each operation reads its operands and writes its
results once. Arrays that the compiler places in the core's own memory (`S(1)`) cost nothing, and a
slice costs its own size rather than its source's. Collectives are left out.
"""

import re
from collections.abc import Iterator

from t5x_like.planning import products
from t5x_like.planning.collectives import KINDS
from t5x_like.planning.hlo import Instruction, Program, elements, type_bytes

_ON_CHIP = re.compile(r"S\([1-9]\d*\)")  # a memory space other than the HBM
_FREE = (
  "parameter",
  "constant",
  "tuple",
  "get-tuple-element",
  "bitcast",
  "while",
  "conditional",
  "call",
  "after-all",
)
_SLICES = ("dynamic-slice", "slice", "gather")
_PASS_THROUGH = ("bitcast", "copy", "convert", "reshape")  # keep the values of their operand


def seconds(program: Program, peak: float, bandwidth: float, fast: str = "") -> float:
  """Return the least seconds: for each operation the longer of computing and moving bytes.

  Args:
    peak: FLOPs per second.
    bandwidth: bytes per second.
    fast: as in `products.flops`.
  """
  total = 0.0
  for instruction, executions, types, computation in program.iterate_executed():
    is_free = instruction.opcode in (*_FREE, *KINDS)
    is_asynchronous = instruction.opcode.endswith(("-start", "-done", "-update"))
    if is_free or is_asynchronous or not program.is_standalone(computation):
      continue
    flops = products.instruction_flops(program, instruction, types, fast)
    memory_bytes = bytes_moved(program, instruction, types)
    total += executions * max(flops / peak, memory_bytes / bandwidth)
  return total


def bytes_moved(program: Program, instruction: Instruction, types: dict[str, str]) -> float:
  """Return the bytes that an instruction reads from and writes to the HBM."""
  operands = [types.get(name, "") for name in instruction.operands]
  callee = dict(instruction.called_computations()).get("calls", "")
  body = program.computations.get(callee)
  if instruction.opcode == "fusion" and body is not None:
    return _bytes_moved_by_fusion(body, instruction, operands)
  if instruction.opcode in _SLICES:
    return 2 * _hbm_bytes(instruction.type)
  if instruction.opcode == "dynamic-update-slice":
    return 2 * _hbm_bytes(operands[1])
  return _hbm_bytes(instruction.type) + sum(_hbm_bytes(operand) for operand in operands)


def _bytes_moved_by_fusion(
  body: list[Instruction], instruction: Instruction, operands: list[str]
) -> float:
  """Return the bytes that a fused computation reads and writes.

  Args:
    body: its instructions.
    instruction: the fusion.
    operands: the types of the fusion's operands.
  """
  inner = {fused.name: fused for fused in body}
  total = 0.0
  for parameter in body:
    if parameter.opcode == "parameter":
      total += _bytes_read(body, parameter, operands[int(parameter.arguments)])
  for result, result_type in zip(_results(inner), elements(instruction.type)):
    total += _bytes_written(_written_type(inner, result), result_type)
  return total


def _results(inner: dict[str, Instruction]) -> list[Instruction]:
  """Return the instructions whose values a fused computation returns."""
  root = next(instruction for instruction in inner.values() if instruction.root)
  if root.opcode == "tuple":
    return [inner[name] for name in root.operands]
  return [root]


def _bytes_read(body: list[Instruction], parameter: Instruction, operand_type: str) -> float:
  """Return the bytes that a fused computation reads of a parameter, or of its slices."""
  # A tuple passes the parameter on without reading it.
  users = [user for user in _users(body, parameter.name) if user.opcode != "tuple"]
  if not users or _ON_CHIP.search(operand_type):
    return 0.0
  if all(user.opcode in _SLICES or _is_updated_operand(user, parameter.name) for user in users):
    return sum(type_bytes(user.type) for user in users if user.opcode in _SLICES)
  return type_bytes(operand_type)


def _users(body: list[Instruction], name: str) -> Iterator[Instruction]:
  """Yield the instructions that use a value, beyond bitcasts of it."""
  for instruction in body:
    if name in instruction.operands:
      if instruction.opcode == "bitcast":
        yield from _users(body, instruction.name)
      else:
        yield instruction


def _is_updated_operand(user: Instruction, name: str) -> bool:
  return user.opcode == "dynamic-update-slice" and user.operands[0] == name


def _written_type(inner: dict[str, Instruction], root: Instruction) -> str | None:
  """Return the type that the root of a result writes; None if it writes the whole result.

  It is the type of the update for an update in place, and "" for a parameter, which writes nothing.
  """
  if root.opcode == "parameter":
    return ""
  while root.opcode in _PASS_THROUGH and root.operands[0] in inner:
    root = inner[root.operands[0]]
  if root.opcode != "dynamic-update-slice":
    return None
  update = inner.get(root.operands[1])
  return None if update is None else update.type


def _bytes_written(written_type: str | None, result_type: str) -> float:
  """Return the bytes that a fusion writes to the HBM for a result; see `_written_type`."""
  if _ON_CHIP.search(result_type):
    return 0.0
  return type_bytes(result_type if written_type is None else written_type)


def _hbm_bytes(printed: str) -> float:
  """Return the bytes of the arrays of a type that are in the HBM."""
  total = 0
  for part in elements(printed):
    if not _ON_CHIP.search(part):
      total += type_bytes(part)
  return total
