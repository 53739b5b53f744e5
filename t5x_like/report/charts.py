"""The charts of a report: SVG that takes its text colour from the page, so that it suits light and
dark themes."""

import functools
import io
import math
import re
import statistics
from typing import Any

import numpy as np
from markupsafe import Markup, escape

_INK = "#010203"  # drawn with this, then replaced by the page's own colour
_COLOURS = ("#3b82f6", "#f97316", "#10b981", "#a855f7", "#ef4444", "#14b8a6")
_POINTS = 1500
Rows = list[dict[str, Any]]


class Metrics(list):
  """The lines of `metrics.jsonl` with an index by metric: there may be a million lines and a
  hundred metrics."""

  def __init__(self, rows: Rows):
    super().__init__(rows)
    self._series: dict[str, tuple[np.ndarray, np.ndarray]] = {}

  @functools.cached_property
  def columns(self) -> dict[str, dict[int, Any]]:
    """The values of every name by step, in the order of the lines; of lines of one step, the last
    counts."""
    columns: dict[str, dict[int, Any]] = {}
    for row in self:
      step = row["step"]
      for name, value in row.items():
        columns.setdefault(name, {})[step] = value
    return columns

  def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    if name not in self._series:
      self._series[name] = _numbers(self.columns.get(name, {}))
    return self._series[name]


def names(rows: Rows) -> list[str]:
  """Return the names of all metrics, in the order in which they first occur."""
  if isinstance(rows, Metrics):
    return list(rows.columns)
  return list(dict.fromkeys(name for row in rows for name in row))


def series(rows: Rows, name: str) -> tuple[np.ndarray, np.ndarray]:
  """Return the steps (int64 [N]) and finite values (float64 [N]) of a metric; of lines of one step,
  the last counts."""
  if isinstance(rows, Metrics):
    return rows.series(name)
  return _numbers({row["step"]: row[name] for row in rows if name in row})


def _numbers(column: dict[int, Any]) -> tuple[np.ndarray, np.ndarray]:
  points = [
    (step, value)
    for step, value in sorted(column.items())
    if isinstance(value, int | float) and math.isfinite(value)
  ]
  steps, values = zip(*points) if points else ((), ())
  return np.asarray(steps, np.int64), np.asarray(values, np.float64)


def gaps(rows: Rows) -> list[tuple[int, int]]:
  """Return the first and last step of every stretch whose lines were lost, as
  `writer.MetricsWriter` marks them."""
  return [
    (row["missing_from"], row["step"]) for row in rows if type(row.get("missing_from")) is int
  ]


