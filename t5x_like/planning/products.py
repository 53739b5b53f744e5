"""The FLOPs of a compiled program: its matrix products and convolutions, loops multiplied.

Unlike model FLOPs, they include recomputation, padding and the masked half of attention. Kernels (custom calls) count
with the FLOPs they declare, which are often none.
"""

import math
import re

import numpy as np

from t5x_like.planning.hlo import Instruction, Program, arrays

_KERNEL = 'custom_call_target="tpu_custom_call"'


def flops(program: Program) -> float:
  """Return the FLOPs of all executions; a multiplication with an addition counts as two."""
  total = 0.0
  for computation, instructions in program.computations.items():
    times = program.executions.get(computation, 0)
    shapes = program.shapes(computation) if times else {}
    for instruction in instructions if times else ():
      if instruction.opcode == "dot":
        total += times * _dot(instruction, shapes)
      elif instruction.opcode == "convolution":
        total += times * _convolution(instruction, shapes)
      elif instruction.opcode == "custom-call":
        declared = re.search(r'"flops":\s*"?(\d+)', instruction.rest)
        total += times * float(declared[1]) if declared else 0.0
  return total


def kernels(program: Program) -> int:
  """Return the number of executions of kernels that declare no FLOPs, such as Pallas kernels."""
  return sum(
    program.executions.get(computation, 0)
    for computation, instructions in program.computations.items()
    for instruction in instructions
    if _KERNEL in instruction.rest and '"flops"' not in instruction.rest
  )


def cycles(program: Program) -> float:
  """Return the TPU compiler's estimated cycles of all fusions and copies; it has none for kernels and collectives."""
  total = 0.0
  for computation, instructions in program.computations.items():
    times = 0 if computation in program.fused else program.executions.get(computation, 0)
    for instruction in instructions if times else ():
      found = re.search(r'"estimated_cycles":"(\d+)"', instruction.rest)
      if found and instruction.opcode not in ("while", "conditional", "call"):
        total += times * int(found[1])
  return total


def _shape(printed: str) -> tuple[int, ...]:
  return arrays(printed)[0][1]


def _dot(instruction: Instruction, shapes: dict[str, str]) -> float:
  left = _shape(shapes[instruction.operands[0]])
  contracted = instruction.attribute("lhs_contracting_dims") or "{}"
  size = math.prod(left[int(axis)] for axis in re.findall(r"\d+", contracted))
  return 2.0 * math.prod(_shape(instruction.type)) * size


def _convolution(instruction: Instruction, shapes: dict[str, str]) -> float:
  """Count only products of real elements, neither padding nor the gaps of a dilation."""
  left, right = (_shape(shapes[name]) for name in instruction.operands[:2])
  out = _shape(instruction.type)
  lhs, rest = (instruction.attribute("dim_labels") or "").split("_")
  rhs, result = rest.split("->")
  window = _window(instruction.rest)
  spatial = [letter for letter in result if letter.isdigit()]
  pairs = 1.0
  for number, letter in enumerate(sorted(spatial, key=int)):
    one = {key: values[number] for key, values in window.items() if number < len(values)}
    pairs *= _pairs(left[lhs.index(letter)], right[rhs.index(letter)], out[result.index(letter)], one)
  return 2.0 * pairs * out[result.index("b")] * out[result.index("f")] * right[rhs.index("i")]


def _window(text: str) -> dict[str, list]:
  found = re.search(r"window=\{([^}]*)\}", text)
  parsed = {}
  for key, value in re.findall(r"(\w+)=(\S+)", found[1] if found else ""):
    parsed[key] = [tuple(map(int, part.split("_"))) if "_" in part else int(part) for part in value.split("x")]
  return parsed


def _pairs(size: int, kernel: int, out: int, window: dict) -> int:
  """Count the (output, kernel) positions that meet an element of the input, along one axis."""
  if window.keys() <= {"size"} and kernel == 1:
    return out
  low = window["pad"][0] if "pad" in window else 0
  stride, base, dilation = (window.get(key, 1) for key in ("stride", "lhs_dilate", "rhs_dilate"))
  reach = (size - 1) * base
  total = 0
  for k in range(kernel):
    place = np.arange(out) * stride + k * dilation - low
    total += int(((place >= 0) & (place <= reach) & (place % base == 0)).sum())
  return total
