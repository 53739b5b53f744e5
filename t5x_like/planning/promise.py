"""Read the promise of a plan, and compare the config, hardware and program of a run with it.

`python -m t5x_like.plan --json=FILE` writes plans. What may differ between a plan and a run falls
into two classes:

- The comparison means nothing for another model, objective, optimizer, tuning or kind of device.
  Such a plan is refused before the run begins.
- Another slice, mesh, batch size, sharding rule, remat policy or attention core is a deviation with
  a cause. The run continues, and is compared with the unchanged promise.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from t5x_like import slots
from t5x_like.config import flatten
from t5x_like.errors import UserError
from t5x_like.files.checked_json import parse_json
from t5x_like.files.paths import as_path
from t5x_like.redaction import redact_config

# The file exists in a clone of the project, not in an installed package.
STORED_PLANS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "plans.json"
TOLERANCE = 0.1  # the share of a promised value from which a difference is a deviation
# Keys of a recipe that, with the shapes of the features, determine a step's program.
_STEP_KEYS = (
  "accumulation_steps",
  "batch_size",
  "clip_norm",
  "guard",
  "mesh",
  "model",
  "objective",
  "optimizer",
  "recompute_every",
  "rules",
  "teacher",
  "tuning",
)
# The step's keys that change how a model is computed, but not which model. A plan that differs in
# any other of the step's keys is refused.
_COMPARED_KEYS = (
  "accumulation_steps",
  "batch_size",
  "guard.",
  "mesh.",
  "model.design.core",
  "model.dtype",
  "model.layers",
  "model.pipeline",
  "model.remat",
  "recompute_every",
  "rules.",
)
# Keys whose effects are compared in the program itself, by `program_deviations`.
_PROGRAM_KEYS = ("accumulation_steps", "batch_size", "mesh.", "model.design.core")
_VERSIONS = ("t5x-like", "jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
_UNSET = "default"
_NEGLIGIBLE_BYTES = 1e5  # smaller differences of bytes sent are no deviation


@dataclasses.dataclass(frozen=True)
class Deviation:
  """A difference between a plan and a run, with its cause.

  Attributes:
    kind: such as "core" or "input".
    text: the values of the run and of the plan, in one line.
  """

  kind: str
  text: str

  def __str__(self) -> str:
    return f"{self.kind}: {self.text}"


@dataclasses.dataclass(frozen=True)
class Program:
  """Properties of a compiled step, planned or of a run.

  Attributes:
    devices: the number of devices.
    slice_shape: see `hardware.slice_shape`.
    mesh: the lengths of the mesh axes that are longer than 1.
    batch_size, accumulation_steps: the values of the config.
    features: the shape of each feature of an example.
    cores: the attention cores by log name, see `nn.cores.describe_cores`.
    memory: bytes of the program on a device.
    collectives: the program's collectives as `Collective.row` returns them; None if unknown.
    versions: versions of packages, see `select_versions`.
  """

  devices: int
  slice_shape: str
  mesh: dict[str, int]
  batch_size: int
  accumulation_steps: int
  features: dict[str, list[int]]
  cores: dict[str, str]
  memory: float
  collectives: list[dict[str, Any]] | None
  versions: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Promise:
  """The values of a planned train step with which a run is compared.

  Attributes:
    path: the plan's file.
    topology: the name of the planned hardware.
    device_kind: the kind of the planned devices, as jax names it.
    phase: the planned phase; None for the last.
    config_values: the recipe's values that determine the step, by dotted key.
    program: the properties of the planned program.
    seconds: the promised seconds of a step.
    mfu: the promised MFU; None if the peak rate is unknown.
    compile_seconds: the seconds that the compiler took.
  """

  path: str
  topology: str
  device_kind: str
  phase: str | None
  config_values: dict[str, Any]
  program: Program
  seconds: float
  mfu: float | None
  compile_seconds: float


def step_values(recipe: ConfigDict) -> dict[str, Any]:
  """Return the JSON values of an unresolved recipe that determine its step, by dotted key."""
  values = slots.to_plain(redact_config(recipe.to_dict()))
  step_values = flatten({key: values[key] for key in _STEP_KEYS if key in values})
  return json.loads(json.dumps(step_values, default=str))


def select_versions(versions: Mapping[str, str]) -> dict[str, str]:
  """Return the versions of the packages that determine a step's program."""
  return {package: versions[package] for package in _VERSIONS if package in versions}


def read_promises(path: str, recipe: ConfigDict) -> list[Promise]:
  """Read the plans of a recipe's step in a file: one, or one for each of several topologies.

  Args:
    recipe: the config with its overrides, not yet resolved.

  Raises:
    UserError: the file cannot be read, is no plan of a train step with a time, or is of another
      model, objective, optimizer or tuning.
  """
  expected = "a plan, as python -m t5x_like.plan --json=FILE writes it"
  try:
    content = as_path(path).read_bytes()
  except OSError as error:
    raise UserError(f"--plan={path}: cannot be read: {error.strerror}; give {expected}") from None
  plans = parse_json(content, object, f"--plan={path}", expected)
  promises = []
  for plan in plans if isinstance(plans, list) else [plans]:
    promise = _parse(path, plan, expected)
    refused = _refused_keys(promise, recipe)
    if refused:
      raise UserError(
        f"--plan={path}: is a plan of another step: {'; '.join(refused)}; make one with the flags "
        "of this run, or leave the flag out"
      )
    promises.append(promise)
  if not promises:
    raise UserError(f"--plan={path}: found an empty list, expected {expected}")
  return promises


