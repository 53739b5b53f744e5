"""Write the results of a suite as JSON, as a Markdown table, and as a page with charts."""

import math
import pathlib
from typing import Any

from t5x_like.benchmarks import charts as suite_charts
from t5x_like.benchmarks import comparison
from t5x_like.benchmarks import facts as suite_facts
from t5x_like.metrics.resampling import SAMPLES, format_interval
from t5x_like.report import page
from t5x_like.training import workdir as workdirs

_LEADERBOARDS = ("glue", "superglue")
_DASH = "–"  # a cell without a value


def build_results(
  name: str, options, task_results: dict[str, dict[str, Any]], missing: dict[str, str]
) -> dict[str, Any]:
  """Return the content of `results.json`.

  `mean` averages the tasks that have results, each with the mean of its metrics. `average` is the
  average of the GLUE or SuperGLUE leaderboard: the same number, but None unless every task of the
  suite has all of its metrics.
  """
  has_all_tasks = bool(task_results) and not missing and not options.tasks
  is_complete = name in _LEADERBOARDS and has_all_tasks
  for result in task_results.values():
    if any(result["metrics"].get(key) is None for key in result["counted"]):
      is_complete = False
  num_seeds = options.seeds
  if not num_seeds:
    seed_counts = [len({run["seed"] for run in result["runs"]}) for result in task_results.values()]
    num_seeds = max(seed_counts, default=1)
  return {
    "suite": name,
    "workdir": ", ".join(options.workdirs),
    "from_scratch": options.from_scratch,
    "seeds": num_seeds,
    "average": _mean_score(task_results) if is_complete else None,
    "mean": _mean_score(task_results),
    "versions": suite_facts.versions(),
    "tasks": task_results,
    "missing": missing,
  }


def join_results(suites: dict[str, dict[str, Any]]) -> dict[str, Any]:
  """Join the results of several suites, by their names, into one with tasks `<suite>/<task>`.

  Fields that the suites share, such as `workdir`, come from the first suite.
  """
  tasks = {}
  missing = {}
  for name, results in suites.items():
    tasks |= {f"{name}/{task}": result for task, result in results["tasks"].items()}
    missing |= {f"{name}/{task}": reason for task, reason in results["missing"].items()}
  first_results = next(iter(suites.values()))
  question_suites = {}
  for results in suites.values():
    question_suites |= results.get("question_suites", {})
  return {
    **first_results,
    "question_suites": question_suites,
    "suite": ",".join(suites),
    "seeds": max(results["seeds"] for results in suites.values()),
    "average": None,
    "mean": _mean_score(tasks),
    "tasks": tasks,
    "missing": missing,
  }


def _mean_score(task_results: dict[str, dict[str, Any]]) -> float | None:
  """Average the scores of the fine-tuned tasks, those with runs; the others were not trained."""
  scores = [result["score"] for result in task_results.values() if result["runs"]]
  return sum(scores) / len(scores) if scores else None


def markdown(results: dict[str, Any]) -> str:
  """Write the table of results in Markdown.

  The table has a line for each task, one for the mean and, if `average` is set, one for the
  leaderboard's average. A description of the columns precedes it.
  """
  if not any(result["runs"] for result in results["tasks"].values()):
    return question_markdown(results)
  columns = column_names(results)
  lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
  for task, result in results["tasks"].items():
    lines.append("| " + " | ".join([task, *task_cells(results, result)]) + " |")
  for task, reason in results["missing"].items():
    lines.append(f"| {task} | {_DASH} " + "| " * (len(columns) - 3) + f"| {reason} |")
  blanks = "| " * (len(columns) - 2) + "|"
  lines.append(f"| mean of the tasks above | {_format_score(results['mean'])} {blanks}")
  if results["average"] is not None:
    average = _format_score(results["average"])
    lines.append(f"| leaderboard average | {average} {blanks}")
  scratch = ", from scratch" if results["from_scratch"] else ""
  paragraphs = [
    f"# {results['suite']}: {results['workdir']}{scratch}",
    describe_columns(results),
    "\n".join(lines),
    *describe_summaries(results),
    _describe_versions(results),
  ]
  return _join_paragraphs(paragraphs, results)


def question_markdown(results: dict[str, Any]) -> str:
  """Write the table of questions that were answered without training, in Markdown."""
  is_centred = any("chance" in result for result in results["tasks"].values())
  columns = ["task", "score", "95 % interval", "questions", "metric"]
  if is_centred:
    columns.insert(3, "centred")
  lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
  for task, result in results["tasks"].items():
    name = result["counted"][0]
    interval = result["intervals"].get(name)
    cells = [task, _format_score(result["score"]), _format_interval(interval)]
    if is_centred:
      cells.append(_format_score(centred_score(result)))
    lines.append("| " + " | ".join([*cells, str(result["examples"]), name]) + " |")
  for task, reason in results["missing"].items():
    lines.append(f"| {task} | {_DASH} " + "| " * (len(columns) - 3) + f"| {reason} |")
  paragraphs = [
    f"# {results['suite']}: {results['workdir']}",
    "\n".join(lines),
    *describe_summaries(results),
    f"Scores are in percent, intervals are 95 % percentile intervals of {SAMPLES:,} bootstrap "
    "samples of the questions; scores of 0 and 100 % have Wilson's intervals.",
    _describe_versions(results),
  ]
  return _join_paragraphs(paragraphs, results)


def centred_score(result: dict[str, Any]) -> float | None:
  """Return a score on the scale from guessing, 0, to a perfect score, 100."""
  if "chance" not in result:
    return None
  return 100.0 * (result["score"] - result["chance"]) / (100.0 - result["chance"])


