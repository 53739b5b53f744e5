"""Counts of a compiled program that a change of the code can make worse, and its dearest operations.

`docs/plans.json` holds those of published models, and `tools/plans.py` refuses to let them grow.
"""

import re
from typing import Any

from t5x_like.planning import products, roofline
from t5x_like.planning.collectives import Collective
from t5x_like.planning.hlo import Program, arrays, elements, type_bytes

_MOVES = {"copy": "copied", "copy-start": "copied", "transpose": "transposed"}
_PRODUCTS = ("dot", "convolution")
_NAMED = re.compile(r'op_name="([^"]*)"')
_FRAME = re.compile(r"jit\(step\)/|(while/body/)?closed_call/")
_TOLERANCE = 1.01  # versions of the compiler differ by less


def counts(program: Program, rows: list[Collective]) -> dict[str, float]:
  """Count the work of one device in one step.

  Args:
    rows: the program's collectives.
  Returns:
    FLOPs of all products and kernels (`flops`) and of products with a float32 factor (`float32_flops`); GB read and
    written (`moved`), and of these by copies (`copied`) and transpositions (`transposed`) outside of fusions; GB of
    the collectives that a device waits for (`waited`); GB of the largest array beside the arguments (`largest`).
  """
  found = dict.fromkeys(("float32_flops", "copied", "transposed", "largest"), 0.0)
  for instruction, times, shapes, computation in program.executed():
    alone = program.alone(computation)
    if instruction.opcode in _PRODUCTS:
      factors = [arrays(shapes[name])[0][0] for name in instruction.operands[:2] if name in shapes]
      if "f32" in factors:
        found["float32_flops"] += times * products.instruction_flops(program, instruction, shapes)
    if alone and instruction.opcode in _MOVES:
      moved = type_bytes(elements(instruction.type)[0])
      found[_MOVES[instruction.opcode]] += 2 * times * moved
    if alone and instruction.opcode not in ("parameter", "get-tuple-element", "tuple", "while", "bitcast"):
      found["largest"] = max(found["largest"], *map(type_bytes, elements(instruction.type)))
  kernels, _ = products.kernels(program)
  found |= {
    "flops": products.flops(program) + kernels,
    "moved": roofline.seconds(program, peak=float("inf"), bandwidth=1.0),
    "waited": sum(row.ring_bytes for row in rows if not row.asynchronous),
  }
  return {name: float(f"{value / 1e9:.4g}") for name, value in sorted(found.items())}


def grown(before: dict[str, float], after: dict[str, float]) -> list[str]:
  """Describe the counts that have grown by more than a hundredth and a megabyte (or 10^6 FLOPs)."""
  pairs = [(name, value, after[name]) for name, value in before.items() if name in after]
  return [f"{name} {old:,} -> {new:,}" for name, old, new in pairs if new > max(old * _TOLERANCE, old + 1e-3)]


def dearest(program: Program, clock: float, most: int = 10) -> list[dict[str, Any]]:
  """Return the operations with the most of the compiler's cycles: seconds a step, executions, traced name, type of the
  first result.

  Args:
    clock: cycles per second.
  """
  listed = []
  for instruction, times, _, computation in program.executed():
    if program.alone(computation) and (cycles := products.own_cycles(instruction)):
      traced = _NAMED.search(instruction.rest)
      name = _FRAME.sub("", traced[1]) if traced else instruction.name
      printed = re.sub(r"\{[^{}]*\}", "", elements(instruction.type)[0])
      listed.append({"seconds": times * cycles / clock, "times": times, "name": name, "type": printed})
  return sorted(listed, key=lambda one: -one["seconds"])[:most]
