"""The results of a ladder, as text and as a page."""

import math
import pathlib
from collections.abc import Sequence

import numpy as np

from t5x_like.report import charts
from t5x_like.report import page as reports

_COLUMNS = ("size", "parameters", "steps", "rate", "loss")


def text(trials: Sequence, law, prediction) -> str:
  """Return a table of the runs in Markdown, and what they say."""
  lines = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
  lines += [f"| {' | '.join(row)} |" for row in _rows(trials)]
  return "\n".join([*lines, "", *verdict(law, prediction)])


def html(recipe: str, trials: Sequence, law, prediction) -> str:
  """Return the page: verdict, loss by size with the fit, loss by rate, all runs."""
  return reports.render(
    pathlib.Path(reports.__file__).with_name("ladder.html.j2"),
    recipe=recipe,
    verdict=verdict(law, prediction),
    charts=_charts(trials, law, prediction),
    columns=_COLUMNS,
    rows=_rows(trials),
  )


def verdict(law, prediction) -> list[str]:
  """Return the fit, the prediction and its error, a sentence each."""
  tokens = f" + {law.B:.4g} / D^{law.b:.3f}" if law.B else ""
  between = (
    ""
    if prediction.between is None
    else " ({:.4f} to {:.4f} if one run is left out)".format(*prediction.between)
  )
  said = [
    f"Loss = {law.E:.4f} + {law.A:.4g} / N^{law.a:.3f}{tokens}.",
    f"Size {prediction.size}, {prediction.N:,} parameters, {prediction.steps} steps: predicted "
    f"loss {prediction.loss:.4f}{between}, at the rate {prediction.rate:g}.",
  ]
  if prediction.measured is not None:
    said.append(
      f"Measured: {prediction.measured:.4f}; the prediction is off by {prediction.off:+.2%}."
    )
  if prediction.best_rate is not None:
    ratio = prediction.rate / prediction.best_rate
    said.append(
      f"Its best rate is {prediction.best_rate:.3g}; the predicted rate is {ratio:.2f} "
      "times as high."
    )
  return said


def _rows(trials: Sequence) -> list[list[str]]:
  return [
    [
      one.size,
      f"{one.N:,}",
      str(one.steps),
      f"{one.rate:g}",
      f"{one.loss:.4f}" if math.isfinite(one.loss) else "diverged",
    ]
    for one in trials
  ]


def _charts(trials: Sequence, law, prediction) -> list[tuple[str, str]]:
  finite = [one for one in trials if math.isfinite(one.loss)]
  steps = sorted({one.steps for one in finite})
  N = np.geomspace(min(one.N for one in finite), prediction.N, 60)
  points = {}
  lines = {}
  for count in steps:
    own = [one for one in finite if one.steps == count]
    best = {n: min(one.loss for one in own if one.N == n) for n in {one.N for one in own}}
    points[f"{count} steps"] = tuple(zip(*sorted(best.items())))
    lines[f"{count} steps"] = N, [law(n, own[0].D) for n in N]
  points["predicted"] = [prediction.N], [prediction.loss]
  made = [("Loss by size", charts.scaling(points, lines, "loss by size", "parameters", "loss"))]
  last = [one for one in finite if one.steps == steps[-1]]
  if len({one.rate for one in last}) > 1:
    curves = {}
    for size in dict.fromkeys(one.size for one in last):
      curves[size] = tuple(zip(*sorted((one.rate, one.loss) for one in last if one.size == size)))
    made.append(
      (
        "Loss by learning rate",
        charts.scaling(curves, curves, "loss by rate", "learning rate", "loss"),
      )
    )
  return made
