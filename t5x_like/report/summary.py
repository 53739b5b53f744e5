"""The summary of a run at its start: one screen, with the files that hold the details."""

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
_RECENT = 100  # lines of metrics that tell the time of a step
_USUAL_MFU = 0.5  # of a step that was never timed


def text(session, made, cost, step: int) -> str:
  """Return the summary of a run that goes on from a step, and write its table of shardings to
  `sharding.txt`.

  Args:
    session: a `training.session.Session`, begun; `made` is a `training.assembly.Assembly`.
    cost: of one step, a `training.compilation.StepCost`.
  """
  config = made.config
  parts = made.parts
  named = params.named_params(parts.model)
  try:
    (as_path(session.workdir) / SHARDING).write_text(sharding_table(named, parts.rules) + "\n")
  except OSError as error:
    raise UserError(
      f"{session.address}/{SHARDING}: cannot be written: {error.strerror or one_line(error)}"
    ) from error
  count = sum(math.prod(p.shape) for p in named.values())
  local = sum(
    math.prod(s.shard_shape(named[name].shape))
    for name, s in parts.rules.param_shardings(named).items()
  )
  rows = {
    "model": f"{_named(config.model)}: {short(count)} parameters, "
    f"{config.model.get('dtype', 'float32')},"
    f" {4 * local / 2**20:,.1f} MiB on each device",
    "data": f"{made.task.name}: {short(made.task.num_examples)} examples an epoch; "
    f"{_batch(config, cost)}",
    "training": f"{_named(config.objective)}, {_named(config.optimizer)}, "
    f"{_named(config.schedule)} schedule",
    "mesh": f"{_mesh(parts.rules)} ({jax.device_count()} x {jax.devices()[0].device_kind})",
    "steps": f"{step:,} to {config.total_steps:,}; an evaluation every {config.eval_every:,}, a "
    "checkpoint every"
    f" {config.checkpoint.every:,}",
    "duration": _duration(read_metrics(session.workdir), cost, config.total_steps - step),
    "workdir": f"{session.address} (config.json, {SHARDING}, metrics.jsonl, report.html)",
  }
  return "\n".join(f"  {name:<9} {value}" for name, value in rows.items())


def _named(slot: ConfigDict) -> str:
  variant = slot.get("variant")
  return f"{slot.name} {variant}" if isinstance(variant, str) else slot.name


def _batch(config: ConfigDict, cost) -> str:
  if cost.of == "images":
    return f"batches of {config.batch_size:,} images"
  return f"batches of {config.batch_size:,} rows, {short(cost.positions)} tokens"


def _mesh(rules: Rules) -> str:
  return " ".join(f"{axis}={n}" for axis, n in rules.mesh.shape.items() if n > 1) or "one device"


def _duration(metrics: list[dict[str, Any]], cost, steps: int) -> str:
  """Tell how long the steps will take: by the steps of earlier starts, else by the device's
  peak."""
  timed = [row["train/seconds_per_step"] for row in metrics if row.get("train/seconds_per_step")][
    -_RECENT:
  ]
  if timed:
    return (
      f"about {duration(steps * statistics.median(timed))} at the pace of earlier steps, "
      "evaluations aside"
    )
  if not cost.peak:
    return "told with the steps"
  seconds = steps * cost.flops / cost.peak / _USUAL_MFU
  return f"about {duration(max(1, seconds))} at {_USUAL_MFU:.0%} of the peak, evaluations aside"


def sharding_table(params: dict, rules: Rules) -> str:
  """Format a table of parameters: name, shape, logical axes, mesh axes and MiB per device, then the
  totals."""
  rows = [("parameter", "shape", "logical axes", "mesh axes", "MiB/device")]
  total = per_device = 0
  for name, sharding in rules.param_shardings(params).items():
    p = params[name]
    parts = [x if isinstance(x, str) else "+".join(x) if x else "-" for x in sharding.spec]
    local = math.prod(sharding.shard_shape(p.shape))
    total = total + math.prod(p.shape)
    per_device = per_device + local
    shape = "x".join(map(str, p.shape))
    rows.append(
      (name, shape, ",".join(a or "-" for a in p.axes), ",".join(parts), f"{4 * local / 2**20:.2f}")
    )
  widths = [max(len(row[i]) for row in rows) for i in range(5)]
  lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]
  lines.append(
    f"mesh: {_mesh(rules)}; {total:,} parameters, {4 * per_device / 2**20:.1f} MiB of them on "
    "each device (float32)"
  )
  return "\n".join(lines)
