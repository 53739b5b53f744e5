"""The results of a suite as JSON, as a Markdown table, and as a page with charts."""

import math
import pathlib
from typing import Any

from t5x_like.benchmarks import charts as suite_charts
from t5x_like.benchmarks import comparison
from t5x_like.benchmarks import facts as suite_facts
from t5x_like.report import page
from t5x_like.training import workdir as workdirs

_LEADERBOARDS = ("glue", "superglue")
_DASH = "–"


def build_results(
  name: str, options, found: dict[str, dict[str, Any]], missing: dict[str, str]
) -> dict[str, Any]:
  """Return the content of `results.json`.

  `mean` is of the tasks that are there. `average` is the leaderboard's, which counts a task once,
  with the mean of its
  scores: the same mean, but None unless every task of GLUE or SuperGLUE is there with all of its
    scores.
  """
  undefined = any(
    result["metrics"].get(key) is None for result in found.values() for key in result["counted"]
  )
  whole = name in _LEADERBOARDS and found and not (missing or options.tasks or undefined)
  return {
    "suite": name,
    "workdir": ", ".join(options.workdirs),
    "from_scratch": options.from_scratch,
    "seeds": options.seeds
    or max((len({run["seed"] for run in one["runs"]}) for one in found.values()), default=1),
    "average": _mean(found) if whole else None,
    "mean": _mean(found),
    "versions": suite_facts.versions(),
    "tasks": found,
    "missing": missing,
  }


def join_results(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
  """Join the results of several suites into one, with tasks `<suite>/<task>`."""
  first = next(iter(parts.values()))
  whole = {
    key: {
      f"{name}/{task}": value for name, part in parts.items() for task, value in part[key].items()
    }
    for key in ("tasks", "missing")
  }
  about = {
    "suite": ",".join(parts),
    "seeds": max(part["seeds"] for part in parts.values()),
    "average": None,
  }
  return first | about | {"mean": _mean(whole["tasks"])} | whole


def _mean(found: dict[str, dict[str, Any]]) -> float | None:
  """Average over the tasks that were learned; questions asked without training are no part of
  it."""
  scores = [task["score"] for task in found.values() if task["runs"]]
  return sum(scores) / len(scores) if scores else None


def markdown(found: dict[str, Any]) -> str:
  """Return notes, a line for each task, the mean and, where every task is there, the leaderboard's
  average."""
  head = column_names(found)
  lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
  lines += [
    "| " + " | ".join([task, *task_cells(found, result)]) + " |"
    for task, result in found["tasks"].items()
  ]
  for task, why in found["missing"].items():
    lines.append(f"| {task} | {_DASH} " + "| " * (len(head) - 3) + f"| {why} |")
  blanks = "| " * (len(head) - 2) + "|"
  lines.append(f"| mean of these | {_shown(found['mean'])} {blanks}")
  if found["average"] is not None:
    lines.append(f"| average, as the leaderboard's | {_shown(found['average'])} {blanks}")
  scratch = ", from scratch" if found["from_scratch"] else ""
  made = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
  table = (
    f"# {found['suite']}: {found['workdir']}{scratch}\n\n{describe_columns(found)}\n\n"
    + "\n".join(lines)
    + f"\n\n{made}\n"
  )
  return table + (f"\n{comparison.markdown(found['compared'])}" if "compared" in found else "")


def describe_columns(found: dict[str, Any]) -> str:
  """Describe the columns."""
  facts = [result.get("facts", {}) for result in found["tasks"].values()]
  evaluations = max((one.get("evaluations", 1) for one in facts), default=1)
  words = "`score` is of the only evaluation of a run, so `last` is the same. "
  if evaluations > 1:
    words = (
      f"`score` is of the best of a run's evaluations, up to {evaluations}, by the first of its "
      "details and on the same examples, so it is a little better than it would be on others; "
      "`last` comes from the last evaluation. "
    )
  if found["seeds"] > 1:
    words += (
      "Of several seeds the run with the median score counts, with an even number the lower of "
      "the two in the middle, at the rate where it is best: score, last, details, intervals and "
      "charts are of this run. `best seed` is the score of the best run, whose predictions a "
      "submission has; `spread` is the best minus the worst. "
    )
  words += "`majority` is the score of giving the commonest label every time."
  if _published(found):
    words += " `published` are scores of other models, each in its authors' metric."
  return words


def column_names(found: dict[str, Any]) -> list[str]:
  """Return the names of the columns."""
  seeds = ["best seed", "spread"] if found["seeds"] > 1 else []
  published = ["published"] if _published(found) else []
  after = ["rate", "steps", "length", "truncated %", "examples", "seconds", "details"]
  return ["task", "score", "last", *seeds, "majority", *published, *after]


def _published(found: dict[str, Any]) -> bool:
  return any(result.get("published") for result in found["tasks"].values())


def task_cells(found: dict[str, Any], result: dict[str, Any]) -> list[str]:
  """Return the columns of a task, but for its name."""
  facts = result.get("facts", {})
  details = ", ".join(_detail(result, name) for name in result["counted"])
  seeds = [result["best"], result["spread"]] if found["seeds"] > 1 else []
  numbers = [result["score"], facts.get("last"), *seeds, facts.get("majority")]
  steps = f"{facts['steps']} of {facts['batch_size']}" if facts else _DASH
  counts = [
    _DASH if facts.get(key) is None else f"{facts[key]:.0f}" for key in ("examples", "seconds")
  ]
  scores = ", ".join(f"{score:.1f} {model}" for model, score in result.get("published", {}).items())
  published = [scores or _DASH] if _published(found) else []
  rows = [facts.get("length") or _DASH, _shown(facts.get("truncated"))]
  return [*map(_shown, numbers), *published, format_rate(result), steps, *rows, *counts, details]


def _detail(result: dict[str, Any], name: str) -> str:
  """Format a metric that the score counts, with its 95 % interval where the result has one."""
  around = result.get("intervals", {}).get(name)
  shown = f"{name} {_shown(result['metrics'].get(name))}"
  return shown if around is None else f"{shown} ({around['low']:.1f} to {around['high']:.1f})"


def format_rate(result: dict[str, Any]) -> str:
  """Format the learning rate of a task, as the tables show it."""
  if not result["runs"]:
    return "not trained"
  return "the recipe's" if result["rate"] is None else f"{result['rate']:g}"


def _shown(value: float | None) -> str:
  return _DASH if value is None or not math.isfinite(value) else f"{value:.2f}"


def write_results(output: pathlib.Path, found: dict[str, Any]) -> None:
  """Write `results.json`, `results.md` and `results.html`; raise UserError if that fails."""
  workdirs.write_json(output, "results.json", found)
  workdirs.write_text(output, "results.md", markdown(found))
  charts = [
    chart
    for task, result in found["tasks"].items()
    if result["runs"]
    for chart in suite_charts.draw_task_charts(task, result)
  ]
  workdirs.write_text(
    output,
    "results.html",
    page.render(
      pathlib.Path(__file__).with_name("suite.html.j2"),
      found=found,
      charts=charts,
      shown=_shown,
      notes=describe_columns(found),
      columns=column_names(found),
      cells=task_cells,
    ),
  )
