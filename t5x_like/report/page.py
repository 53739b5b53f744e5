"""`report.html`: a run's config, curves and results in one self-contained file; a pure function of
the workdir."""

import base64
import datetime
import io
import json
import math
import pathlib
from typing import Any

import jinja2

from t5x_like import objectives, slots, trust
from t5x_like.errors import UserError, one_line
from t5x_like.files import checked_json, local
from t5x_like.files.paths import as_path
from t5x_like.redaction import redact_config
from t5x_like.report import readable
from t5x_like.report.charts import Metrics, charts, gaps, series
from t5x_like.report.charts import names as metric_names
from t5x_like.report.writer import read_metrics

FILE = "report.html"
_SAMPLES_SHOWN = 8


def write_report(workdir) -> pathlib.Path:
  """Write `<workdir>/report.html` from `metrics.jsonl`, `config.json`, `environment.json`,
  `history.jsonl`, `sharding.txt`, `goodput.json`, `samples/*.jsonl`, `pictures/*.png` and
  `suites/*/results.json`.

  Any of them may be missing; the report then says so. The same files always give the same bytes.

  Raises:
    UserError: one of them is corrupt or the report cannot be written.
  """
  workdir = pathlib.Path(workdir)
  config, environment = (
    flat_object(workdir / name) for name in ("config.json", "environment.json")
  )
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
    samples=_samples(workdir / "samples"),
    pictures=_pictures(workdir / "pictures"),
    config=config,
    environment=environment,
    goodput=flat_object(workdir / "goodput.json"),
  )
  try:
    (as_path(workdir) / FILE).write_text(html)
  except OSError as error:
    raise UserError(
      f"{workdir / FILE}: report could not be written: {error.strerror or one_line(error)}"
    ) from error
  return workdir / FILE


