"""Count the work of a compiled program that a change of the code can increase.

`docs/plans.json` has the counts of published models, and `tools/plans.py` refuses their growth.
"""

import re
from typing import Any

from t5x_like.planning import products, roofline
from t5x_like.planning.collectives import Collective
from t5x_like.planning.hlo import Instruction, Program, arrays, elements, type_bytes

# The count to which the bytes of an instruction are added.
_MOVES = {"copy": "copied", "copy-start": "copied", "transpose": "transposed"}
_PRODUCTS = ("dot", "convolution")
# Instructions whose results are arrays of other instructions.
_NO_ARRAYS = ("parameter", "get-tuple-element", "tuple", "while", "bitcast")
_TRACED_NAME = re.compile(r'op_name="([^"]*)"')
_NAME_PREFIXES = re.compile(r"jit\(step\)/|(while/body/)?closed_call/")
_TOLERANCE = 1.01  # versions of the compiler differ by less


def counts(program: Program, rows: list[Collective]) -> dict[str, float]:
  """Count the work of one device in one step.

  Args:
    rows: the program's collectives.
  Returns:
    FLOPs of all products and kernels (`flops`) and of products with a float32 factor
    (`float32_flops`); GB read and written (`moved`), and of these by copies (`copied`) and
    transpositions (`transposed`) outside of fusions; GB of the collectives that a device waits for
    (`waited`); GB of the largest array that is no argument (`largest`).
  """
  totals = dict.fromkeys(("float32_flops", "copied", "transposed", "largest"), 0.0)
  for instruction, executions, types, computation in program.iterate_executed():
    if instruction.opcode in _PRODUCTS and _has_float32_factor(instruction, types):
      product_flops = products.instruction_flops(program, instruction, types)
      totals["float32_flops"] += executions * product_flops
    if not program.is_standalone(computation):
      continue
    result_bytes = [type_bytes(part) for part in elements(instruction.type)]
    if instruction.opcode in _MOVES:
      totals[_MOVES[instruction.opcode]] += 2 * executions * result_bytes[0]
    if instruction.opcode not in _NO_ARRAYS:
      totals["largest"] = max(totals["largest"], *result_bytes)
  kernel_flops, _ = products.kernels(program)
  totals["flops"] = products.flops(program) + kernel_flops
  totals["moved"] = roofline.seconds(program, peak=float("inf"), bandwidth=1.0)
  totals["waited"] = sum(row.ring_bytes for row in rows if not row.asynchronous)
  rounded = {}
  for name, value in sorted(totals.items()):
    rounded[name] = float(f"{value / 1e9:.4g}")
  return rounded


def _has_float32_factor(instruction: Instruction, types: dict[str, str]) -> bool:
  for name in instruction.operands[:2]:
    if name in types:
      dtype, _ = arrays(types[name])[0]
      if dtype == "f32":
        return True
  return False


def describe_growth(before: dict[str, float], after: dict[str, float]) -> list[str]:
  """Describe the counts that have grown by more than a hundredth and a megabyte (or 10^6 FLOPs)."""
  lines = []
  for name, old in before.items():
    new = after.get(name, old)
    if new > max(old * _TOLERANCE, old + 1e-3):
      lines.append(f"{name} {old:,} -> {new:,}")
  return lines


def slowest_operations(program: Program, clock: float, limit: int = 10) -> list[dict[str, Any]]:
  """Return the operations with the most cycles, by the compiler's estimate.

  Each has its seconds in a step, executions, traced name, and the type of its first result.

  Args:
    clock: cycles per second.
  """
  operations = []
  for instruction, executions, _, computation in program.iterate_executed():
    cycles = products.own_cycles(instruction)
    if not cycles or not program.is_standalone(computation):
      continue
    traced_name = _TRACED_NAME.search(instruction.attributes)
    first_type = elements(instruction.type)[0]
    operation = {
      "seconds": executions * cycles / clock,
      "times": executions,
      "name": _NAME_PREFIXES.sub("", traced_name[1]) if traced_name else instruction.name,
      "type": re.sub(r"\{[^{}]*\}", "", first_type),
    }
    operations.append(operation)
  operations.sort(key=lambda operation: -operation["seconds"])
  return operations[:limit]
