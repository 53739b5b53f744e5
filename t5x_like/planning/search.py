"""Search meshes, remat and batch sizes that fit a topology.

Candidates are ranked by a bound, and the best are compiled. The bound is the batch's tokens divided
by the least time of a step: the longer of its model FLOPs at the peak rate (a third more under full
remat) and the analytic minimum of its ring bytes at the links' rate. Candidates whose parameters,
optimizer state, gradients and kept activations alone exceed the memory are not compiled. The final
ranking uses the compiled programs: model FLOPs per second, by the estimated time of a step.
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
from t5x_like.nn.pipeline import Pipeline
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.planning import child, hardware, minimum, steps
from t5x_like.planning.child import Request
from t5x_like.training import compilation, device_peak, flops
from t5x_like.training.build import build_parts
from t5x_like.training.state import abstract_state

_SEARCHED = ("mesh", "batch_size", "model.remat")
_REMAT = ("none", "minimal", "full")
_ROWS = (1, 2, 4, 8, 16, 32)  # rows of a device, or of the devices that share a row
_TENSOR = (1, 2, 4, 8)
# A mesh may have one of these axes.
_EXTRA_AXES = {"expert": (2, 4, 8), "sequence": (2, 4), "stage": (2, 4)}


@dataclasses.dataclass
class Candidate:
  """Overrides of a recipe, with estimates before compilation.

  Attributes:
    bound: the most tokens, or images, per second and device.
    memory: the least bytes per device.
    rows: the rows of a device, or of the devices that share a row.
  """

  overrides: tuple[str, ...]
  bound: float
  memory: float
  rows: int


def candidates(request: dict[str, Any]) -> list[dict[str, Any]]:
  """Return all candidates that may fit, best bound first.

  Ties within the estimate's error prefer meshes without `sequence` and `stage`, then more rows. The
  process must have the environment that `hardware.environment` returns for the topology.

  Raises:
    UserError: nothing fits.
  """
  topology = hardware.parse(request["topology"], request["slices"])
  devices = hardware.devices(topology)
  config = recipes.load(request["config"], request["overrides"])
  platform = hardware.platform(topology, devices)
  config, task = steps.resolve(config, platform, request["phase"])
  fitting = []
  for candidate in _candidates(config, task, topology, devices):
    fitting.append(dataclasses.asdict(candidate))
  if not fitting:
    raise UserError(
      f"--search: nothing fits {topology.name}; the memory of its {len(devices)} devices is too "
      "small"
    )
  return sorted(fitting, key=_rank)


def _rank(candidate: dict[str, Any]) -> tuple[float, bool, int, float]:
  """Return the key by which candidates are sorted.

  Past two digits, bounds differ by less than the estimate's error.
  """
  rounded_bound = float(f"{candidate['bound']:.2g}")
  return (-rounded_bound, _sends_activations(candidate), -candidate["rows"], -candidate["bound"])


def _sends_activations(candidate: dict[str, Any]) -> bool:
  """Return whether a mesh sends activations over axes that the bound counts as free."""
  mesh = candidate["overrides"][0]
  return "sequence" in mesh or "stage" in mesh


def _candidates(
  config: ConfigDict, task, topology: hardware.Topology, devices: list
) -> Iterator[Candidate]:
  """Yield the candidates that the estimate of their memory does not rule out."""
  base = ConfigDict(config.to_dict())
  base.mesh = {"data": 1}
  base.batch_size = 1
  base.accumulation_steps = 1
  parts = build_parts(base, devices[:1])
  named = params.named_params(parts.model)
  itemsize = np.dtype(config.model.get("dtype", "float32")).itemsize
  batch = parts.rules.abstract_batch(task.features, base.batch_size)
  row_flops = flops.step_flops(parts.model, parts.objective, batch, parts.trained)
  row_tokens = compilation.count_positions(batch)["positions"]
  row_bytes = _activation_bytes(base, task, devices[:1])
  memory, peak, link = _rates(topology, devices)
  inputs = [batch[name] for name in parts.model.REQUIRED_FEATURES]
  lengths = [x.shape[1] for x in inputs if x.ndim == 2]
  for mesh in _meshes(_axes(config, named, lengths), topology.slices, len(devices)):
    try:
      rules = Rules.make(make_mesh(mesh, devices), config.rules.to_dict())
      state = abstract_state(parts.model, parts.optimizer, rules)
    except UserError:
      continue  # a parameter does not divide
    batch_ways = rules.ways("batch")
    row_devices = len(devices) // batch_ways  # the devices that share a row
    ring_bytes = minimum.ring_bytes(named, rules, itemsize, train=True, trained=parts.trained)
    send_seconds = sum(ring_bytes.values()) / link
    # Parameters are float32, and gradients have the compute dtype.
    gradient_bytes = steps.shard_bytes(state.params) * itemsize / 4
    resident_state = state.params if config.optimizer.get("offload") else state
    state_bytes = steps.shard_bytes(resident_state) + gradient_bytes
    for rows, remat in itertools.product(_ROWS, row_bytes):
      memory_bytes = state_bytes + rows * row_bytes[remat] / row_devices
      if memory_bytes > memory:
        continue
      recomputation = 4 / 3 if remat == "full" else 1  # a second forward pass, of 4 instead of 3
      device_flops = rows * row_flops / row_devices * recomputation
      compute_seconds = device_flops / peak * _pipeline_slowdown(mesh, rows)
      device_tokens = rows * row_tokens / row_devices
      bound = device_tokens / max(compute_seconds, send_seconds)
      overrides = [
        f"mesh={json.dumps(mesh, separators=(',', ':'))}",
        f"batch_size={rows * batch_ways}",
      ]
      if remat is not None:
        overrides.append(f"model.remat={_remat_flag(config, remat)}")
      yield Candidate(tuple(overrides), bound, memory_bytes, rows)


def _rates(topology: hardware.Topology, devices: list) -> tuple[float, float, float]:
  """Return a device's (bytes of memory, FLOPs per second, bytes per second of all links).

  CPUs have assumed values.
  """
  chip = topology.chip
  if chip is None:
    return math.inf, 1e11, 1e10
  peak, _ = device_peak.peak_flops(devices[0])
  return chip.memory, peak, chip.link * hardware.links(devices, topology)


def _remat_flag(config: ConfigDict, name: str) -> str:
  """Return the value of the flag that sets a remat policy."""
  value = _remat_value(config, name)
  return value if isinstance(value, str) else json.dumps(value)


def _remat_value(config: ConfigDict, name: str) -> str | dict[str, str]:
  """Return a remat policy in the recipe's form: a name, or a table with a name."""
  return {"name": name} if hasattr(config.model.remat, "keys") else name


