"""Summarize a run at its start on one screen, and name the files that hold the details."""

import math
import statistics
from typing import Any

import jax
from ml_collections import ConfigDict

from t5x_like.errors import UserError, one_line
from t5x_like.files.paths import as_path
from t5x_like.nn import params
from t5x_like.parallel.rules import Rules
from t5x_like.report.numbers import duration, short
from t5x_like.report.writer import read_metrics

SHARDING = "sharding.txt"
_RECENT_LINES = 100  # lines of metrics whose median is the time of a step
_ASSUMED_MFU = 0.5  # for a step that was never timed


def summarize(session, assembly, cost, step: int) -> str:
  """Return the summary of a run, and write its table of shardings to `sharding.txt`.

  Args:
    session: a `training.session.Session` that has begun.
    assembly: a `training.build.Assembly`.
    cost: the cost of a step, a `training.compilation.StepCost`.
    step: the step from which the run starts or resumes.
  """
  config = assembly.config
  parts = assembly.parts
  task = assembly.task
  named = params.named_params(parts.model)
  try:
    (as_path(session.workdir) / SHARDING).write_text(sharding_table(named, parts.rules) + "\n")
  except OSError as error:
    raise UserError(
      f"{session.address}/{SHARDING}: cannot be written: {error.strerror or one_line(error)}"
    ) from error
  num_params = sum(math.prod(p.shape) for p in named.values())
  num_local_params = 0
  for name, sharding in parts.rules.param_shardings(named).items():
    num_local_params += math.prod(sharding.shard_shape(named[name].shape))
  dtype = config.model.get("dtype", "float32")
  device_kind = jax.devices()[0].device_kind
  rows = {
    "model": f"{_slot_text(config.model)}: {short(num_params)} parameters, {dtype}, "
    f"{4 * num_local_params / 2**20:,.1f} MiB on each device",
    "data": f"{task.name}: {short(task.num_examples)} examples an epoch; {_batch(config, cost)}",
    "training": f"{_slot_text(config.objective)}, {_slot_text(config.optimizer)}, "
    f"{_slot_text(config.schedule)} schedule",
    "mesh": f"{_mesh(parts.rules)} ({jax.device_count()} x {device_kind})",
    "steps": f"{step:,} to {config.total_steps:,}; an evaluation every {config.eval_every:,}, a "
    f"checkpoint every {config.checkpoint.every:,}",
    "duration": _duration(read_metrics(session.workdir), cost, config.total_steps - step),
    "workdir": f"{session.address} (config.json, {SHARDING}, metrics.jsonl, report.html)",
  }
  return "\n".join(f"  {name:<9} {value}" for name, value in rows.items())


def _slot_text(slot: ConfigDict) -> str:
  variant = slot.get("variant")
  return f"{slot.name} {variant}" if isinstance(variant, str) else slot.name


def _batch(config: ConfigDict, cost) -> str:
  if cost.unit == "images":
    return f"batches of {config.batch_size:,} images"
  return f"batches of {config.batch_size:,} rows, {short(cost.positions)} tokens"


def _mesh(rules: Rules) -> str:
  """Describe the mesh axes that are longer than 1."""
  axes = [f"{axis}={size}" for axis, size in rules.mesh.shape.items() if size > 1]
  return " ".join(axes) or "one device"


def _duration(metrics: list[dict[str, Any]], cost, steps: int) -> str:
  """Estimate the time of the remaining steps from earlier starts or the device's peak."""
  times = []
  for row in metrics:
    if row.get("train/seconds_per_step"):
      times.append(row["train/seconds_per_step"])
  if times:
    seconds = steps * statistics.median(times[-_RECENT_LINES:])
    return f"about {duration(seconds)} at the pace of earlier steps, without evaluations"
  if not cost.peak:
    return "printed with the steps"
  seconds = steps * cost.flops / cost.peak / _ASSUMED_MFU
  return f"about {duration(max(1, seconds))} at {_ASSUMED_MFU:.0%} of the peak, without evaluations"


def _mesh_axes_text(entry: str | tuple[str, ...] | None) -> str:
  """Format the mesh axes of one dimension: an entry of a PartitionSpec."""
  if isinstance(entry, str):
    return entry
  return "+".join(entry) if entry else "-"


def sharding_table(params: dict, rules: Rules) -> str:
  """Format a table of parameters and their totals.

  The columns are name, shape, logical axes, mesh axes and MiB per device.
  """
  rows = [("parameter", "shape", "logical axes", "mesh axes", "MiB/device")]
  total = 0
  per_device = 0
  for name, sharding in rules.param_shardings(params).items():
    param = params[name]
    num_local = math.prod(sharding.shard_shape(param.shape))
    total += math.prod(param.shape)
    per_device += num_local
    shape = "x".join(map(str, param.shape))
    logical_axes = ",".join(axis or "-" for axis in param.axes)
    mesh_axes = ",".join(_mesh_axes_text(entry) for entry in sharding.spec)
    rows.append((name, shape, logical_axes, mesh_axes, f"{4 * num_local / 2**20:.2f}"))
  widths = [max(map(len, column)) for column in zip(*rows)]
  lines = []
  for row in rows:
    cells = [cell.ljust(width) for cell, width in zip(row, widths)]
    lines.append("  ".join(cells).rstrip())
  lines.append(
    f"mesh: {_mesh(rules)}; {total:,} parameters, {4 * per_device / 2**20:.1f} MiB of them on "
    "each device (float32)"
  )
  return "\n".join(lines)
