"""Several runs on one page: verdicts, last evaluations, curves on the same axes, and how their
configs differ."""

import pathlib
from collections.abc import Sequence
from typing import Any

from t5x_like.errors import UserError
from t5x_like.files import outputs
from t5x_like.files.mirror import copy_small_files
from t5x_like.report import charts, page, readable
from t5x_like.report.writer import FILE

_MOST_CURVES = 12
# of evaluations, the same for all or of no interest
_TIMES = ("seconds", "examples", "target_tokens", "sequences")
# Keys that every run has its own value of, or that say where it ran.
_OWN = ("features.",)


def check(workdir: str) -> pathlib.Path:
  """Return a workdir, or a copy of an address's small files; raise UserError if it has neither
  metrics nor config."""
  folder = copy_small_files(workdir)
  if not any((folder / name).is_file() for name in (FILE, "config.json")):
    raise UserError(
      f"{workdir}: holds no run ({FILE} and config.json are not there); give the workdirs of runs"
    )
  return folder


def write(workdirs: Sequence[str], output: str) -> None:
  """Write the page that compares runs; raise UserError if one is no run or corrupt, or the page
  cannot be written."""
  folders = dict(zip(_names(workdirs), map(check, workdirs)))
  names = list(folders)
  configs = {name: page.flat_object(folder / "config.json") for name, folder in folders.items()}
  metrics = {name: page.metrics(folder, configs[name]) for name, folder in folders.items()}
  html = page.render(
    pathlib.Path(__file__).with_name("comparison.html.j2"),
    names=names,
    verdicts=[
      (name, readable.verdict(metrics[name], page.total_steps(configs[name]))) for name in names
    ],
    evals=_evals(metrics),
    charts=_charts(metrics),
    differences=_differences(configs),
  )
  outputs.write_output(output, html)


def _names(workdirs: Sequence[str]) -> list[str]:
  """Return the last parts of the workdirs that tell them apart."""
  for count in range(1, 10):
    names = ["/".join(pathlib.Path(workdir).absolute().parts[-count:]) for workdir in workdirs]
    if len(set(names)) == len(names):
      return names
  return [f"{number}: {workdir}" for number, workdir in enumerate(workdirs, 1)]


def _evals(metrics: dict[str, charts.Rows]) -> list[tuple[str, list[str]]]:
  """Return each metric of evaluations with its last value in every run; "–" for none."""
  names = dict.fromkeys(name for rows in metrics.values() for name in charts.names(rows))
  found = []
  for name in names:
    if name.startswith("eval/") and name.rpartition("/")[2] not in _TIMES:
      last = [charts.series(rows, name)[1] for rows in metrics.values()]
      found.append(
        (
          name.removeprefix("eval/"),
          [page.number(values[-1]) if len(values) else "–" for values in last],
        )
      )
  return found


def _charts(metrics: dict[str, charts.Rows]) -> list[dict[str, Any]]:
  """Draw the losses, and the other metrics of evaluations that several runs have."""
  names = [
    "train/loss",
    *(f"eval/{name}" for name, values in _evals(metrics) if sum(v != "–" for v in values) > 1),
  ]
  runs = {
    name: {run: rows for run, rows in metrics.items() if len(charts.series(rows, name)[0])}
    for name in names
  }
  return [
    {"title": name, "svg": charts.curves(runs[name], name)}
    for name in names[:_MOST_CURVES]
    if runs[name]
  ]


def _differences(configs: dict[str, dict[str, str]]) -> list[tuple[str, list[str]]]:
  """Return the keys whose values differ, with the value in every run."""
  keys = dict.fromkeys(
    key for config in configs.values() for key in config if not key.startswith(_OWN)
  )
  table = [(key, [config.get(key, "–") for config in configs.values()]) for key in keys]
  return [(key, values) for key, values in table if len(set(values)) > 1]
