"""Compute the minimum bytes that a device must send in a step, to compare a program with.

On the mesh, a parameter of P elements is split f ways over axes that also split the batch (FSDP)
and t ways over other axes (tensor, expert, stage), and its gradient is a sum over f * d parts of
the batch. With b bytes per element of the compute dtype, one device must send at least

  gathers      2 * b * P / t * (f - 1) / f          for both passes of each part of the batch
  reductions       b * P / t * (f - 1) / f          a reduce-scatter of the gradient over f
               2 * b * P / (t * f) * (d - 1) / d    and an all-reduce of the result over d

These are ring bytes (`planning/collectives.py`) of 16-bit gathers and gradients where the compute
dtype is bfloat16. Evaluation and decoding gather once and reduce nothing, and so do a teacher and a
reference, which have no backward pass. A token table whose vectors are exchanged (`nn/embed.py`) is
counted as if it were gathered, and a kernel of 8-bit products as if it had the compute dtype, so a
program may send less. The cost of activations under tensor, sequence, expert or pipeline
parallelism is left out: it depends on the kept and the recomputed activations.
"""

import math
from collections.abc import Collection, Iterator, Mapping

from t5x_like.parallel.rules import Rules
from t5x_like.training.state import REFERENCE

_BATCH = ("batch", "length")  # the logical axes over which devices have different tokens


def ring_bytes(
  named: Mapping,
  rules: Rules,
  itemsize: int,
  train: bool,
  parts: int = 1,
  trained: Collection[str] | None = None,
) -> dict[str, float]:
  """Return {"gathers": …, "reductions": …} in bytes per device and step.

  Args:
    named: parameters by name, with `.shape` and `.axes`.
    itemsize: bytes of the compute dtype.
    train: whether the step trains; otherwise it is a forward pass.
    parts: accumulation steps; parameters are gathered for each, gradients reduced once.
    trained: names of the parameters that have gradients; None for all.
  """
  gathers = 0.0
  reductions = 0.0
  for name, (gathered_bytes, f, d) in zip(named, _parameters(named, rules, itemsize)):
    gather = gathered_bytes * (f - 1) / f
    if not train:
      gathers += gather
      continue
    passes = 1 if name.startswith(REFERENCE) else 2
    gathers += parts * passes * gather
    if trained is None or name in trained:
      reductions += gather + 2 * gathered_bytes / f * (d - 1) / d
  return {"gathers": gathers, "reductions": reductions}


def weight_bytes(named: Mapping, rules: Rules, itemsize: int) -> float:
  """Return the bytes of parameters that a device reads for each decoded token."""
  return sum(gathered_bytes for gathered_bytes, _, _ in _parameters(named, rules, itemsize))


def _parameters(named: Mapping, rules: Rules, itemsize: int) -> Iterator[tuple[float, int, int]]:
  """Yield (bytes gathered, devices gathered from, devices with the same shard) of parameters."""
  token_axes: set[str] = set()  # the mesh axes that split the batch
  for name in _BATCH:
    token_axes.update(rules.axes(name))
  for parameter in named.values():
    split: dict[str, str] = {}
    for logical, part in zip(parameter.axes, rules.spec(parameter.axes)):
      mesh_axes = (part,) if isinstance(part, str) else part or ()
      for axis in mesh_axes:
        split[axis] = logical
    # Tokens are sent to the devices of their experts, whose parameters are not gathered.
    expert_axes = {axis for axis, logical in split.items() if logical == "expert"}
    gathered = token_axes & set(split) - expert_axes
    f = math.prod(rules.mesh.shape[axis] for axis in gathered)
    t = math.prod(rules.mesh.shape[axis] for axis in set(split) - gathered)
    d = math.prod(rules.mesh.shape[axis] for axis in token_axes - set(split))
    yield itemsize * math.prod(parameter.shape) / t, f, d
