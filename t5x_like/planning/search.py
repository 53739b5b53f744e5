"""Search meshes, remat and batch sizes that fit a topology: rank candidates by a bound, then compile the best.

A candidate's bound is its batch's tokens over the least time of a step: the longer of its model FLOPs at the peak rate
(a third more under full remat) and the analytic minimum of its ring bytes at the links' rate. Candidates whose
parameters, optimizer state, gradients and kept activations alone exceed the memory are not compiled. The final ranking
uses the compiled programs: model FLOPs per second, by the estimated time of a step.
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
from t5x_like.training import compilation
from t5x_like.training.build import abstract_batch, build
from t5x_like.training.state import abstract_state

_SEARCHED = ("mesh", "batch_size", "model.remat")
_REMAT = ("none", "minimal", "full")
_ROWS = (1, 2, 4, 8, 16, 32)  # rows of a device, or of the devices that share a row
_TENSOR = (1, 2, 4, 8)


@dataclasses.dataclass
class Candidate:
  """Overrides of a recipe, with estimates before compilation.

  Attributes:
    bound: the most tokens per second and device.
    memory: the least bytes per device.
  """

  overrides: tuple[str, ...]
  bound: float
  memory: float


def candidates(request: dict[str, Any]) -> list[dict[str, Any]]:
  """Return all candidates that may fit, best bound first; needs the process of `hardware.devices` (see `compiling`)."""
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
  parts = build(base, devices[:1])
  named = params.named_params(parts.model)
  itemsize = np.dtype(config.model.get("dtype", "float32")).itemsize
  row = compilation.step_flops(parts.model, parts.objective, abstract_batch(base, parts.rules, task))  # of one row
  tokens = sum(math.prod(f.shape) for name, f in task.features.items() if name.endswith("_input_tokens"))
  kept = _kept(parts.model, task, itemsize)
  chip = topology.chip
  memory = chip.memory if chip else math.inf
  peak, link = (compilation.peak_flops(devices[0])[0], 2 * chip.link) if chip else (1e11, 1e10)
  for mesh in _meshes(config, topology.slices, len(devices)):
    try:
      rules = Rules.make(make_mesh(mesh, devices), config.rules.to_dict())
      state = abstract_state(parts.model, parts.optimizer, rules)
    except UserError:
      continue  # a parameter does not divide
    ways, shared = rules.split("batch"), len(devices) // rules.split("batch")
    sent = sum(minimum.ring_bytes(named, rules, itemsize, train=True).values())
    gradients = steps.shard_bytes(state.params) * itemsize / 4  # in the compute dtype
    held = steps.shard_bytes(state) + gradients
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
  """Yield every split of a slice's devices among data, fsdp, tensor and, for models with experts, expert."""
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
  """Return the least bytes that the backward pass keeps of each row, by remat.

  "full" keeps the residual stream of every layer. "minimal" adds named activations, about eight times as wide in all.
  "none" keeps everything in between, twice as much again.
  """
  residual = 0.0
  for name, feature in task.features.items():
    side = name.partition("_")[0]
    if name.endswith("_input_tokens"):
      residual += math.prod(feature.shape) * itemsize * _width(model, side)
  return {"full": residual, "minimal": 8 * residual, "none": 16 * residual, None: 16 * residual}


def _width(model, side: str) -> int:
  """Return the stack's layers times its embedding width, from the shapes of its parameters."""
  named = params.named_params(model)
  of = {name: p for name, p in named.items() if side in name} or named
  layers = max((p.shape[p.axes.index("layers")] for p in of.values() if "layers" in p.axes), default=1)
  return layers * max(p.shape[p.axes.index("embed")] for p in named.values() if "embed" in p.axes)


def search(request: Request, most: int, timeout_seconds: float, tell: Callable[[str], None]) -> list[dict[str, Any]]:
  """Return plans of the `most` best candidates, fastest first; candidates that do not fit come last.

  Args:
    tell: receives a line about each finished candidate.
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
  """Choose the best candidates, at most one per mesh and remat."""
  seen, chosen = set(), []
  for one in listed:
    key = tuple(word for word in one["overrides"] if not word.startswith("batch_size"))
    if key not in seen and len(chosen) < most:
      seen.add(key)
      chosen.append(one)
  return chosen


def rate(plan: dict[str, Any]) -> float:
  """Return a plan's model FLOPs per second, by the estimated time of a step; 0 if it does not fit."""
  if not plan["fits"]:
    return 0.0
  return plan["model_flops"] / plan["seconds"]["step"] if "seconds" in plan else 1 / plan["total_gigabytes"]
