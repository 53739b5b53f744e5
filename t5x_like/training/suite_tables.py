"""The results of a suite as JSON, as a Markdown table, and as a page with charts."""

import math
import pathlib
from typing import Any

from t5x_like.metrics import leaderboards
from t5x_like.training import report, suite_charts, suite_comparison
from t5x_like.training import workdir as workdirs

_LEADERBOARDS = {"glue": leaderboards.GLUE, "superglue": leaderboards.SUPERGLUE}
_DASH = "–"


def results(name: str, options, found: dict[str, dict[str, Any]], missing: dict[str, str]) -> dict[str, Any]:
  """What `results.json` holds. `average` is the leaderboard's, None unless every task is there; `mean` that of the
  tasks which are."""
  return {
    "suite": name,
    "workdir": ", ".join(options.workdirs),
    "from_scratch": options.from_scratch,
    "seeds": options.seeds,
    "average": None if missing or options.tasks else _average(name, found),
    "mean": _mean(found),
    "tasks": found,
    "missing": missing,
  }


def joined(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
  """The results of several suites as those of one, whose tasks are `<suite>/<task>`."""
  first = next(iter(parts.values()))
  whole = {
    key: {f"{name}/{task}": value for name, part in parts.items() for task, value in part[key].items()}
    for key in ("tasks", "missing")
  }
  return first | {"suite": ",".join(parts), "average": None, "mean": _mean(whole["tasks"])} | whole


def _mean(found: dict[str, dict[str, Any]]) -> float | None:
  """Of the tasks that were learned; questions asked without training are no part of it."""
  scores = [task["score"] for task in found.values() if task["runs"]]
  return sum(scores) / len(scores) if scores else None


def _average(name: str, found: dict[str, dict[str, Any]]) -> float | None:
  """The leaderboard's average, from the runs with the median score."""
  if name not in _LEADERBOARDS:
    return None
  by_task = {}
  for task, result in found.items():
    scores = {key.split("/", 1)[1]: value for key, value in result["metrics"].items() if value is not None}
    scores |= {key.split("/", 1)[0]: value for key, value in result["metrics"].items() if key.endswith("/accuracy")}
    by_task[task] = scores
  try:
    return leaderboards.average(by_task, _LEADERBOARDS[name])
  except KeyError:
    return None


def markdown(found: dict[str, Any]) -> str:
  """One line for each task, then the mean and, where every task is there, the leaderboard's average."""
  several = found["seeds"] > 1
  head = ["task", "score", *(["best", "spread"] if several else []), "rate", "details"]
  lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
  for task, result in found["tasks"].items():
    details = ", ".join(f"{name} {_shown(result['metrics'].get(name))}" for name in result["counted"])
    numbers = [result["score"], *([result["best"], result["spread"]] if several else [])]
    rate = rate_of(result)
    lines.append("| " + " | ".join([task, *map(_shown, numbers), rate, details]) + " |")
  for task, why in found["missing"].items():
    lines.append(f"| {task} | {_DASH} " + "| " * (len(head) - 3) + f"| {why} |")
  blanks = "| " * (len(head) - 2) + "|"
  lines.append(f"| mean of these | {_shown(found['mean'])} {blanks}")
  if found["average"] is not None:
    lines.append(f"| average, as the leaderboard's | {_shown(found['average'])} {blanks}")
  what = "the median of the seeds at the best rate" if several else "one seed"
  scratch = ", from scratch" if found["from_scratch"] else ""
  table = f"# {found['suite']}: {found['workdir']}{scratch}\n\n" + "\n".join(lines) + f"\n\nScores are {what}.\n"
  return table + (f"\n{suite_comparison.markdown(found['compared'])}" if "compared" in found else "")


def rate_of(result: dict[str, Any]) -> str:
  """The learning rate of a task, as the tables show it."""
  if not result["runs"]:
    return "not trained"
  return "the recipe's" if result["rate"] is None else f"{result['rate']:g}"


def _shown(value: float | None) -> str:
  return _DASH if value is None or not math.isfinite(value) else f"{value:.2f}"


def write(output: pathlib.Path, found: dict[str, Any]) -> None:
  """Writes `results.json`, `results.md` and `results.html`; UserError if that fails."""
  workdirs.write(output, "results.json", found)
  workdirs.write_text(output, "results.md", markdown(found))
  charts = [
    chart for task, result in found["tasks"].items() if result["runs"] for chart in suite_charts.charts(task, result)
  ]
  workdirs.write_text(
    output, "results.html", report.render("suite.html.j2", found=found, charts=charts, shown=_shown, rate_of=rate_of)
  )