def broken(
  steps: np.ndarray, values: np.ndarray, lost: list[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
  """Put a point that is not a number into every gap of a curve, so that the line ends and begins
  again there."""
  places = [(int(np.searchsorted(steps, first)), first) for first, _ in lost]
  places = [(place, first) for place, first in places if 0 < place < len(steps)]
  if not places:
    return steps, values
  index, firsts = zip(*places)
  return np.insert(steps, index, firsts), np.insert(values, index, np.nan)


def charts(rows: Rows, unit: str = "") -> list[dict[str, str]]:
  """Draw one {title, svg, width} per metric that has data; `width` is "wide" for the loss, else "".

  Args:
    unit: of the loss, for its axis.
  """
  drawn = []
  if len(series(rows, "train/loss")[0]) or _eval_names(rows, "loss"):
    drawn.append({"title": "Loss", "svg": _loss_chart(rows, unit), "width": "wide"})
  for title, name, options in (
    ("Accuracy", "train/accuracy", {"percent": True}),
    ("Margin of preferred answers", "train/margin", {}),
    ("Reward", "train/reward", {}),
    ("Learning rate", "train/learning_rate", {"noise": False}),
    ("Gradient norm", "train/gradient_norm", {"log": True}),
    ("Tokens per second", "train/tokens_per_second", {"from_zero": True}),
    ("Images per second", "train/images_per_second", {"from_zero": True}),
    ("Model FLOPs utilisation", "train/mfu", {"from_zero": True, "percent": True}),
  ):
    steps, values = series(rows, name)
    if len(steps):
      drawn.append(
        {
          "title": title,
          "svg": _line_chart(title, steps, values, gaps(rows), **options),
          "width": "",
        }
      )
  return drawn


def curves(runs: dict[str, Rows], name: str) -> str:
  """Draw one metric of several runs by step, as SVG; of many steps, their running mean."""
  figure, axes = _axes("", 5.2, 2.9)
  for index, (run, rows) in enumerate(runs.items()):
    steps, values = series(rows, name)
    many = len(steps) >= 30
    steps, values = _thinned(steps, _smoothed(values)) if many else (steps, values)
    marker = None if many else "o"
    colour = _COLOURS[index % len(_COLOURS)]
    axes.plot(steps, values, color=colour, linewidth=1.4, marker=marker, markersize=3, label=run)
  axes.legend(frameon=False, fontsize=7, labelcolor=_INK)
  return _svg(figure, name)


def scaled(
  points: dict[str, tuple], lines: dict[str, tuple], name: str, x_label: str, y_label: str
) -> str:
  """Draw points and lines over a logarithmic axis, as SVG.

  Args:
    points, lines: by label, (x, y), which are sequences of positive x and of y of the same length.
  """
  from matplotlib.ticker import EngFormatter, NullFormatter

  figure, axes = _axes("", 5.2, 3.2)
  axes.set_xscale("log")
  for index, (label, (x, y)) in enumerate(points.items()):
    colour = _COLOURS[index % len(_COLOURS)]
    axes.plot(x, y, color=colour, linewidth=0, marker="o", markersize=5, alpha=0.8, label=label)
  for index, (label, (x, y)) in enumerate(lines.items()):
    axes.plot(
      x,
      y,
      color=_COLOURS[index % len(_COLOURS)],
      linewidth=1.3,
      label=None if label in points else label,
    )
  axes.xaxis.set_major_formatter(EngFormatter(sep=""))
  axes.xaxis.set_minor_formatter(NullFormatter())
  axes.set_xlabel(x_label)
  axes.set_ylabel(y_label)
  axes.legend(frameon=False, fontsize=7, labelcolor=_INK)
  return _svg(figure, name)


def spread(groups: dict[str, list[float]], name: str) -> str:
  """Draw a point for each value of each group and a line at its median (the lower of two), as
  SVG."""
  figure, axes = _axes("", 5.2, 2.9)
  for place, values in enumerate(groups.values()):
    colour = _COLOURS[place % len(_COLOURS)]
    axes.plot(
      [place] * len(values), values, color=colour, linewidth=0, marker="o", markersize=5, alpha=0.7
    )
    axes.hlines(
      statistics.median_low(values), place - 0.25, place + 0.25, color=colour, linewidth=1.6
    )
  _named_places(axes, list(groups))
  axes.set_xlim(-0.6, len(groups) - 0.4)
  return _svg(figure, name)


def bars(groups: dict[str, float], name: str) -> str:
  """Draw a bar for each group whose value is finite, with the value, as SVG."""
  figure, axes = _axes("", 5.2, 2.9)
  for place, value in enumerate(groups.values()):
    if math.isfinite(value):
      axes.bar(place, value, width=0.7, color=_COLOURS[0], alpha=0.75)
      axes.annotate(
        f"{value:.1f}", (place, value), ha="center", va="bottom", fontsize=8, color=_INK
      )
  _named_places(axes, list(groups))
  return _svg(figure, name)


def confusion(classes: list[str], counts_GP: np.ndarray, name: str) -> str:
  """Draw the counts of examples by class (rows) and predicted class (columns), shaded by share of
  the row, as SVG."""
  side = 1.2 + 0.42 * len(classes)
  figure, axes = _axes("", max(side + 0.8, 4.0), max(side, 2.9))
  axes.grid(False)
  share_GP = counts_GP / np.maximum(counts_GP.sum(axis=1, keepdims=True), 1)
  for row, column in np.argwhere(counts_GP):
    share = float(share_GP[row, column])
    axes.add_patch(_rectangle(column - 0.5, row - 0.5, share))
    axes.annotate(
      str(counts_GP[row, column]), (column, row), ha="center", va="center", fontsize=7, color=_INK
    )
  _named_places(axes, classes)
  axes.set_yticks(range(len(classes)), [_short(name) for name in classes])
  axes.set_xlim(-0.5, len(classes) - 0.5)
  axes.set_ylim(len(classes) - 0.5, -0.5)
  axes.set_xlabel("prediction")
  axes.set_ylabel("target")
  return _svg(figure, name)


def _rectangle(left: float, bottom: float, share: float):
  from matplotlib.patches import Rectangle

  return Rectangle((left, bottom), 1, 1, color=_COLOURS[0], alpha=0.08 + 0.72 * share, linewidth=0)


def _named_places(axes, names: list[str]) -> None:
  long = max(map(len, names)) * len(names) > 60
  axes.set_xticks(
    range(len(names)),
    [_short(name) for name in names],
    rotation=40 * long,
    ha="right" if long else "center",
  )


def _short(name: str) -> str:
  return name if len(name) <= 18 else f"{name[:17]}…"


def _eval_names(rows: Rows, metric: str) -> list[str]:
  return sorted(
    name for name in names(rows) if name.startswith("eval/") and name.endswith(f"/{metric}")
  )


def _loss_chart(rows: Rows, unit: str) -> str:
  figure, axes = _axes("loss", 9.4, 3.7)
  steps, values = series(rows, "train/loss")
  seen = []
  lost = gaps(rows)
  if len(steps):
    _curve(axes, steps, values, "train", lost)
    seen.append(values)
  for index, name in enumerate(_eval_names(rows, "loss")):
    colour = _COLOURS[1 + index % (len(_COLOURS) - 1)]
    task = name.removeprefix("eval/").removesuffix("/loss")
    steps, values = series(rows, name)
    if len(steps):
      line = {
        "color": colour,
        "linewidth": 1.6,
        "marker": "o",
        "markersize": 4.5,
        "label": f"eval {task}",
      }
      axes.plot(*broken(steps, values, lost), **line)
      seen.append(values)
    _, entropy = series(rows, f"eval/{task}/unigram_entropy")
    if len(entropy):
      axes.axhline(
        entropy[-1],
        color=colour,
        linestyle=(0, (5, 4)),
        linewidth=1.3,
        alpha=0.85,
        label=f"unigram entropy of {task}'s targets",
      )
      seen.append(entropy[-1:])
  everything = np.concatenate(seen) if seen else np.zeros(1)
  low = everything.min()
  high = np.percentile(everything, 99.5)
  axes.set_ylim(low - 0.05 * (high - low or 1), high + 0.08 * (high - low or 1))
  axes.set_xlabel("step")
  if unit:
    axes.set_ylabel(unit)
  axes.legend(frameon=False, fontsize=9, labelcolor=_INK, loc="upper right")
  return _svg(figure, "loss")


def _line_chart(
  title: str, steps, values, lost, *, noise=True, log=False, from_zero=False, percent=False
) -> str:
  from matplotlib.ticker import EngFormatter, NullFormatter

  figure, axes = _axes(title, 4.7, 2.7)
  values = values * 100 if percent else values
  _curve(axes, steps, values, None, lost, noise)
  if log and values.min() > 0 and values.max() > 30 * values.min():
    axes.set_yscale("log")
    # the scale's own writes 10^3 as mathematics
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_minor_formatter(NullFormatter())
  elif from_zero:  # the first step compiles; do not let it compress the rest
    axes.set_ylim(0, 1.15 * max(np.percentile(values, 99), 1e-12))
  if percent:
    axes.yaxis.set_major_formatter("{x:g}%")
  axes.set_xlabel("step")
  return _svg(figure, title)


def _curve(axes, steps, values, label: str | None, lost, noise: bool = True) -> None:
  """Draw a curve, broken at gaps; draw a noisy one faintly, with its running mean on top."""
  noisy = noise and len(steps) >= 30
  axes.plot(
    *broken(*_thinned(steps, values), lost),
    color=_COLOURS[0],
    linewidth=0.8 if noisy else 1.7,
    alpha=0.35 if noisy else 1,
    label=None if noisy else label,
    marker="o" if len(steps) < 3 else None,
    markersize=4.5,
  )
  if noisy:
    axes.plot(
      *broken(*_thinned(steps, _smoothed(values)), lost),
      color=_COLOURS[0],
      linewidth=1.8,
      label=label and f"{label} (smoothed)",
    )


def _axes(title: str, width: float, height: float):
  from matplotlib.backends.backend_svg import FigureCanvasSVG
  from matplotlib.figure import Figure
  from matplotlib.ticker import EngFormatter, MaxNLocator

  figure = Figure(figsize=(width, height), layout="constrained")
  FigureCanvasSVG(figure)
  axes = figure.add_subplot()
  figure.patch.set_alpha(0)
  axes.patch.set_alpha(0)
  axes.grid(True, color=_INK, alpha=0.12, linewidth=0.7)
  axes.spines[["top", "right"]].set_visible(False)
  axes.spines[["left", "bottom"]].set_color(_INK)
  axes.spines[["left", "bottom"]].set_alpha(0.35)
  axes.tick_params(colors=_INK, labelsize=9, length=3)
  axes.xaxis.label.set_color(_INK)
  axes.yaxis.label.set_color(_INK)
  axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
  axes.xaxis.set_major_formatter(EngFormatter(sep=""))
  if title == "Tokens per second":
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
  return figure, axes


def _svg(figure, name: str) -> Markup:
  """Return the figure as an <svg> element: no fixed size, no date, unique ids, the page's colours
  and fonts.

  Matplotlib escapes the texts in it. The element is markup already, so that a page does not escape
  it again.
  """
  import matplotlib
  from matplotlib.text import Text

  buffer = io.StringIO()
  style = {"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}
  for text in figure.findobj(Text):
    text.set_parse_math(False)  # a name may have dollars in it
  with matplotlib.rc_context(style | {"text.parse_math": False}):
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
  text = buffer.getvalue()
  text = text[text.index("<svg") :].replace(_INK, "currentColor")
  text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
  text = re.sub(r"font: [^;\"]*?([\d.]+)px[^;\"]*", r"font-size: \1px; font-family: inherit", text)
  head, rest = text.split(">", 1)
  head = re.sub(r' (width|height)="[^"]*"', "", head) + f' role="img" aria-label="{escape(name)}"'
  prefix = re.sub(r"\W+", "_", name.lower())
  rest = re.sub(r'\bid="', f'id="{prefix}-', rest)
  rest = re.sub(r"url\(#", f"url(#{prefix}-", rest)
  return Markup(head + ">" + re.sub(r'xlink:href="#', f'xlink:href="#{prefix}-', rest))


def _thinned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Keep about `_POINTS` points at most, with the lowest and highest value of every stretch."""
  if len(steps) <= _POINTS:
    return steps, values
  kept = {0, len(steps) - 1}
  for part in np.array_split(np.arange(len(steps)), _POINTS // 2):
    kept |= {int(part[values[part].argmin()]), int(part[values[part].argmax()])}
  index = sorted(kept)
  return steps[index], values[index]


def _smoothed(values: np.ndarray) -> np.ndarray:
  """Return a running mean over a fiftieth of the run, shorter at both ends."""
  half = max(2, len(values) // 100)
  total = np.concatenate([[0.0], np.cumsum(values)])
  place = np.arange(len(values))
  low = np.maximum(place - half, 0)
  high = np.minimum(place + half + 1, len(values))
  return (total[high] - total[low]) / (high - low)
