"""Run a suite from several checkpoints of one run, as in Devlin et al. 2019, figure 5.

  <output>/step-<N>/   the suite from checkpoint N, see `suite.py`
  <output>/steps.json, steps.md

A stopped command continues as a suite does.
"""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from t5x_like.benchmarks import suite
from t5x_like.benchmarks.question_suites import QuestionSuite
from t5x_like.benchmarks.suites import Suite
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import UserError
from t5x_like.files import checked_json
from t5x_like.files.paths import as_path
from t5x_like.metrics.resampling import format_interval
from t5x_like.parallel import distributed
from t5x_like.runtime import process
from t5x_like.saved_model.workdir import read_identity
from t5x_like.training import workdir as workdirs

_POLL_SECONDS = 10.0  # the time between two looks at a run that goes on


def run_by_step(
  suites_by_name: Mapping[str, Suite | QuestionSuite],
  options: suite.Options,
  steps: Sequence[int] = (),
  every: int | None = None,
  report: Callable[[str], Any] = lambda workdir: None,
) -> dict[str, Any]:
  """Make the tables of suites from checkpoints; return the content of `steps.json`.

  Args:
    suites_by_name: the suites.
    options: the runs to make from each checkpoint.
    steps: the steps of the checkpoints.
    every: a number whose multiples are the steps, instead of `steps`, up to the run's last step
      and as the run saves them. Steps whose checkpoint is gone keep the table that they have.
    report: the function to call with the workdir after each table.

  Returns:
    `suite`, `workdir`, `steps`, `mean` (of each step), `tasks`, the scores of each step by task,
    and `intervals`, their 95 % intervals; None where a task has none.

  Raises:
    UserError: several workdirs, a step without a checkpoint; and as `suite.run`.
  """
  if len(options.workdirs) > 1:
    raise UserError(
      f"--steps: found {len(options.workdirs)} workdirs, expected one, whose "
      "checkpoints are compared"
    )
  workdir = options.workdirs[0]
  tables_by_step: dict[int, dict[str, Any]] = {}
  if every is None:
    _check_checkpoints(workdir, steps)
  else:
    tables_by_step = _read_tables(options.output)
    steps = _wait_for_steps(workdir, every, tables_by_step.keys())
  results = _join_tables(workdir, tables_by_step)
  for step in steps:
    process.log(f"=== checkpoint {step}")
    output = options.output / f"step-{step}"
    step_options = dataclasses.replace(options, step=step, output=output)
    tables_by_step[step] = suite.run(suites_by_name, step_options)
    results = _join_tables(workdir, tables_by_step)
    if process.is_first():
      workdirs.write_json(options.output, "steps.json", results)
      workdirs.write_text(options.output, "steps.md", markdown(results))
      report(workdir)
  return results


def _join_tables(workdir: str, tables_by_step: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
  """Return the content of `steps.json`."""
  steps = sorted(tables_by_step)
  tables = [tables_by_step[step] for step in steps]
  scores: dict[str, list[float | None]] = {}
  intervals: dict[str, list[dict[str, float] | None]] = {}
  for task in dict.fromkeys(task for table in tables for task in table["tasks"]):
    results = [table["tasks"].get(task, {}) for table in tables]
    scores[task] = [result.get("score") for result in results]
    intervals[task] = [score_interval(result) for result in results]
  for name in dict.fromkeys(name for table in tables for name in table.get("question_suites", {})):
    suites = [table.get("question_suites", {}).get(name, {}) for table in tables]
    summaries = [question_suite.get("summary") or {} for question_suite in suites]
    label = next((summary["name"] for summary in summaries if summary), None)
    if label is not None:
      scores[label] = [summary.get("score") for summary in summaries]
      intervals[label] = [_select_limits(summary) for summary in summaries]
  return {
    "suite": tables[0]["suite"] if tables else "",
    "workdir": workdir,
    "steps": steps,
    "mean": [table["mean"] for table in tables],
    "tasks": scores,
    "intervals": intervals,
  }


def score_interval(result: Mapping[str, Any]) -> dict[str, float] | None:
  """Return the interval of a task's score; None unless the score is of one metric that has it."""
  counted = result.get("counted", ())
  if len(counted) != 1:
    return None
  return _select_limits(result.get("intervals", {}).get(counted[0]) or {})


def _select_limits(interval: Mapping[str, Any]) -> dict[str, float] | None:
  """Return the limits of an interval alone; None if it has none."""
  if "low" not in interval:
    return None
  return {"low": interval["low"], "high": interval["high"]}


def _list_checkpoints(workdir: str) -> list[int]:
  """Return the steps of a workdir's checkpoints, in every process."""

  def list_steps() -> list[int]:
    if not as_path(f"{workdir}/checkpoints").exists():
      return []
    with Checkpoints(f"{workdir}/checkpoints") as checkpoints:
      return checkpoints.steps()

  return distributed.broadcast_from_first(list_steps)


def _wait_for_steps(workdir: str, every: int, finished: Collection[int]) -> Iterator[int]:
  """Yield the multiples of a number among the steps that a run saves, as it saves them.

  Args:
    workdir: the run.
    every: the number.
    finished: the steps that have tables, which are left out.
  """
  total_steps = read_identity(workdir)["total_steps"]
  done = set(finished)
  last_step = 0
  while True:
    available = _list_checkpoints(workdir)
    pending = [step for step in available if step % every == 0 and step not in done]
    if pending:
      done.add(pending[0])
      yield pending[0]
      continue
    newest = max(available, default=0)
    if newest >= total_steps:
      return
    if newest != last_step:
      last_step = newest
      process.log(f"waiting for the run: step {newest} of {total_steps}")
    time.sleep(_POLL_SECONDS)


def _read_tables(output: pathlib.Path) -> dict[int, dict[str, Any]]:
  """Return the finished tables of earlier steps, in every process.

  Raises:
    UserError: one is damaged.
  """

  def read() -> list[tuple[int, dict[str, Any]]]:
    tables = []
    for path in output.glob("step-*/results.json"):
      number = path.parent.name.removeprefix("step-")
      if number.isdecimal():
        expected = f"the table of a suite; delete {path.parent} to evaluate the step again"
        content = path.read_bytes()
        tables.append((int(number), checked_json.parse_json(content, dict, str(path), expected)))
    return tables

  return {step: table for step, table in distributed.broadcast_from_first(read)}


def _check_checkpoints(workdir: str, steps: Sequence[int]) -> None:
  """Raise UserError for a step without a checkpoint, before the first is fine-tuned."""

  available = _list_checkpoints(workdir)
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
    for name, score in zip(head[1:], scores):
      interval = results["intervals"].get(name, [])[number : number + 1] or [None]
      cells.append("–" if score is None else f"{score:.2f}")
      if score is not None and interval[0] is not None:
        cells[-1] += format_interval(interval[0])
    lines.append("| " + " | ".join(cells) + " |")
  title = f"# {results['suite']}: {results['workdir']}, by step of pretraining"
  return f"{title}\n\n" + "\n".join(lines) + "\n"
