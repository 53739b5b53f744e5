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
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from t5x_like import recipes
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.stack import Pipeline
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
_BESIDE = {"expert": (2, 4, 8), "sequence": (2, 4), "stage": (2, 4)}  # the axes that a mesh may have beside `tensor`


@dataclasses.dataclass
class Candidate:
  """Overrides of a recipe, with estimates before compilation.

  Attributes:
    bound: the most tokens, or images, per second and device.
    memory: the least bytes per device.
    rows: of a device, or of the devices that share a row.
  """

  overrides: tuple[str, ...]
  bound: float
  memory: float
  rows: int


def candidates(request: dict[str, Any]) -> list[dict[str, Any]]:
  """Return all candidates that may fit, best bound first, and of bounds that differ by less than the estimate's error
  meshes without `sequence` and `stage`, then the most rows; needs the process of `hardware.devices` (`compiling`)."""
  topology = hardware.parse(request["topology"], request["slices"])
  devices = hardware.devices(topology)
  config = recipes.load(request["config"], request["overrides"])
  config, task = steps.resolve(config, topology.platform, request["phase"])
  found = [dataclasses.asdict(one) for one in _made(config, task, topology, devices)]
  if not found:
    raise UserError(f"--search: nothing fits {topology.name}; its {len(devices)} devices have too little memory in all")
  return sorted(found, key=lambda one: (-float(f"{one['bound']:.2g}"), _sends(one), -one["rows"], -one["bound"]))


def _sends(candidate: dict[str, Any]) -> bool:
  """Return whether a mesh sends activations of all layers over axes that the bound counts as free."""
  return any(axis in candidate["overrides"][0] for axis in ("sequence", "stage"))


def _made(config: ConfigDict, task, topology: hardware.Topology, devices: list) -> Iterator[Candidate]:
  base = ConfigDict(config.to_dict())
  base.mesh, base.batch_size, base.accumulation_steps = {"data": 1}, 1, 1
  parts = build(base, devices[:1])
  named = params.named_params(parts.model)
  itemsize = np.dtype(config.model.get("dtype", "float32")).itemsize
  batch = abstract_batch(base, parts.rules, task)  # of one row
  row = compilation.step_flops(parts.model, parts.objective, batch, parts.trained)
  tokens = compilation.positions(batch)["positions"]
  kept = _kept(base, task, devices[:1])
  chip = topology.chip
  memory = chip.memory if chip else math.inf
  peak, link = (
    (compilation.peak_flops(devices[0])[0], chip.link * hardware.links(devices, topology)) if chip else (1e11, 1e10)
  )
  lengths = [x.shape[1] for x in (batch[name] for name in parts.model.NEEDS) if x.ndim == 2]
  for mesh in _meshes(_axes(config, named, lengths), topology.slices, len(devices)):
    try:
      rules = Rules.make(make_mesh(mesh, devices), config.rules.to_dict())
      state = abstract_state(parts.model, parts.optimizer, rules)
    except UserError:
      continue  # a parameter does not divide
    ways, shared = rules.ways("batch"), len(devices) // rules.ways("batch")
    sent = sum(minimum.ring_bytes(named, rules, itemsize, train=True, trained=parts.trained).values())
    gradients = steps.shard_bytes(state.params) * itemsize / 4  # in the compute dtype
    held = steps.shard_bytes(state.params if config.optimizer.get("offload") else state) + gradients
    for rows, remat in itertools.product(_ROWS, _REMAT if "remat" in config.model else (None,)):
      activations = rows * kept[remat] / shared
      if held + activations > memory:
        continue
      computing = rows * row / shared * (4 / 3 if remat == "full" else 1) / peak * _idling(mesh, rows)
      bound = rows * tokens / shared / max(computing, sent / link)
      overrides = [f"mesh={json.dumps(mesh, separators=(',', ':'))}", f"batch_size={rows * ways}"]
      table = hasattr(config.model.get("remat"), "keys")
      overrides += [f"model.remat={json.dumps({'name': remat}) if table else remat}"] if remat else []
      yield Candidate(tuple(overrides), bound, held + activations, rows)


def _axes(config: ConfigDict, named: Mapping, lengths: list[int]) -> dict[str, list[int]]:
  """Return the sizes of the mesh axes beside `tensor` that a model and its rows can use.

  Args:
    named: its parameters.
    lengths: of the rows of tokens that it reads; none for images.
  """
  depths = [p.shape[0] for p in named.values() if p.axes[:1] == ("layers",)] if "pipeline" in config.model else []
  depths = [depth / Pipeline(**config.model.pipeline).rounds for depth in depths]
  divided = {"expert": [p.shape[p.axes.index("expert")] for p in named.values() if "expert" in p.axes]}
  divided |= {"sequence": lengths, "stage": depths}
  return {axis: [n for n in _BESIDE[axis] if all(x % n == 0 for x in xs)] for axis, xs in divided.items() if xs}