def _axes(config: ConfigDict, named: Mapping, lengths: list[int]) -> dict[str, list[int]]:
  """Return the sizes of the mesh axes other than `tensor` that a model and its rows can use.

  Args:
    named: its parameters.
    lengths: of the rows of tokens that it reads; none for images.
  """
  expert_counts = []
  depths = []
  for p in named.values():
    if "expert" in p.axes:
      expert_counts.append(p.shape[p.axes.index("expert")])
    if "pipeline" in config.model and p.axes[:1] == ("layers",):
      rounds = Pipeline(**config.model.pipeline).rounds
      depths.append(p.shape[0] / rounds)
  sizes = {}
  for axis, divided in (("expert", expert_counts), ("sequence", lengths), ("stage", depths)):
    if divided:
      sizes[axis] = [ways for ways in _EXTRA_AXES[axis] if _divides_all(ways, divided)]
  return sizes


def _divides_all(ways: int, sizes: list[float]) -> bool:
  return all(size % ways == 0 for size in sizes)


def _meshes(
  extra_axes: Mapping[str, list[int]], slices: int, devices: int
) -> Iterator[dict[str, int]]:
  """Yield all splits of devices among data, fsdp, tensor and at most one extra axis."""
  extras: list[dict[str, int]] = [{}]
  for axis, sizes in extra_axes.items():
    extras += [{axis: size} for size in sizes]
  for tensor, extra in itertools.product(_TENSOR, extras):
    batch_devices, remainder = divmod(devices // slices, tensor * math.prod(extra.values()))
    if remainder:
      continue
    for fsdp in range(1, batch_devices + 1):
      if batch_devices % fsdp:
        continue
      mesh = {
        "replica": slices,
        "data": batch_devices // fsdp,
        "fsdp": fsdp,
        "tensor": tensor,
        **extra,
      }
      yield {axis: size for axis, size in mesh.items() if size > 1}


def _pipeline_slowdown(mesh: Mapping[str, int], rows: int) -> float:
  """Return the ticks of a pipeline over the ticks in which a stage computes.

  The number of microbatches is the default one.
  """
  stages = mesh.get("stage", 1)
  return 1 + (stages - 1) / math.gcd(stages, rows)


def _activation_bytes(config: ConfigDict, task, devices: list) -> dict[str | None, float]:
  """Return the bytes that the backward pass of a row needs at once, by remat policy.

  JAX traces the step for two rows and for one, and the difference is the bytes of a row. While a
  block is recomputed, it temporarily keeps as much as under the policy "none".
  """
  kept_bytes: dict[str | None, float] = {}
  policies = _REMAT if "remat" in config.model else (None,)
  for remat in policies:
    variant = ConfigDict(config.to_dict())
    if remat is not None:
      with variant.ignore_type():
        variant.model.remat = _remat_value(config, remat)
    two_rows = _residual_bytes(variant, task, devices, 2)
    kept_bytes[remat] = two_rows - _residual_bytes(variant, task, devices, 1)
  named = params.named_params(build_parts(config, devices).model)
  depths = [p.shape[p.axes.index("layers")] for p in named.values() if "layers" in p.axes]
  recomputed_bytes = max(kept_bytes.values()) - min(kept_bytes.values())
  block_bytes = recomputed_bytes / max(depths, default=1)
  return {remat: size + block_bytes for remat, size in kept_bytes.items()}


def _residual_bytes(config: ConfigDict, task, devices: list, rows: int) -> float:
  """Return the bytes of all arrays that a forward pass saves for the backward pass."""
  config.batch_size = rows
  parts = build_parts(config, devices)

  def forward(arrays, batch):
    def loss(arrays):
      model = params.with_arrays(parts.model, arrays)
      return parts.objective(model, parts.objective.prepare(batch, model), jax.random.key(0))

    with parts.rules.activate():
      _, backward, _ = jax.vjp(loss, arrays, has_aux=True)
    return backward

  batch = parts.rules.abstract_batch(task.features, config.batch_size)
  backward = jax.eval_shape(forward, parts.state.params, batch)
  total = 0
  for array in jax.tree.leaves(backward):
    if not jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
      total += math.prod(array.shape) * array.dtype.itemsize
  return float(total)


def search(
  request: Request, limit: int, timeout_seconds: float, report_progress: Callable[[str], None]
) -> list[dict[str, Any]]:
  """Return plans of the `limit` best candidates, fastest first.

  Candidates that do not fit come last.

  Args:
    timeout_seconds: how long the compiler may take for each.
    report_progress: receives a line about the overrides that candidates replace, and about each
      finished candidate.
  """
  answer = child.plan(dataclasses.replace(request, search=True), timeout_seconds, report_progress)
  if "candidates" not in answer:
    raise UserError(f"--search: {answer['verdict']}")
  ignored_overrides = []
  fixed_overrides = []
  for override in request.overrides:
    if override.startswith((*_SEARCHED, "accumulation_steps")):
      ignored_overrides.append(override)
    else:
      fixed_overrides.append(override)
  if ignored_overrides:
    report_progress(f"the search replaces these flags: {' '.join(ignored_overrides)}")
  remaining = answer["candidates"]
  plans = []
  while remaining and len(plans) < limit:
    candidate = remaining.pop(0)
    overrides = (*fixed_overrides, *candidate["overrides"], "accumulation_steps=1")
    candidate_request = dataclasses.replace(request, overrides=overrides)
    try:
      plan = child.plan(candidate_request, timeout_seconds, report_progress)
      fewer_rows_may_fit = not plan["fits"]
    # With any rows, such as an attention core that refuses an axis of the mesh.
    except UserError as error:
      plan = {"fits": False, "verdict": str(error)}
      fewer_rows_may_fit = False
    plans.append(plan | {"candidate": candidate["overrides"]})
    flags = " ".join(candidate["overrides"])
    report_progress(f"{len(plans)} of {limit}: {flags}: {plan['verdict']}")
    next_candidates = _next_with_fewer_rows(candidate, remaining) if fewer_rows_may_fit else []
    layout = _layout(candidate)
    other_layouts = [entry for entry in remaining if _layout(entry) != layout]
    remaining = next_candidates + other_layouts
  return sorted(plans, key=rate, reverse=True)


def _layout(candidate: dict[str, Any]) -> tuple[str, ...]:
  """Return a candidate's mesh and remat.

  Of each layout, the best number of rows is compiled, and fewer rows only if that does not fit.
  """
  return tuple(text for text in candidate["overrides"] if not text.startswith("batch_size"))


def _next_with_fewer_rows(
  candidate: dict[str, Any], remaining: list[dict[str, Any]]
) -> list[dict[str, Any]]:
  """Return a list of the next candidate of the same layout with fewer rows; empty without one."""
  layout = _layout(candidate)
  for entry in remaining:
    if _layout(entry) == layout and entry["rows"] < candidate["rows"]:
      return [entry]
  return []


def rate(plan: dict[str, Any]) -> float:
  """Return a plan's model FLOPs per second, by the estimated seconds of a step; 0 if it cannot fit.

  Plans without such an estimate get the inverse of their memory, so that the smallest is first.
  """
  if not plan["fits"]:
    return 0.0
  if "seconds" in plan:
    return plan["model_flops"] / plan["seconds"]["step"]
  return 1 / plan["total_gigabytes"]
