"""Compare runs on one page: verdicts, last evaluations, curves and differences of configs."""

import pathlib
from collections.abc import Sequence
from typing import Any

from t5x_like.errors import UserError
from t5x_like.files import outputs
from t5x_like.files.mirror import copy_small_files
from t5x_like.report import charts, page, readable
from t5x_like.report.writer import FILE

_MAX_CURVES = 12
# Prefixes of config keys that follow from other keys.
_DERIVED_KEYS = ("features.",)


def check(workdir: str) -> pathlib.Path:
  """Check that a workdir holds a run.

  Returns:
    The workdir or, if it is at an address, a local copy of its small files.

  Raises:
    UserError: it has neither metrics nor a config.
  """
  folder = copy_small_files(workdir)
  if not any((folder / name).is_file() for name in (FILE, "config.json")):
    raise UserError(
      f"{workdir}: holds no run ({FILE} and config.json are not there); give the workdirs of runs"
    )
  return folder


def write(workdirs: Sequence[str], output: str) -> None:
  """Write an HTML page that compares runs.

  Raises:
    UserError: a workdir holds no run or is corrupt, or the page cannot be written.
  """
  names = _name_runs(workdirs)
  configs = {}
  metrics = {}
  verdicts = []
  for name, workdir in zip(names, workdirs, strict=True):
    folder = check(workdir)
    configs[name] = page.read_flat_object(folder / "config.json")
    metrics[name] = page.metrics(folder, configs[name])
    verdict = readable.verdict(metrics[name], page.total_steps(configs[name]))
    verdicts.append((name, verdict))
  html = page.render(
    pathlib.Path(__file__).with_name("comparison.html.j2"),
    names=names,
    verdicts=verdicts,
    evals=_group_by_prefix(_tabulate_evals(metrics), "/"),
    charts=_draw_charts(metrics),
    differences=_group_by_prefix(_compare_configs(configs), "."),
  )
  outputs.write_output(output, html)


def _group_by_prefix(
  table: list[tuple[str, list[str]]], separator: str
) -> list[tuple[str, list[tuple[str, list[str]]]]]:
  """Return the rows of a table by the part of their names before the last separator.

  Names without one come first.
  """
  groups: dict[str, list[tuple[str, list[str]]]] = {"": []}
  for name, cells in table:
    prefix, _, key = name.rpartition(separator)
    groups.setdefault(prefix, []).append((key, cells))
  return [(prefix, rows) for prefix, rows in groups.items() if rows]


def _name_runs(workdirs: Sequence[str]) -> list[str]:
  """Name each run by the end of its workdir's path, as short as the names stay distinct."""
  paths = [pathlib.Path(workdir).absolute() for workdir in workdirs]
  for num_parts in range(1, 10):
    names = ["/".join(path.parts[-num_parts:]) for path in paths]
    if len(set(names)) == len(names):
      return names
  return [f"{number}: {workdir}" for number, workdir in enumerate(workdirs, 1)]


def _tabulate_evals(metrics: dict[str, charts.Rows]) -> list[tuple[str, list[str]]]:
  """Return (metric of an evaluation, its last value in every run, or "–")."""
  names: dict[str, None] = {}
  for rows in metrics.values():
    names |= dict.fromkeys(charts.names(rows))
  table = []
  for name in names:
    _, _, metric = name.rpartition("/")
    if not name.startswith("eval/") or metric in page.COUNTS_AND_TIMES:
      continue
    cells = []
    for rows in metrics.values():
      _, values = charts.series(rows, name)
      cells.append(page.number(values[-1]) if len(values) else "–")
    table.append((name.removeprefix("eval/"), cells))
  return table


def _draw_charts(metrics: dict[str, charts.Rows]) -> list[dict[str, Any]]:
  """Draw the training losses, and each metric of evaluations that several runs have."""
  names = ["train/loss"]
  for name, cells in _tabulate_evals(metrics):
    num_runs = len(cells) - cells.count("–")
    if num_runs > 1:
      names.append(f"eval/{name}")
  drawings = []
  for name in names[:_MAX_CURVES]:
    runs = {}
    for run, rows in metrics.items():
      steps, _ = charts.series(rows, name)
      if len(steps):
        runs[run] = rows
    if runs:
      drawings.append({"title": name, "svg": charts.curves(runs, name)})
  return drawings


def _compare_configs(configs: dict[str, dict[str, str]]) -> list[tuple[str, list[str]]]:
  """Return (key whose values differ, its value in every run, or "–")."""
  keys = dict.fromkeys(key for config in configs.values() for key in config)
  table = []
  for key in keys:
    values = [config.get(key, "–") for config in configs.values()]
    if len(set(values)) > 1 and not key.startswith(_DERIVED_KEYS):
      table.append((key, values))
  return table