def _meshes(beside: Mapping[str, list[int]], slices: int, devices: int) -> Iterator[dict[str, int]]:
  """Yield every split of a slice's devices among data, fsdp, tensor and at most one axis of `beside`."""
  inside = devices // slices
  others = [{}, *({axis: size} for axis, sizes in beside.items() for size in sizes)]
  for tensor, other in itertools.product(_TENSOR, others):
    left, uneven = divmod(inside, tensor * math.prod(other.values()))
    if uneven:
      continue
    for fsdp in (n for n in range(1, left + 1) if left % n == 0):
      sizes = {"replica": slices, "data": left // fsdp, "fsdp": fsdp, "tensor": tensor, **other}
      yield {axis: size for axis, size in sizes.items() if size > 1}


def _idling(mesh: Mapping[str, int], rows: int) -> float:
  """Return the ticks of a pipeline over those in which a stage computes, with the default microbatches."""
  stages = mesh.get("stage", 1)
  return 1 + (stages - 1) / math.gcd(stages, rows)


def _kept(config: ConfigDict, task, devices: list) -> dict[str | None, float]:
  """Return the bytes that the backward pass of a row holds at once, by remat, as JAX's tracing of the step tells.

  Of two rows it keeps more than of one, and the difference is a row's. A block that is recomputed holds for a moment
  what "none" keeps of it.
  """
  kept = {}
  for remat in _REMAT if "remat" in config.model else (None,):
    one = ConfigDict(config.to_dict())
    if remat is not None:
      with one.ignore_type():
        one.model.remat = {"name": remat} if hasattr(config.model.remat, "keys") else remat
    kept[remat] = _residual_bytes(one, task, devices, 2) - _residual_bytes(one, task, devices, 1)
  parts = build(config, devices)
  layers = [p.shape[p.axes.index("layers")] for p in params.named_params(parts.model).values() if "layers" in p.axes]
  block = (max(kept.values()) - min(kept.values())) / max(layers, default=1)
  return {remat: size + block for remat, size in kept.items()}


def _residual_bytes(config: ConfigDict, task, devices: list, rows: int) -> float:
  """Return the bytes of all arrays that the forward pass of some rows leaves to the backward pass."""
  config.batch_size = rows
  parts = build(config, devices)

  def forward(arrays, batch):
    def loss(arrays):
      key = jax.random.key(0)
      return parts.objective(params.with_arrays(parts.model, arrays), parts.objective.prepare(batch), key)

    with parts.rules.activate():
      return jax.vjp(loss, arrays, has_aux=True)[1]

  backward = jax.eval_shape(forward, parts.state.params, abstract_batch(config, parts.rules, task))
  leaves = [x for x in jax.tree.leaves(backward) if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)]
  return float(sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves))


def search(request: Request, most: int, timeout_seconds: float, tell: Callable[[str], None]) -> list[dict[str, Any]]:
  """Return plans of the `most` best candidates, fastest first; candidates that do not fit come last.

  Args:
    tell: receives a line about the overrides that candidates replace, and about each finished candidate.
  """
  listed = planned(dataclasses.replace(request, search=True), timeout_seconds)
  if "candidates" not in listed:
    raise UserError(f"--search: {listed['verdict']}")
  kept = [one for one in request.overrides if not one.startswith((*_SEARCHED, "accumulation_steps"))]
  if replaced := [one for one in request.overrides if one not in kept]:
    tell(f"searched in place of what is given: {' '.join(replaced)}")
  waiting, plans = listed["candidates"], []
  while waiting and len(plans) < most:
    one, waiting = waiting[0], waiting[1:]
    overrides = (*kept, *one["overrides"], "accumulation_steps=1")
    try:
      found, refused = planned(dataclasses.replace(request, overrides=overrides), timeout_seconds), False
    except UserError as error:  # an attention core or a schedule that the axis of a mesh excludes, with any rows
      found, refused = {"fits": False, "verdict": str(error)}, True
    plans.append(found | {"candidate": one["overrides"]})
    tell(f"{len(plans)} of {most}: {' '.join(one['overrides'])}: {found['verdict']}")
    alike = [other for other in waiting if _shape(other) == _shape(one)]
    fewer = [other for other in alike if not (found["fits"] or refused) and other["rows"] < one["rows"]]
    waiting = fewer[:1] + [other for other in waiting if _shape(other) != _shape(one)]
  return sorted(plans, key=rate, reverse=True)


def _shape(candidate: dict[str, Any]) -> tuple[str, ...]:
  """Return a candidate's mesh and remat: one number of rows of each is compiled, fewer if that does not fit."""
  return tuple(word for word in candidate["overrides"] if not word.startswith("batch_size"))


def rate(plan: dict[str, Any]) -> float:
  """Return a plan's model FLOPs per second, by the estimated time of a step; 0 if it does not fit."""
  if not plan["fits"]:
    return 0.0
  return plan["model_flops"] / plan["seconds"]["step"] if "seconds" in plan else 1 / plan["total_gigabytes"]
