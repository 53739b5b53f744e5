"""A suite from several checkpoints of one run: scores by the steps of pretraining (Devlin et al.
2019, figure 5).

  <output>/step-<N>/   the suite from checkpoint N, see `suite.py`
  <output>/steps.json, steps.md

A stopped command continues as a suite does.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from t5x_like.benchmarks import suite
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import UserError
from t5x_like.files.paths import as_path
from t5x_like.parallel import distributed
from t5x_like.runtime import process
from t5x_like.training import workdir as workdirs


def run_by_step(
  names: Sequence[str], options: suite.Options, steps: Sequence[int]
) -> dict[str, Any]:
  """Make the tables of suites from each checkpoint; return the content of `steps.json`.

  Returns:
    `suite`, `workdir`, `steps`, `mean` (of each step) and `tasks`, the scores of each step by task;
    None where a task has none.

  Raises:
    UserError: several workdirs, a step without a checkpoint; and as `suite.run`.
  """
  if len(options.workdirs) > 1:
    raise UserError(
      f"--steps: found {len(options.workdirs)} workdirs, expected one, whose "
      "checkpoints are compared"
    )
  _check(options.workdirs[0], steps)
  found = []
  for step in steps:
    process.log(f"=== checkpoint {step}")
    own = dataclasses.replace(options, step=step, output=options.output / f"step-{step}")
    found.append(suite.run(names, own))
  tasks = dict.fromkeys(task for one in found for task in one["tasks"])
  results = {
    "suite": found[0]["suite"],
    "workdir": options.workdirs[0],
    "steps": list(steps),
    "mean": [one["mean"] for one in found],
    "tasks": {task: [one["tasks"].get(task, {}).get("score") for one in found] for task in tasks},
  }
  if process.is_first():
    workdirs.write_json(options.output, "steps.json", results)
    workdirs.write_text(options.output, "steps.md", markdown(results))
  return results


def _check(workdir: str, steps: Sequence[int]) -> None:
  """Raise UserError for a step without a checkpoint, before the first is fine-tuned."""

  def kept() -> list[int]:
    if not as_path(f"{workdir}/checkpoints").exists():
      return []
    with Checkpoints(f"{workdir}/checkpoints") as checkpoints:
      return checkpoints.steps()

  known = distributed.broadcast_from_first(kept)
  if lacking := [step for step in steps if step not in known]:
    told = f"expected some of {', '.join(map(str, known))}" if known else "which has none"
    raise UserError(
      f"--steps: found no checkpoint of step {lacking[0]} in {workdir}, {told}; a run keeps every "
      "Nth with --config.checkpoint.keep_every=N"
    )


def markdown(found: dict[str, Any]) -> str:
  """Write the table: a row for each step, a column for each task."""
  lines = [
    "| step | " + " | ".join([*found["tasks"], "mean"]) + " |",
    "|" + "---|" * (len(found["tasks"]) + 2),
  ]
  for number, step in enumerate(found["steps"]):
    scores = [*(scores[number] for scores in found["tasks"].values()), found["mean"][number]]
    lines.append(
      f"| {step} | "
      + " | ".join("–" if score is None else f"{score:.2f}" for score in scores)
      + " |"
    )
  return (
    f"# {found['suite']}: {found['workdir']}, by step of pretraining\n\n" + "\n".join(lines) + "\n"
  )
