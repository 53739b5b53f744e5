"""Meshes, remat and batch sizes that fit a topology, best first: candidates are ranked by a bound, then compiled.

A candidate's bound on the time of a step is the longer of its model FLOPs at the peak rate (a third more under full
remat) and the analytic minimum of its ring bytes at the links' rate, over the tokens of its batch. Candidates whose
parameters, optimizer state, gradients and kept activations alone are more than the memory are not compiled. What is
ranked in the end is what the compiler made of them: tokens a second, by the estimated time of a step.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from t5x_like import recipes
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.planning import hardware, minimum, steps
from t5x_like.planning.child import Request
from t5x_like.planning.child import plan as planned
from t5x_like.training import assembly, flops
from t5x_like.training.state import abstract_state

_SEARCHED = ("mesh", "batch_size", "model.remat")
_REMAT = ("none", "minimal", "full")
_ROWS = (1, 2, 4, 8, 16, 32)  # of a device, or of the devices that share a row
_TENSOR = (1, 2, 4, 8)


@dataclasses.dataclass
class Candidate:
  """Overrides of a recipe, with what is known before it is compiled.

  Attributes:
    bound: tokens a second and device, at most.
    memory: bytes of a device, at least.
  """

  overrides: tuple[str, ...]
  bound: float
  memory: float


def candidates(request: dict[str, Any]) -> list[dict[str, Any]]:
  """All that may fit, best bound first; runs where `hardware.devices` does (see `compiling`)."""
  topology = hardware.parse(request["topology"], request["slices"])
  devices = hardware.devices(topology)
  config = recipes.load(request["config"], request["overrides"])
  config, task = steps.resolve(config, topology.platform, request["phase"])
  found = [dataclasses.asdict(one) for one in _made(config, task, topology, devices)]
  if not found:
    raise UserError(f"--search: nothing fits {topology.name}; its {len(devices)} devices have too little memory in all")
  return sorted(found, key=lambda one: -one["bound"])


def _made(config: ConfigDict, task, topology: hardware.Topology, devices: list) -> Iterator[Candidate]:
  base = ConfigDict(config.to_dict())
  base.mesh, base.batch_size, base.accumulation_steps = {"data": 1}, 1, 1
  parts = assembly.build(base, devices[:1])
  named = params.named_params(parts.model)
  itemsize = np.dtype(config.model.get("dtype", "float32")).itemsize
  row = flops.step_flops(parts.model, parts.objective, assembly.abstract_batch(base, parts, task))  # of one row
  tokens = sum(math.prod(f.shape) for name, f in task.features.items() if name.endswith("_input_tokens"))
  kept = _kept(parts.model, task, itemsize)
  chip = topology.chip
  memory = chip.memory if chip else math.inf
  peak, link = (flops.peak_flops(devices[0])[0], 2 * chip.link) if chip else (1e11, 1e10)
  for mesh in _meshes(config, topology.slices, len(devices)):
    try:
      rules = Rules.make(make_mesh(mesh, devices), config.rules.to_dict())
      state = abstract_state(parts.model, parts.optimizer, rules)
    except UserError:
      continue  # a parameter does not divide
    ways, shared = rules.split("batch"), len(devices) // rules.split("batch")
    sent = sum(minimum.ring_bytes(named, rules, itemsize, train=True).values())
    held = steps.shard_bytes(state) + steps.shard_bytes(state.params) * itemsize / 4
    for rows, remat in itertools.product(_ROWS, _REMAT if "remat" in config.model else (None,)):
      activations = rows * kept[remat] / shared
      if held + activations > memory:
        continue
      computing = rows * row / shared * (4 / 3 if remat == "full" else 1) / peak
      bound = rows * tokens / shared / max(computing, sent / link)
      overrides = [f"mesh={json.dumps(mesh, separators=(',', ':'))}", f"batch_size={rows * ways}"]
      table = hasattr(config.model.get("remat"), "keys")
      overrides += [f"model.remat={json.dumps({'name': remat}) if table else remat}"] if remat else []
      yield Candidate(tuple(overrides), bound, held + activations)


def _meshes(config: ConfigDict, slices: int, devices: int) -> Iterator[dict[str, int]]:
  """Every way to share the devices of a slice among data, fsdp, tensor and, with experts, expert."""
  inside = devices // slices
  experts = config.model.get("design", {}).get("experts") or config.mesh.get("expert", 1) > 1
  for tensor, expert in itertools.product(_TENSOR, (1, 2, 4, 8) if experts else (1,)):
    left, uneven = divmod(inside, tensor * expert)
    if uneven:
      continue
    for fsdp in (n for n in range(1, left + 1) if left % n == 0):
      sizes = {"replica": slices, "data": left // fsdp, "fsdp": fsdp, "tensor": tensor, "expert": expert}
      yield {axis: size for axis, size in sizes.items() if size > 1}


def _kept(model, task, itemsize: int) -> dict[str | None, float]:
  """Bytes that the backward pass needs of each row, by remat, at least: the residual stream of every layer; its named
  activations besides, some eight times as wide; and twice that with all that lies between."""
  residual = 0.0
  for name, feature in task.features.items():
    side = name.partition("_")[0]
    if name.endswith("_input_tokens"):
      residual += math.prod(feature.shape) * itemsize * _width(model, side)
  return {"full": residual, "minimal": 8 * residual, "none": 16 * residual, None: 16 * residual}


def _width(model, side: str) -> int:
  """Layers times embedding width of the stacks, from the shapes of their parameters."""
  named = params.named_params(model)
  of = {name: p for name, p in named.items() if side in name} or named
  layers = max((p.shape[p.axes.index("layers")] for p in of.values() if "layers" in p.axes), default=1)
  return layers * max(p.shape[p.axes.index("embed")] for p in named.values() if "embed" in p.axes)


def search(request: Request, most: int, timeout_seconds: float, tell: Callable[[str], None]) -> list[dict[str, Any]]:
  """Plans of the `most` best candidates, fastest first; those that do not fit are last.

  Args:
    tell: is given a line on each candidate as it is done.
  """
  listed = planned(dataclasses.replace(request, search=True), timeout_seconds)
  if "candidates" not in listed:
    raise UserError(f"--search: {listed['verdict']}")
  kept = [one for one in request.overrides if not one.startswith((*_SEARCHED, "accumulation_steps"))]
  chosen, plans = _diverse(listed["candidates"], most), []
  for number, one in enumerate(chosen, 1):
    overrides = (*kept, *one["overrides"], "accumulation_steps=1")
    found = planned(dataclasses.replace(request, overrides=overrides), timeout_seconds)
    plans.append(found | {"candidate": one["overrides"]})
    tell(f"{number} of {len(chosen)}: {' '.join(one['overrides'])}: {found['verdict']}")
  return sorted(plans, key=rate, reverse=True)


def _diverse(listed: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
  """The best candidates, of each mesh and remat the one with the most rows that may fit."""
  seen, chosen = set(), []
  for one in listed:
    key = tuple(word for word in one["overrides"] if not word.startswith("batch_size"))
    if key not in seen and len(chosen) < most:
      seen.add(key)
      chosen.append(one)
  return chosen


def rate(plan: dict[str, Any]) -> float:
  """Model FLOPs a second, by the estimated time of a step; 0 for what does not fit."""
  if not plan["fits"]:
    return 0.0
  return plan["model_flops"] / plan["seconds"]["step"] if "seconds" in plan else 1 / plan["total_gigabytes"]
