"""Write `report.html`: a run's config, curves and results in one self-contained file.

The page is a pure function of the workdir.
"""

import base64
import datetime
import io
import json
import math
import pathlib
import re
from typing import Any

import jax
import jinja2
from markupsafe import Markup, escape

from t5x_like import trust
from t5x_like.config import flatten
from t5x_like.errors import UserError, one_line
from t5x_like.files import checked_json, local
from t5x_like.files.paths import as_path
from t5x_like.interop import hf
from t5x_like.redaction import redact_config
from t5x_like.report import plan_table, readable
from t5x_like.report.charts import Metrics, charts, gaps, interval_curves, series
from t5x_like.report.charts import names as metric_names
from t5x_like.report.writer import read_metrics
from t5x_like.saved_model.model import merge_for_export
from t5x_like.saved_model.workdir import find_run

FILE = "report.html"
_MAX_SAMPLES = 8  # for each task
_SHOWN_SAMPLES = 4  # further samples are shown on a click
# Metrics of evaluations that do not measure quality, by the last part of their names.
COUNTS_AND_TIMES = ("seconds", "examples", "target_tokens", "sequences")
_UNSECTIONED = "run"  # the title of the config's keys without a section


def write_report(workdir, address=None) -> pathlib.Path:
  """Write `<workdir>/report.html` from the files of a workdir.

  These are `metrics.jsonl`, `config.json`, `environment.json`, `history.jsonl`, `sharding.txt`,
  `goodput.json`, `plan_comparison.json`, `samples/*.jsonl`, `pictures/*.png`,
  `suites/*/results.json` and `suites/*/steps.json`. Any of them may be missing; the report then
  says so. The same files always give the same bytes.

  Args:
    address: the workdir's address in the commands on the page; by default `workdir`.

  Raises:
    UserError: a file is corrupt, or the report cannot be written.
  """
  address = str(address or workdir)
  workdir = pathlib.Path(workdir)
  config = read_flat_object(workdir / "config.json")
  environment = read_flat_object(workdir / "environment.json")
  rows = metrics(workdir, config)
  starts = list(_starts(workdir / "history.jsonl"))
  sharding = (local.read_content(workdir / "sharding.txt") or b"").decode(errors="replace")
  html = render(
    pathlib.Path(__file__).with_name("page.html.j2"),
    name=workdir.absolute().name,
    subtitle=_subtitle(config),
    verdict=readable.verdict(rows, total_steps(config)),
    facts=readable.facts(rows, starts, environment, sharding),
    headlines=_headlines(rows, config),
    charts=charts(rows, loss_unit(config)),
    evals=_evals(rows),
    gaps=gaps(rows),
    not_finite=sum(value is None for row in rows for value in row.values()),
    benchmarks=_benchmarks(workdir / "suites"),
    suite_curves=_suite_curves(workdir / "suites"),
    samples=_samples(workdir / "samples"),
    shown_samples=_SHOWN_SAMPLES,
    pictures=_pictures(workdir / "pictures"),
    next_steps=readable.next_steps(
      address,
      config,
      readable.last_step(rows),
      total_steps(config),
      flags=_recipe_flags(starts),
      has_export=_has_export(workdir),
    ),
    config=_sections(config),
    environment=environment,
    goodput=read_flat_object(workdir / "goodput.json"),
    plan=_plan(workdir),
  )
  try:
    (as_path(workdir) / FILE).write_text(html)
  except OSError as error:
    raise UserError(
      f"{workdir / FILE}: report could not be written: {error.strerror or one_line(error)}"
    ) from error
  return workdir / FILE


