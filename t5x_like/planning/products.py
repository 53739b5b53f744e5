"""The FLOPs of a compiled program: its matrix products and convolutions, loops multiplied.

Unlike model FLOPs, they include recomputation, padding and the masked half of attention. Kernels
are counted apart, because the compiler's cycles for them are missing or wrong: Pallas kernels
(custom calls) with the FLOPs that they declare or that their scope states (`nn/cores/splash.py`),
ragged products (mixtures of experts) with one product a row.
"""

import math
import re

import numpy as np

from t5x_like.nn.cores.splash import FLOPS_SCOPE_PREFIX
from t5x_like.planning.hlo import Instruction, Program, arrays

_RAGGED = "ragged_dot_general"
_RAGGED_CALL = '"is_ragged_dot":true'
_KERNEL = 'custom_call_target="tpu_custom_call"'
_UNKNOWN_CYCLES = 2**62  # estimates from here on are not numbers of cycles
# Matrix products of an attention kernel, relative to the two of its forward pass.
_PASSES = {"fwd": 1.0, "dq": 1.5, "dkv": 2.0}


def flops(program: Program, fast: str = "") -> float:
  """Return the FLOPs of all executions without kernels.

  A multiplication with an addition counts as two.

  Args:
    fast: the start of dtypes, such as "s8", whose products take half the time and count half; empty
      for none.
  """
  total = 0.0
  for instruction, executions, types, _ in program.iterate_executed():
    total += executions * _flops(instruction, types, fast)
  return total


def instruction_flops(
  program: Program, instruction: Instruction, types: dict[str, str], fast: str = ""
) -> float:
  """Return the FLOPs of one execution of an instruction and the computation that it fuses.

  `fast` is as in `flops`.
  """
  total = _flops(instruction, types, fast)
  for kind, name in instruction.called_computations():
    if kind == "calls" and name in program.fused:
      callee_types = program.types(name)
      for callee in program.computations.get(name, []):
        total += instruction_flops(program, callee, callee_types, fast)
  return total


def _flops(instruction: Instruction, types: dict[str, str], fast: str) -> float:
  """Return the FLOPs of one execution of a product; 0 for other instructions."""
  if instruction.opcode not in ("dot", "convolution") or _RAGGED in instruction.attributes:
    return 0.0
  count = _dot if instruction.opcode == "dot" else _convolution
  total = count(instruction, types)
  if not fast:
    return total
  for name in instruction.operands[:2]:
    dtype, _ = arrays(types[name])[0]
    if not dtype.startswith(fast):
      return total
  return total / 2


def kernels(program: Program) -> tuple[float, int]:
  """Return (FLOPs of all executions of kernels, executions with unknown FLOPs)."""
  total = 0.0
  unknown = 0
  for instruction, executions, types, _ in program.iterate_executed():
    if instruction.opcode == "custom-call" and _KERNEL in instruction.attributes:
      kernel_flops = _kernel(instruction)
      if kernel_flops is None:
        unknown += executions
      else:
        total += executions * kernel_flops
    elif instruction.opcode == "convolution" and _RAGGED in instruction.attributes:
      # Printed as the product of every row with every group's matrix, one step of the window for
      # each group.
      groups = math.prod(_window(instruction.attributes)["size"])
      total += executions * _convolution(instruction, types) / groups
  return total, unknown


def _kernel(instruction: Instruction) -> float | None:
  """Return the FLOPs of a Pallas kernel, by its declaration or its scope; None if unknown."""
  declared_flops = re.search(r'"flops":\s*"?(\d+)', instruction.attributes)
  if declared_flops:
    return float(declared_flops[1])
  scope_pattern = FLOPS_SCOPE_PREFIX + r"(?P<forward>\d+).*?_mha_(?P<pass>fwd|dq|dkv)"
  scope = re.search(scope_pattern, instruction.attributes)
  if scope is None:
    return None
  return float(scope["forward"]) * _PASSES[scope["pass"]]