def render(template: pathlib.Path, **values: Any) -> str:
  """Make a page from a template; all of its values must be given."""
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(template.parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  return environment.get_template(template.name).render(**values)


def _read_object(path: pathlib.Path) -> dict[str, Any]:
  content = local.read_content(path)
  if content is None:
    return {}
  try:
    found = json.loads(content)
    if not isinstance(found, dict):
      raise ValueError(f"found {type(found).__name__}, expected an object")
    return found
  except ValueError as error:
    raise UserError(f"{path}: not a JSON object: {one_line(error)}; repair or remove it") from None


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
  """Flatten a nested dict to {"a.b": "text"}, in the same order."""
  found = {}
  for name, value in tree.items():
    if isinstance(value, dict) and value:
      found |= _flat(value, f"{prefix}{name}.")
    else:
      found[f"{prefix}{name}"] = (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
      )
  return found


def _starts(path: pathlib.Path):
  """Yield the lines of `history.jsonl` that have a time."""

  def check(row: dict[str, Any]) -> None:
    datetime.datetime.fromisoformat(row["time"])

  return (row for row, _ in checked_json.read_rows(local.read_content(path) or b"", path, check))


def flat_object(path: pathlib.Path) -> dict[str, str]:
  """Return the values of a JSON file by dotted key, without secrets and signature; {} if it is
  missing.

  Raises:
    UserError: it holds no JSON object.
  """
  content = _read_object(path)
  content.pop(trust.SIGNATURE, None)
  return _flat(redact_config(content))


def total_steps(config: dict[str, str]) -> int | None:
  """Return the last step of a config by dotted key; None if it has none."""
  total = config.get("total_steps", "")
  return int(total) if total.isdecimal() else None


def metrics(workdir: pathlib.Path, config: dict[str, str]) -> Metrics:
  """Return the lines of `metrics.jsonl`, without entropies and perplexities that older versions
  gave other losses."""
  rows = read_metrics(workdir)
  objective = _objective(config)
  if objective is None or objective.likelihood:
    return Metrics(rows)
  wrong = ("/unigram_entropy", "/perplexity")
  return Metrics(
    [{name: value for name, value in row.items() if not name.endswith(wrong)} for row in rows]
  )


def loss_unit(config: dict[str, str]) -> str:
  """Return the unit of the loss of a config by dotted key; "" without one, or for an objective from
  elsewhere."""
  objective = _objective(config)
  return "" if objective is None else objective.unit


def _objective(config: dict[str, str]) -> Any:
  """Return the class of the objective of a config by dotted key; None for one from elsewhere."""
  name = config.get("objective.name", "")
  if name not in slots.names(objectives):
    return None
  return slots.find("config.objective.name", name, objectives, "Objective")


def _subtitle(config: dict[str, str]) -> str:
  parts = [
    config[name]
    for name in ("model.name", "model.variant", "model.size", "task.name")
    if name in config
  ]
  return " · ".join(parts)


def _headlines(rows, config: dict[str, str]) -> list[dict[str, str]]:
  """Return the numbers at the top: {label, value, note}."""
  shown = []
  if rows:
    step = max(row["step"] for row in rows)
    total = total_steps(config)
    shown.append({"label": "Steps", "value": f"{step:,}", "note": f"of {total:,}" if total else ""})
  _, loss = series(rows, "train/loss")
  if len(loss):
    last = loss[-max(1, min(100, len(loss) // 10)) :].mean()
    shown.append({"label": "Training loss", "value": f"{last:.3f}", "note": f"from {loss[0]:.3f}"})
  for task in _tasks(rows):
    _, loss = series(rows, f"eval/{task}/loss")
    _, entropy = series(rows, f"eval/{task}/unigram_entropy")
    if len(loss):
      note = f"unigram entropy {entropy[-1]:.3f}" if len(entropy) else f"best {loss.min():.3f}"
      shown.append({"label": "Eval loss", "value": f"{loss[-1]:.3f}", "note": f"{task}: {note}"})
    _, accuracy = series(rows, f"eval/{task}/accuracy")
    if len(accuracy):
      best = f"best {100 * accuracy.max():.1f}%"
      shown.append(
        {"label": "Eval accuracy", "value": f"{100 * accuracy[-1]:.1f}%", "note": f"{task}: {best}"}
      )
  for of in ("Tokens", "Images"):
    _, rate = series(rows, f"train/{of.lower()}_per_second")
    if len(rate):
      shown.append(
        {"label": f"{of} per second", "value": f"{_median(rate):,.0f}", "note": "median"}
      )
  _, mfu = series(rows, "train/mfu")
  if len(mfu):
    shown.append({"label": "MFU", "value": f"{100 * _median(mfu):.1f}%", "note": "median"})
  _, goodput = series(rows, "train/goodput")
  if len(goodput):
    shown.append(
      {
        "label": "Goodput",
        "value": f"{100 * goodput[-1]:.0f}%",
        "note": "of the time since the first start",
      }
    )
  return shown


def _median(values) -> float:
  return sorted(values)[len(values) // 2]


def _tasks(rows) -> list[str]:
  names = [name for name in metric_names(rows) if name.startswith("eval/") and name.count("/") > 1]
  return sorted({name.removeprefix("eval/").rpartition("/")[0] for name in names})


def _evals(rows) -> list[dict[str, str]]:
  """Return a row for each metric of evaluations: {task, metric, last, step, first, lowest,
  highest}."""
  table = []
  for name in [name for name in metric_names(rows) if name.startswith("eval/")]:
    steps, values = series(rows, name)
    if len(steps):
      task, _, metric = name.removeprefix("eval/").rpartition("/")
      numbers = {
        "last": values[-1],
        "first": values[0],
        "lowest": values.min(),
        "highest": values.max(),
      }
      line = {"task": task, "metric": metric, "step": f"{steps[-1]:,}"}
      table.append(line | {key: number(value) for key, value in numbers.items()})
  return sorted(table, key=lambda line: line["task"])


def number(value: float) -> str:
  """Format a value of a metric for a table."""
  if not math.isfinite(value):
    return "–"
  return f"{value:,.0f}" if value == int(value) and abs(value) >= 100 else f"{value:.4g}"


def _benchmarks(directory: pathlib.Path) -> list[dict[str, Any]]:
  """Return the comparisons of suites by directory: {name, names, rows}, see
  `suite_comparison.compared`."""
  found = {
    path.parent.name: _read_object(path).get("compared")
    for path in sorted(directory.glob("*/results.json"))
  }
  return [{"name": name} | compared for name, compared in found.items() if compared]


def _pictures(directory: pathlib.Path) -> list[dict[str, str]]:
  """Return the pictures of a run on images, see `pictures.write`: {title, data}, the latter as a
  data URI."""
  found = []
  for path in sorted(directory.glob("*.png")):
    data = local.read_content(path) or b""
    try:
      from PIL import Image

      with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
        title = image.info.get("Title", path.stem)
    except Exception as error:
      raise UserError(f"{path}: not a PNG file ({one_line(error)}); remove it") from None
    found.append(
      {"title": title, "data": f"data:image/png;base64,{base64.b64encode(data).decode()}"}
    )
  return found


def _samples(directory: pathlib.Path) -> list[dict[str, Any]]:
  """Return the newest decoded examples of every task: {task, step, rows, status, good}, see
  `readable.sample`."""
  found: dict[str, list[dict]] = {}
  for path in sorted(directory.glob("*.jsonl")):
    for number, line in enumerate((local.read_content(path) or b"").splitlines(), start=1):
      try:
        sample = json.loads(line)
        texts = {name: str(sample[name]) for name in ("input", "target", "prediction")}
        texts |= {
          name: str(sample[name]) for name in ("original", "filled", "shows") if name in sample
        }
        entry = {
          "task": str(sample.get("task", path.stem)),
          "step": int(sample["step"]),
          "texts": texts,
        }
      except (ValueError, TypeError, KeyError) as error:
        raise UserError(
          f"{path}:{number}: expected an object with input, target, prediction and step: "
          f"{one_line(error)}"
        ) from None
      found.setdefault(entry["task"], []).append(entry)
  shown = []
  for task in sorted(found):
    newest = max(entry["step"] for entry in found[task])
    for entry in [e for e in found[task] if e["step"] == newest][:_SAMPLES_SHOWN]:
      shown.append({"task": task, "step": newest} | readable.sample(entry["texts"]))
  return shown