def render(template: pathlib.Path, **values: Any) -> str:
  """Fill in a page's template; every value that it names must be passed."""
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(template.parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters["breakable"] = breakable
  return environment.get_template(template.name).render(**values)


def breakable(text: str) -> Markup:
  """Escape a name for a page, and allow line breaks after its underscores and slashes."""
  return Markup(re.sub("([_/]+)", r"\1<wbr>", str(escape(text))))


def _read_object(path: pathlib.Path) -> dict[str, Any]:
  """Return the object in a JSON file; it is empty if the file is missing.

  Raises:
    UserError: the file holds something else.
  """
  content = local.read_content(path)
  if content is None:
    return {}
  try:
    value = json.loads(content)
    if not isinstance(value, dict):
      raise ValueError(f"found {type(value).__name__}, expected an object")
    return value
  except ValueError as error:
    raise UserError(f"{path}: not a JSON object: {one_line(error)}; repair or remove it") from None


def _starts(path: pathlib.Path):
  """Yield the lines of `history.jsonl` that have a time."""

  def check(row: dict[str, Any]) -> None:
    datetime.datetime.fromisoformat(row["time"])

  for row, _ in checked_json.read_rows(local.read_content(path) or b"", path, check):
    yield row


def _recipe_flags(starts: list[dict[str, Any]]) -> list[str]:
  """Return the recipe's flags of the last start that recorded flags; [] if none did."""
  for row in reversed(starts):
    flags = row.get("flags")
    if isinstance(flags, list) and flags:
      return [flag for flag in flags if re.match(r"--config[.=]", str(flag))]
  return []


def _has_export(workdir: pathlib.Path) -> bool:
  """Return whether the run's model can be exported to `transformers`."""
  try:
    run = find_run(str(workdir), None)
    return run is not None and hf.can_save(jax.eval_shape(merge_for_export, run.model))
  except UserError:  # a config without a complete model
    return False


def read_flat_object(path: pathlib.Path) -> dict[str, str]:
  """Return the values of a JSON file by dotted key, without secrets and signature.

  The result is empty if the file is missing.

  Raises:
    UserError: the file holds no JSON object.
  """
  content = _read_object(path)
  content.pop(trust.SIGNATURE, None)
  texts = {}
  for key, value in flatten(redact_config(content), keep_empty=True).items():
    texts[key] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
  return texts


def total_steps(config: dict[str, str]) -> int | None:
  """Return the last step of a flat config; None if it has none."""
  total = config.get("total_steps", "")
  return int(total) if total.isdecimal() else None


def metrics(workdir: pathlib.Path, config: dict[str, str]) -> Metrics:
  """Return the lines of `metrics.jsonl`.

  Older versions wrote entropies and perplexities of losses that are not likelihoods; these are
  left out.
  """
  rows = read_metrics(workdir)
  objective = readable.objective_class(config)
  if objective is None or objective.likelihood:
    return Metrics(rows)
  for row in rows:
    for name in list(row):
      if name.endswith(("/unigram_entropy", "/perplexity")):
        del row[name]
  return Metrics(rows)


def loss_unit(config: dict[str, str]) -> str:
  """Return the unit of the loss of a flat config.

  It is empty for a loss without a unit, and for an objective from outside of this package.
  """
  objective = readable.objective_class(config)
  return "" if objective is None else objective.unit


def _subtitle(config: dict[str, str]) -> str:
  keys = ("model.name", "model.variant", "model.size", "task.name")
  return " · ".join(config[key] for key in keys if key in config)


def _headlines(rows, config: dict[str, str]) -> list[dict[str, str]]:
  """Return the numbers at the top: {label, value, note}."""
  headlines = []

  def add(label: str, value: str, note: str) -> None:
    headlines.append({"label": label, "value": value, "note": note})

  if rows:
    step = readable.last_step(rows)
    total = total_steps(config)
    add("Steps", f"{step:,}", f"of {total:,}" if total else "")
  _, loss = series(rows, "train/loss")
  if len(loss):
    recent = max(1, min(100, len(loss) // 10))
    add("Training loss", f"{loss[-recent:].mean():.3f}", f"from {loss[0]:.3f}")
  tasks = _tasks(rows)
  for task in tasks:
    prefix = f"{task}: " if len(tasks) > 1 else ""
    _, loss = series(rows, f"eval/{task}/loss")
    _, entropy = series(rows, f"eval/{task}/unigram_entropy")
    if len(loss):
      note = f"unigram entropy {entropy[-1]:.3f}" if len(entropy) else f"best {loss.min():.3f}"
      add("Eval loss", f"{loss[-1]:.3f}", f"{prefix}{note}")
    _, accuracy = series(rows, f"eval/{task}/accuracy")
    if len(accuracy):
      note = f"{prefix}best {100 * accuracy.max():.1f}%"
      add("Eval accuracy", f"{100 * accuracy[-1]:.1f}%", note)
  for unit in ("Tokens", "Images"):
    _, rate = series(rows, f"train/{unit.lower()}_per_second")
    if len(rate):
      add(f"{unit} / s", f"{_median(rate):,.0f}", "median")
  _, mfu = series(rows, "train/mfu")
  if len(mfu):
    add("MFU", f"{100 * _median(mfu):.1f}%", "median")
  _, goodput = series(rows, "train/goodput")
  if len(goodput):
    add("Goodput", f"{100 * goodput[-1]:.0f}%", "of the time")
  return headlines


def _sections(config: dict[str, str]) -> list[dict[str, Any]]:
  """Return the sections of a flat config: {title, summary, values}.

  The first holds the keys without a section. A summary is the section's name and variant, if any.
  """
  sections: dict[str, dict[str, str]] = {}
  if any("." not in key for key in config):
    sections[_UNSECTIONED] = {}
  for key, value in config.items():
    title, _, name = key.partition(".")
    if name:
      sections.setdefault(title, {})[name] = value
    else:
      sections[_UNSECTIONED][title] = value
  tables = []
  for title, values in sections.items():
    main_values = [values[name] for name in ("name", "variant", "size") if name in values]
    tables.append({"title": title, "summary": " · ".join(main_values), "values": values})
  return tables


def _median(values) -> float:
  return sorted(values)[len(values) // 2]


def _tasks(rows) -> list[str]:
  """Return the tasks that evaluations name, in alphabetical order."""
  tasks = set()
  for name in metric_names(rows):
    if name.startswith("eval/") and name.count("/") > 1:
      task, _, _ = name.removeprefix("eval/").rpartition("/")
      tasks.add(task)
  return sorted(tasks)


def _evals(rows) -> list[dict[str, Any]]:
  """Return the metrics of evaluations by task: {task, step, rows, has_history}.

  A row is {metric, last, step, first, lowest, highest}; counts and times come last. A task that was
  evaluated once has no history: its first, lowest and highest values are its last. `step` is the
  step of all last values, "" if their steps differ.
  """
  rows_by_task: dict[str, list[dict[str, Any]]] = {}
  num_points: dict[str, int] = {}
  for name in metric_names(rows):
    if not name.startswith("eval/"):
      continue
    steps, values = series(rows, name)
    if not len(steps):
      continue
    task, _, metric = name.removeprefix("eval/").rpartition("/")
    row = {
      "metric": metric,
      "step": f"{steps[-1]:,}",
      "last": number(values[-1]),
      "first": number(values[0]),
      "lowest": number(values.min()),
      "highest": number(values.max()),
    }
    rows_by_task.setdefault(task, []).append(row)
    num_points[task] = max(num_points.get(task, 0), len(steps))
  tables = []
  for task, task_rows in sorted(rows_by_task.items()):
    task_rows.sort(key=lambda row: row["metric"] in COUNTS_AND_TIMES)
    last_steps = {row["step"] for row in task_rows}
    tables.append(
      {
        "task": task,
        "step": last_steps.pop() if len(last_steps) == 1 else "",
        "rows": task_rows,
        "has_history": num_points[task] > 1,
      }
    )
  return tables


def number(value: float) -> str:
  """Format a value of a metric for a table."""
  if not math.isfinite(value):
    return "–"
  if value == int(value) and abs(value) >= 100:
    return f"{value:,.0f}"
  return f"{value:.4g}"


def _plan(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Return the plan and the measurements: {title, rows, deviations}; None without a plan."""
  comparison = plan_table.read_comparison(workdir)
  if comparison is None:
    return None
  return {
    "title": f"{comparison.topology}, over {comparison.steps:,} steps",
    "rows": plan_table.table_rows(comparison),
    "deviations": plan_table.deviation_parts(comparison),
  }


def _benchmarks(directory: pathlib.Path) -> list[dict[str, Any]]:
  """Return the comparisons of suites: {name, names, rows} of a suite, two models and its tasks.

  `benchmarks/comparison.py` makes them.
  """
  comparisons = []
  for path in sorted(directory.glob("*/results.json")):
    comparison = _read_object(path).get("compared")
    if comparison:
      comparisons.append({"name": path.parent.name} | comparison)
  return comparisons


def _suite_curves(directory: pathlib.Path) -> list[dict[str, str]]:
  """Return {name, svg} of each suite that was evaluated at several steps (`benchmarks/steps.py`).

  Raises:
    UserError: a file does not hold scores by step.
  """
  curves = []
  for path in sorted(directory.glob("*/steps.json")):
    table = _read_object(path)
    name = f"{path.parent.name} by step"
    try:
      svg = interval_curves(table["steps"], table["tasks"], table.get("intervals", {}), name)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
      raise UserError(
        f"{path}: found no scores by step ({one_line(error)}); delete it, or repeat the command "
        "that wrote it"
      ) from None
    curves.append({"name": path.parent.name, "svg": svg})
  return curves


def _pictures(directory: pathlib.Path) -> list[dict[str, str]]:
  """Return the pictures of a run: {title, data}, where data is a data URI."""
  pictures = []
  for path in sorted(directory.glob("*.png")):
    data = local.read_content(path) or b""
    try:
      from PIL import Image

      with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
        title = image.info.get("Title", path.stem)
    except Exception as error:
      raise UserError(f"{path}: not a PNG file ({one_line(error)}); remove it") from None
    base64_text = base64.b64encode(data).decode()
    pictures.append({"title": title, "data": f"data:image/png;base64,{base64_text}"})
  return pictures


def _samples(directory: pathlib.Path) -> list[dict[str, Any]]:
  """Return the newest decoded examples of every task: {task, step, rows, status, good}."""
  by_task: dict[str, list[dict]] = {}
  for path in sorted(directory.glob("*.jsonl")):
    lines = (local.read_content(path) or b"").splitlines()
    for line_number, line in enumerate(lines, start=1):
      example = _parse_sample(line, path, line_number)
      by_task.setdefault(example["task"], []).append(example)
  samples = []
  for task in sorted(by_task):
    newest = max(example["step"] for example in by_task[task])
    examples = [example for example in by_task[task] if example["step"] == newest]
    for example in examples[:_MAX_SAMPLES]:
      samples.append({"task": task, "step": newest} | readable.sample(example["texts"]))
  return samples


def _parse_sample(line: bytes, path: pathlib.Path, line_number: int) -> dict[str, Any]:
  """Return a line of a file of samples as {task, step, texts}; see `readable.sample` for texts."""
  try:
    row = json.loads(line)
    texts = {name: str(row[name]) for name in ("input", "target", "prediction")}
    for name in ("original", "filled", "shows"):
      if name in row:
        texts[name] = str(row[name])
    return {"task": str(row.get("task", path.stem)), "step": int(row["step"]), "texts": texts}
  except (ValueError, TypeError, KeyError) as error:
    raise UserError(
      f"{path}:{line_number}: expected an object with input, target, prediction and step: "
      f"{one_line(error)}"
    ) from None
