"""Show a run's plan and its measurements in a table, for the console and the page.

`planning/plan_watch.py` writes the figures to `plan_comparison.json` in the workdir.
"""

import dataclasses
import math

from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.files import local
from t5x_like.files.checked_json import parse_json

FILE = "plan_comparison.json"
_NONE = "–"


@dataclasses.dataclass(frozen=True)
class Figure:
  """A row of the table; a value is None if it is not known."""

  name: str
  promised: float | None
  measured: float | None


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A plan and the measurements of a run.

  Attributes:
    plan: the plan's file.
    topology: the hardware that it is for.
    steps: the number of steps that were measured.
    figures: the rows of the table.
    deviations: the causes of deviations, each in one line.
  """

  plan: str
  topology: str
  steps: int
  figures: tuple[dict, ...]
  deviations: tuple[str, ...]


def read_comparison(workdir) -> Comparison | None:
  """Return the comparison in a workdir; None if the run was compared with no plan.

  Raises:
    UserError: the file is damaged.
  """
  path = workdir / FILE
  content = local.read_content(path)
  if content is None:
    return None
  record = parse_json(content, dict, str(path), "a comparison with a plan; remove it")
  try:
    return Comparison(**slots.fill(str(path), record, Comparison))
  except UserError as error:
    raise UserError(f"{error}; remove the file") from None


def deviation_parts(comparison: Comparison) -> list[tuple[str, str]]:
  """Return (kind, cause) of each deviation."""
  parts = []
  for deviation in comparison.deviations:
    kind, _, cause = deviation.partition(": ")
    parts.append((kind, cause))
  return parts


def table_rows(comparison: Comparison) -> list[list[str]]:
  """Return the rows of the table: name, promised, measured, and measured as a share of promised."""
  rows = []
  for values in comparison.figures:
    figure = Figure(**slots.fill("figures", values, Figure))
    share = _NONE
    if figure.promised and figure.measured is not None:
      share = f"{100 * figure.measured / figure.promised:.0f} %"
    rows.append([figure.name, _number(figure.promised), _number(figure.measured), share])
  return rows


def text(comparison: Comparison) -> str:
  """Return the table and the deviations as printable text."""
  title = f"plan {comparison.plan} for {comparison.topology}, over {comparison.steps:,} steps"
  lines = [title, f"  {'':<24}{'promised':>12}{'measured':>12}{'share':>9}"]
  for name, promised, measured, share in table_rows(comparison):
    lines.append(f"  {name:<24}{promised:>12}{measured:>12}{share:>9}")
  if not comparison.deviations:
    lines.append("  no deviation of more than a tenth")
  lines += [f"  {deviation}" for deviation in comparison.deviations]
  return "\n".join(lines)


def _number(value: float | None) -> str:
  if value is None or not math.isfinite(value):
    return _NONE
  return f"{value:.4g}"