def cycles(program: Program) -> float:
  """Return the TPU compiler's estimated cycles, without kernels and collectives."""
  total = 0.0
  for instruction, executions, _, computation in program.iterate_executed():
    if computation not in program.fused and _RAGGED_CALL not in instruction.attributes:
      total += executions * (own_cycles(instruction) or 0)
  return total


def own_cycles(instruction: Instruction) -> int | None:
  """Return the compiler's estimate for one execution without its calls; None if there is none.

  For some copies in asynchronous computations, the compiler writes 2^63 - 1.
  """
  estimate = re.search(r'"estimated_cycles":"(\d+)"', instruction.attributes)
  if estimate is None or instruction.opcode in ("while", "conditional", "call"):
    return None
  cycles = int(estimate[1])
  return None if cycles >= _UNKNOWN_CYCLES else cycles


def _shape(printed: str) -> tuple[int, ...]:
  _, shape = arrays(printed)[0]
  return shape


def _dot(instruction: Instruction, types: dict[str, str]) -> float:
  """Return the FLOPs of a matrix product."""
  lhs_shape = _shape(types[instruction.operands[0]])
  contracting_dims = instruction.attribute("lhs_contracting_dims") or "{}"
  contracted_size = 1
  for dim in re.findall(r"\d+", contracting_dims):
    contracted_size *= lhs_shape[int(dim)]
  return 2.0 * math.prod(_shape(instruction.type)) * contracted_size


def _convolution(instruction: Instruction, types: dict[str, str]) -> float:
  """Return the FLOPs of a convolution, without products of padding or of a dilation's gaps."""
  lhs, rhs, *_ = instruction.operands
  labels = instruction.attribute("dim_labels") or ""
  lhs_labels, rhs_labels, out_labels = re.split("_|->", labels)
  lhs_sizes = dict(zip(lhs_labels, _shape(types[lhs])))
  rhs_sizes = dict(zip(rhs_labels, _shape(types[rhs])))
  out_sizes = dict(zip(out_labels, _shape(instruction.type)))
  window = _window(instruction.attributes)
  spatial = [label for label in out_labels if label.isdigit()]
  pairs = 1.0
  for number, label in enumerate(sorted(spatial, key=int)):
    axis_window = {key: values[number] for key, values in window.items() if number < len(values)}
    pairs *= _pairs(lhs_sizes[label], rhs_sizes[label], out_sizes[label], axis_window)
  return 2.0 * pairs * out_sizes["b"] * out_sizes["f"] * rhs_sizes["i"]


def _window(text: str) -> dict[str, list]:
  """Parse `window={size=3x3 pad=1_1x1_1}` to {"size": [3, 3], "pad": [(1, 1), (1, 1)]}."""
  attribute = re.search(r"window=\{([^}]*)\}", text)
  if attribute is None:
    return {}
  parsed = {}
  for key, value in re.findall(r"(\w+)=(\S+)", attribute[1]):
    parsed[key] = [_window_number(part) for part in value.split("x")]
  return parsed


def _window_number(text: str) -> int | tuple[int, ...]:
  if "_" in text:
    return tuple(int(part) for part in text.split("_"))
  return int(text)


def _pairs(size: int, kernel: int, out: int, window: dict) -> int:
  """Return the number of (output, kernel) positions that read an element of the input on an axis.

  Args:
    size, kernel, out: the lengths of input, kernel and output.
    window: the axis' values of `_window`.
  """
  if window.keys() <= {"size"} and kernel == 1:
    return out
  low = window["pad"][0] if "pad" in window else 0
  stride = window.get("stride", 1)
  base_dilation = window.get("lhs_dilate", 1)
  kernel_dilation = window.get("rhs_dilate", 1)
  last_position = (size - 1) * base_dilation
  total = 0
  for kernel_position in range(kernel):
    positions = np.arange(out) * stride + kernel_position * kernel_dilation - low
    is_inside = (positions >= 0) & (positions <= last_position)
    is_element = positions % base_dilation == 0
    total += int((is_inside & is_element).sum())
  return total