def stored_promises(recipe: ConfigDict) -> list[Promise]:
  """Return the plans of exactly this recipe's step in the project's `docs/plans.json`.

  Plans stored without the fields of a promise are left out. An installation without the file has no
  plans.
  """
  if not STORED_PLANS.is_file():
    return []
  plans = {}
  for name, plan in json.loads(STORED_PLANS.read_text()).items():
    if "config_values" in plan and plan["step"] == "train" and plan["fits"]:
      plans[name] = plan
  values = step_values(recipe) if plans else {}
  promises = []
  for name, plan in plans.items():
    if plan["config_values"] == values:
      promises.append(_parse(f"{STORED_PLANS.name}: {name}", plan, ""))
  return promises


def config_deviations(promise: Promise, recipe: ConfigDict) -> list[Deviation]:
  """Return the keys of the recipe that differ, except `_PROGRAM_KEYS`."""
  deviations = []
  for key, (planned, present) in _changed_values(promise, recipe).items():
    if key.startswith(_COMPARED_KEYS) and not key.startswith(_PROGRAM_KEYS):
      deviations.append(Deviation("config", f"{key} is {present!r}, planned {planned!r}"))
  return deviations


def promise_fields() -> list[str]:
  """Return the keys that a stored plan must have to be a promise."""
  return ["step", "fits", *(field.name for field in dataclasses.fields(_PlanFields))]


def program_deviations(promise: Promise, program: Program) -> list[Deviation]:
  """Compare a run's program with the plan's.

  Memory and collectives follow from mesh, batch and core, so they are compared only where these are
  as planned.
  """
  planned = promise.program
  deviations = _hardware_deviations(planned, program)
  deviations += _batch_deviations(planned, program)
  if planned.cores and program.cores != planned.cores:
    deviations.append(
      Deviation("core", f"{_pairs(program.cores)}, planned {_pairs(planned.cores)}")
    )
  if not deviations:
    deviations += _memory_deviations(planned, program.memory, "the program needs")
    deviations += _collective_deviations(planned, program)
  versions = _changed_versions(planned, program)
  if versions:
    deviations.append(Deviation("version", versions))
  return deviations


def peak_memory_deviations(promise: Promise, peak_bytes: float) -> list[Deviation]:
  """Compare the most bytes in use on a device with the plan's."""
  return _memory_deviations(promise.program, peak_bytes, "at most")


def _parse(path: str, plan: Any, expected: str) -> Promise:
  """Return the promise in a plan; raise UserError if a field is missing or of another type."""
  where = f"--plan={path}"
  if not isinstance(plan, dict) or plan.get("step") != "train":
    raise UserError(f"{where}: found no train step in the file, expected {expected}")
  if not plan.get("fits"):
    raise UserError(
      f"{where}: the planned step does not fit: {plan.get('verdict')}; plan one that fits"
    )
  if "seconds" not in plan:
    raise UserError(
      f"{where}: a plan for {plan.get('topology')} has no seconds; plan for a TPU, or for this "
      "machine with --topology=local"
    )
  fields = _PlanFields(**slots.fill(where, _select(plan, _PlanFields), _PlanFields))
  seconds = slots.coerce(f"{where}.seconds.step", fields.seconds.get("step"), slots.PositiveFloat)
  total = slots.coerce(f"{where}.memory.total", fields.memory.get("total"), slots.PositiveFloat)
  rows = []
  for row in fields.collectives:
    rows.append(dataclasses.asdict(_Row(**slots.fill(f"{where}.collectives", row, _Row))))
  program = Program(
    fields.devices,
    fields.slice_shape,
    fields.mesh,
    fields.batch_size,
    fields.accumulation_steps,
    fields.features,
    fields.cores,
    total,
    rows,
    fields.versions,
  )
  return Promise(
    path,
    fields.topology,
    fields.device_kind,
    fields.phase,
    fields.config_values,
    program,
    seconds,
    fields.mfu,
    fields.compile_seconds,
  )


@dataclasses.dataclass(frozen=True)
class _PlanFields:
  """The keys of a plan that a promise needs."""

  topology: str
  device_kind: str
  phase: str | None
  devices: slots.PositiveInt
  slice_shape: str
  mesh: dict
  batch_size: slots.PositiveInt
  accumulation_steps: slots.PositiveInt
  features: dict
  cores: dict
  config_values: dict
  versions: dict
  memory: dict
  seconds: dict
  mfu: float | None
  compile_seconds: slots.NonNegativeFloat
  collectives: tuple[dict, ...]


@dataclasses.dataclass(frozen=True)
class _Row:
  """A row of a plan's collectives, see `collectives.Collective`."""

  kind: str
  axes: str
  devices: int
  asynchronous: bool
  ring: bool
  count: int
  bytes: float
  ring_bytes: float
  where: str


