"""Present the results of a ladder, as text and as a page."""

import math
import pathlib
from collections.abc import Sequence

import numpy as np

from t5x_like.report import charts
from t5x_like.report import page as reports

_COLUMNS = ("size", "parameters", "steps", "rate", "loss")


def text(trials: Sequence, law, prediction) -> str:
  """Return a table of the runs in Markdown, and the verdict."""
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
  interval = ""
  if prediction.between is not None:
    low, high = prediction.between
    interval = f" ({low:.4f} to {high:.4f} if one run is left out)"
  sentences = [
    f"Loss = {law.E:.4f} + {law.A:.4g} / N^{law.a:.3f}{tokens}.",
    f"Size {prediction.size}, {prediction.N:,} parameters, {prediction.steps} steps: predicted "
    f"loss {prediction.loss:.4f}{interval}, at the rate {prediction.rate:g}.",
  ]
  if prediction.measured is not None:
    sentences.append(
      f"Measured: {prediction.measured:.4f}; the prediction is off by {prediction.off:+.2%}."
    )
  if prediction.best_rate is not None:
    ratio = prediction.rate / prediction.best_rate
    sentences.append(
      f"Its best rate is {prediction.best_rate:.3g}; the predicted rate is {ratio:.2f} "
      "times as high."
    )
  return sentences


def _rows(trials: Sequence) -> list[list[str]]:
  """Return the cells of a table of the runs."""
  rows = []
  for trial in trials:
    loss = f"{trial.loss:.4f}" if math.isfinite(trial.loss) else "diverged"
    rows.append([trial.size, f"{trial.N:,}", str(trial.steps), f"{trial.rate:g}", loss])
  return rows


def _charts(trials: Sequence, law, prediction) -> list[tuple[str, str]]:
  """Return charts by title: the loss by size and, for several rates, by learning rate."""
  finite = [trial for trial in trials if math.isfinite(trial.loss)]
  steps = sorted({trial.steps for trial in finite})
  N = np.geomspace(min(trial.N for trial in finite), prediction.N, 60)
  points = {}
  lines = {}
  for count in steps:
    trials_of_steps = [trial for trial in finite if trial.steps == count]
    best_losses: dict[int, float] = {}
    for trial in trials_of_steps:
      best_losses[trial.N] = min(trial.loss, best_losses.get(trial.N, math.inf))
    points[f"{count} steps"] = tuple(zip(*sorted(best_losses.items())))
    lines[f"{count} steps"] = N, [law(n, trials_of_steps[0].D) for n in N]
  points["predicted"] = [prediction.N], [prediction.loss]
  size_chart = charts.scaling(points, lines, "loss by size", "parameters", "loss")
  result = [("Loss by size", size_chart)]
  longest = [trial for trial in finite if trial.steps == steps[-1]]
  if len({trial.rate for trial in longest}) > 1:
    curves = {}
    for size in dict.fromkeys(trial.size for trial in longest):
      curve = sorted((trial.rate, trial.loss) for trial in longest if trial.size == size)
      curves[size] = tuple(zip(*curve))
    rate_chart = charts.scaling(curves, curves, "loss by rate", "learning rate", "loss")
    result.append(("Loss by learning rate", rate_chart))
  return result
