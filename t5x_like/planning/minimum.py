"""The least that a device must send in a step, to compare the compiler's program with.

Every parameter of P elements is, on the mesh, split f ways over axes that also split the batch (FSDP), t ways over
others (tensor, expert, stage), and its gradient is a sum over f * d parts of the batch. With b bytes an element of the
compute dtype, one device must at least send

  gathers      2 * b * P / t * (f - 1) / f          for the forward and the backward pass of each part of the batch
  reductions       b * P / t * (f - 1) / f          a reduce-scatter of the gradient over f
               2 * b * P / (t * f) * (d - 1) / d    and an all-reduce of what is left over d

These are ring bytes (`planning/collectives.py`) of 16-bit gathers and gradients where the compute dtype is bfloat16.
Evaluation and decoding gather once and reduce nothing. A token table whose vectors are exchanged (`nn/embed.py`) is
counted as if it were gathered: a program may send less. What activations cost under tensor, sequence, expert or
pipeline parallelism is not in it: it depends on what is kept and what computed again.
"""

import math
from collections.abc import Mapping

from t5x_like.parallel.rules import Rules

_BATCH = ("batch", "length")  # the logical axes over which each device has other tokens


def ring_bytes(named: Mapping, rules: Rules, itemsize: int, train: bool, parts: int = 1) -> dict[str, float]:
  """{"gathers": …, "reductions": …} in bytes per device and step.

  Args:
    named: parameters by name, with `.shape` and `.axes`.
    itemsize: bytes of the compute dtype.
    train: or a forward pass only.
    parts: into which the batch is divided (accumulation); parameters are gathered for each, gradients reduced once.
  """
  tokens = {axis for name in _BATCH for axis in rules.table[name] if rules.mesh.shape[axis] > 1}
  gathers = reductions = 0.0
  for parameter in named.values():
    split: dict[str, str] = {}
    for logical, part in zip(parameter.axes, rules.spec(parameter.axes)):
      for axis in (part,) if isinstance(part, str) else part or ():
        split[axis] = logical
    routed = {axis for axis, logical in split.items() if logical == "expert"}  # tokens come to the parameter
    gathered = {axis for axis in split if axis in tokens - routed}
    f = math.prod(rules.mesh.shape[axis] for axis in gathered)
    t = math.prod(rules.mesh.shape[axis] for axis in set(split) - gathered)
    d = math.prod(rules.mesh.shape[axis] for axis in tokens - set(split))
    whole = itemsize * math.prod(parameter.shape) / t
    gathers += (2 * parts if train else 1) * whole * (f - 1) / f
    reductions += whole * ((f - 1) / f + 2 / f * (d - 1) / d) if train else 0.0
  return {"gathers": gathers, "reductions": reductions}