def _select(plan: dict[str, Any], record: type) -> dict[str, Any]:
  names = [field.name for field in dataclasses.fields(record)]
  return {name: plan[name] for name in names if name in plan}


def _changed_values(promise: Promise, recipe: ConfigDict) -> dict[str, tuple[Any, Any]]:
  """Return (planned value, present value) of each key that differs; "default" for a missing one."""
  planned_values = promise.config_values
  values = step_values(recipe)
  changed = {}
  for key in sorted({*planned_values, *values}):
    pair = (planned_values.get(key, _UNSET), values.get(key, _UNSET))
    if pair[0] != pair[1]:
      changed[key] = pair
  return changed


def _refused_keys(promise: Promise, recipe: ConfigDict) -> list[str]:
  """Return a phrase for each changed key with which a plan is refused."""
  phrases = []
  for key, (planned, present) in _changed_values(promise, recipe).items():
    if not key.startswith(_COMPARED_KEYS):
      phrases.append(f"{key} is {present!r}, planned {planned!r}")
  return phrases


def _hardware_deviations(planned: Program, program: Program) -> list[Deviation]:
  """Compare devices, their slice, and the mesh over them."""
  if program.devices != planned.devices or program.slice_shape != planned.slice_shape:
    text = f"{_slice(program)}, planned {_slice(planned)}"
    return [Deviation("topology", text)]
  if program.mesh != planned.mesh:
    return [Deviation("mesh", f"{_mesh(program)}, planned {_mesh(planned)}")]
  return []


def _batch_deviations(planned: Program, program: Program) -> list[Deviation]:
  """Compare the rows, features and accumulation of a batch."""
  phrases = []
  if program.batch_size != planned.batch_size:
    phrases.append(f"{program.batch_size:,} rows a step, planned {planned.batch_size:,}")
  if program.accumulation_steps != planned.accumulation_steps:
    phrases.append(f"{program.accumulation_steps} parts, planned {planned.accumulation_steps}")
  for name in sorted({*program.features, *planned.features}):
    shape = program.features.get(name)
    planned_shape = planned.features.get(name)
    if shape != planned_shape:
      phrases.append(f"{name} has the shape {shape}, planned {planned_shape}")
  return [Deviation("batch", "; ".join(phrases))] if phrases else []


def _memory_deviations(planned: Program, memory: float, verb: str) -> list[Deviation]:
  if memory <= (1 + TOLERANCE) * planned.memory:
    return []
  text = f"{verb} {memory / 1e9:.3f} GB a device, planned {planned.memory / 1e9:.3f}"
  return [Deviation("memory", text)]


def _collective_deviations(planned: Program, program: Program) -> list[Deviation]:
  """Compare the bytes that a device sends, and those that it waits for, by kind and mesh axes."""
  if program.collectives is None:
    return []
  planned_bytes = _sum_bytes(planned.collectives or [])
  deviations = []
  for (kind, axes), (total, waited) in _sum_bytes(program.collectives).items():
    planned_total, planned_waited = planned_bytes.get((kind, axes), (0.0, 0.0))
    name = f"{kind} over {axes or 'other devices'}"
    if _is_more(total, planned_total):
      text = f"{name} sends {total / 1e9:.4g} GB a step, planned {planned_total / 1e9:.4g}"
      deviations.append(Deviation("collective", text))
    elif _is_more(waited, planned_waited):
      text = (
        f"{name} keeps devices waiting for {waited / 1e9:.4g} GB a step, planned "
        f"{planned_waited / 1e9:.4g}; the others overlap with computing"
      )
      deviations.append(Deviation("collective", text))
  return deviations


def _sum_bytes(rows: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[float, float]]:
  """Return (ring bytes, ring bytes that do not overlap) by kind and mesh axes."""
  sums: dict[tuple[str, str], tuple[float, float]] = {}
  for row in rows:
    key = (row["kind"], row["axes"])
    total, waited = sums.get(key, (0.0, 0.0))
    if not row["asynchronous"]:
      waited += row["ring_bytes"]
    sums[key] = (total + row["ring_bytes"], waited)
  return sums


def _is_more(present_bytes: float, planned_bytes: float) -> bool:
  return present_bytes > max((1 + TOLERANCE) * planned_bytes, planned_bytes + _NEGLIGIBLE_BYTES)


def _changed_versions(planned: Program, program: Program) -> str:
  """Return a phrase for each package of another version than planned; "" for none."""
  phrases = []
  for package, version in planned.versions.items():
    present = program.versions.get(package, "absent")
    if present != version:
      phrases.append(f"{package} {present}, planned {version}")
  return "; ".join(phrases)


def _slice(program: Program) -> str:
  shape = f" ({program.slice_shape})" if program.slice_shape else ""
  return f"{program.devices:,} devices{shape}"


def _mesh(program: Program) -> str:
  return " ".join(f"{axis}={size}" for axis, size in program.mesh.items()) or "one device"


def _pairs(values: Mapping[str, str]) -> str:
  return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