def _format_interval(interval: dict[str, float] | None) -> str:
  return _DASH if interval is None else f"{interval['low']:.1f} to {interval['high']:.1f}"


def describe_summaries(results: dict[str, Any]) -> list[str]:
  """Describe the score of all tasks of each suite of questions."""
  lines = []
  for name, suite in results.get("question_suites", {}).items():
    summary = suite["summary"]
    if summary is not None:
      lines.append(
        f"**{summary['name']} {_format_score(summary['score'])}**{format_interval(summary)}, "
        f"{summary['tasks']} tasks, {name} version {suite['version']}"
      )
    elif suite["version"]:
      lines.append(
        f"{name} version {suite['version']}, of which questions are left out: no summary"
      )
  return lines


def _describe_versions(results: dict[str, Any]) -> str:
  """Return the paragraph of software versions."""
  return ", ".join(f"{name} {version}" for name, version in results["versions"].items())


def _join_paragraphs(paragraphs: list[str], results: dict[str, Any]) -> str:
  """Join the paragraphs of a table, and add the comparison if there is one."""
  text = "\n\n".join(paragraphs) + "\n"
  if "compared" in results:
    text += f"\n{comparison.markdown(results['compared'])}"
  return text


def describe_columns(results: dict[str, Any]) -> str:
  """Describe the columns of the table in a paragraph of Markdown."""
  facts = [result.get("facts", {}) for result in results["tasks"].values()]
  evaluations = max((run_facts.get("evaluations", 1) for run_facts in facts), default=1)
  text = "`score` comes from a run's only evaluation, so `last` is the same. "
  if evaluations > 1:
    text = (
      f"`score` comes from the best of a run's evaluations (up to {evaluations}), chosen by the "
      "first metric in `details` on the same examples, so it is slightly better than on new "
      "examples; `last` comes from the last evaluation. "
    )
  if results["seeds"] > 1:
    text += (
      "With several seeds, score, last, details, intervals and charts are of the run with the "
      "median score (the lower of the middle two for an even number of runs), at the learning "
      "rate where the median is best. `best seed` is the score of the best run, which makes the "
      "predictions of a submission; `spread` is the best score minus the worst. "
    )
  text += (
    "`majority` is the score of always predicting the most common label. Intervals in `details` "
    f"are 95 % percentile intervals of {SAMPLES:,} bootstrap samples of the examples."
  )
  if _has_published(results):
    text += " `published` lists scores of other models, each in its authors' metric."
  return text


def column_names(results: dict[str, Any]) -> list[str]:
  """Return the table's column names, which depend on the seeds and on published scores."""
  names = ["task", "score", "last"]
  if results["seeds"] > 1:
    names += ["best seed", "spread"]
  names.append("majority")
  if _has_published(results):
    names.append("published")
  return [*names, "rate", "steps", "length", "truncated %", "examples", "seconds", "details"]


def _has_published(results: dict[str, Any]) -> bool:
  return any(result.get("published") for result in results["tasks"].values())


def task_cells(results: dict[str, Any], result: dict[str, Any]) -> list[str]:
  """Return the cells of a task's line after its name, in the order of `column_names`."""
  facts = result.get("facts", {})
  cells = [_format_score(result["score"]), _format_score(facts.get("last"))]
  if results["seeds"] > 1:
    cells += [_format_score(result["best"]), _format_score(result["spread"])]
  cells.append(_format_score(facts.get("majority")))
  if _has_published(results):
    published = result.get("published", {}).items()
    cells.append(", ".join(f"{score:.1f} {model}" for model, score in published) or _DASH)
  cells.append(format_rate(result))
  cells.append(f"{facts['steps']} of {facts['batch_size']}" if facts else _DASH)
  cells.append(facts.get("length") or _DASH)
  cells.append(_format_score(facts.get("truncated")))
  cells.append(_format_count(facts.get("examples")))
  cells.append(_format_count(facts.get("seconds")))
  cells.append(", ".join(_format_detail(result, name) for name in result["counted"]))
  return cells


def _format_detail(result: dict[str, Any], name: str) -> str:
  """Format a metric of the score, with its 95 % interval if the result has one."""
  interval = result.get("intervals", {}).get(name)
  detail = f"{name} {_format_score(result['metrics'].get(name))}"
  if interval is not None:
    detail += format_interval(interval)
  return detail


def format_rate(result: dict[str, Any]) -> str:
  """Format a task's learning rate for the table: a number, "the recipe's" or "not trained"."""
  if not result["runs"]:
    return "not trained"
  return "the recipe's" if result["rate"] is None else f"{result['rate']:g}"


def _format_score(score: float | None) -> str:
  return _DASH if score is None or not math.isfinite(score) else f"{score:.2f}"


def _format_count(count: float | None) -> str:
  return _DASH if count is None else f"{count:.0f}"


def write_results(output: pathlib.Path, results: dict[str, Any]) -> None:
  """Write `results.json`, `results.md` and `results.html`; raise UserError if that fails."""
  workdirs.write_json(output, "results.json", results)
  workdirs.write_text(output, "results.md", markdown(results))
  charts = []
  for task, result in results["tasks"].items():
    if result["runs"]:
      charts += suite_charts.draw_task_charts(task, result)
  page_text = page.render(
    pathlib.Path(__file__).with_name("suite.html.j2"),
    results=results,
    charts=charts,
    format_score=_format_score,
    notes=describe_columns(results),
    summaries=describe_summaries(results),
    columns=column_names(results),
    task_cells=task_cells,
  )
  workdirs.write_text(output, "results.html", page_text)
