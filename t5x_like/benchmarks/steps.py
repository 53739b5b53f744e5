"""Run a suite from several checkpoints of one run, for scores by the steps of pretraining.

The comparison is that of Devlin et al. 2019, figure 5.

  <output>/step-<N>/   the suite from checkpoint N, see `suite.py`
  <output>/steps.json, steps.md

A stopped command continues as a suite does.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.benchmarks import suite
from t5x_like.benchmarks.suites import Suite
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import UserError
from t5x_like.files.paths import as_path
from t5x_like.parallel import distributed
from t5x_like.runtime import process
from t5x_like.training import workdir as workdirs


def run_by_step(
  suites_by_name: Mapping[str, Suite], options: suite.Options, steps: Sequence[int]
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
  workdir = options.workdirs[0]
  _check_checkpoints(workdir, steps)
  tables = []
  for step in steps:
    process.log(f"=== checkpoint {step}")
    output = options.output / f"step-{step}"
    tables.append(suite.run(suites_by_name, dataclasses.replace(options, step=step, output=output)))
  scores: dict[str, list[float | None]] = {}
  for task in dict.fromkeys(task for table in tables for task in table["tasks"]):
    scores[task] = [table["tasks"].get(task, {}).get("score") for table in tables]
  results = {
    "suite": tables[0]["suite"],
    "workdir": workdir,
    "steps": list(steps),
    "mean": [table["mean"] for table in tables],
    "tasks": scores,
  }
  if process.is_first():
    workdirs.write_json(options.output, "steps.json", results)
    workdirs.write_text(options.output, "steps.md", markdown(results))
  return results


def _check_checkpoints(workdir: str, steps: Sequence[int]) -> None:
  """Raise UserError for a step without a checkpoint, before the first is fine-tuned."""

  def list_steps() -> list[int]:
    if not as_path(f"{workdir}/checkpoints").exists():
      return []
    with Checkpoints(f"{workdir}/checkpoints") as checkpoints:
      return checkpoints.steps()

  available = distributed.broadcast_from_first(list_steps)
  for step in steps:
    if step in available:
      continue
    hint = "which has none"
    if available:
      hint = f"expected some of {', '.join(map(str, available))}"
    raise UserError(
      f"--steps: found no checkpoint of step {step} in {workdir}, {hint}; a run keeps every "
      "Nth with --config.checkpoint.keep_every=N"
    )


def markdown(results: dict[str, Any]) -> str:
  """Write the table: a row for each step, a column for each task."""
  head = ["step", *results["tasks"], "mean"]
  lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
  for number, step in enumerate(results["steps"]):
    scores = [task_scores[number] for task_scores in results["tasks"].values()]
    scores.append(results["mean"][number])
    cells = [str(step)]
    cells += ["–" if score is None else f"{score:.2f}" for score in scores]
    lines.append("| " + " | ".join(cells) + " |")
  title = f"# {results['suite']}: {results['workdir']}, by step of pretraining"
  return f"{title}\n\n" + "\n".join(lines) + "\n"
