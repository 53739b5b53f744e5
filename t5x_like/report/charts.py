"""Draw the charts of a report as SVG.

Text takes its colour from the page, so that a chart suits light and dark themes.
"""

import functools
import io
import math
import re
import statistics
import textwrap
from typing import Any

import numpy as np
from markupsafe import Markup, escape

_INK = "#010203"  # a placeholder that the page's own colour replaces
_COLOURS = ("#3b82f6", "#f97316", "#10b981", "#a855f7", "#ef4444", "#14b8a6")
_POINTS = 1500  # longer curves are thinned to about as many points
_NARROW_CHARACTERS = 44  # the length of a line in the legend of a narrow chart
_SMOOTHED_FROM = 30  # the running mean of a curve is drawn if it has at least this many points
Rows = list[dict[str, Any]]


class Metrics(list):
  """The lines of `metrics.jsonl`, indexed by metric: a run may have a million lines."""

  def __init__(self, rows: Rows):
    super().__init__(rows)
    self._series: dict[str, tuple[np.ndarray, np.ndarray]] = {}

  @functools.cached_property
  def columns(self) -> dict[str, dict[int, Any]]:
    """The values of every name by step, in the order of the lines; the last line of a step wins."""
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
  """Return the steps (int64 [N]) and finite values (float64 [N]) of a metric.

  Of several lines of the same step, the last one is used.
  """
  if isinstance(rows, Metrics):
    return rows.series(name)
  return _numbers({row["step"]: row[name] for row in rows if name in row})


def _numbers(column: dict[int, Any]) -> tuple[np.ndarray, np.ndarray]:
  """Return the steps and the finite numbers of a column, in the order of steps."""
  steps = []
  values = []
  for step, value in sorted(column.items()):
    if isinstance(value, int | float) and math.isfinite(value):
      steps.append(step)
      values.append(value)
  return np.asarray(steps, np.int64), np.asarray(values, np.float64)


def gaps(rows: Rows) -> list[tuple[int, int]]:
  """Return the first and last steps of all ranges of lost lines, which `MetricsWriter` marks."""
  ranges = []
  for row in rows:
    if type(row.get("missing_from")) is int:
      ranges.append((row["missing_from"], row["step"]))
  return ranges


def break_at_gaps(
  steps: np.ndarray, values: np.ndarray, lost: list[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
  """Insert NaN into every gap of a curve, so that the line is interrupted there.

  Args:
    lost: the ranges of steps from `gaps`.
  """
  first_steps = np.asarray([first for first, _ in lost], np.int64)
  indices = np.searchsorted(steps, first_steps)
  is_within = (indices > 0) & (indices < len(steps))
  indices = indices[is_within]
  return np.insert(steps, indices, first_steps[is_within]), np.insert(values, indices, np.nan)


def charts(rows: Rows, unit: str = "") -> list[dict[str, str]]:
  """Draw one {title, svg, width} for each metric that has data.

  Args:
    unit: the unit of the loss, for its axis.

  Returns:
    The charts; `width` is "wide" for the loss and "" for all others. The loss also has a `narrow`
    form, for phones.
  """
  drawings = []
  if len(series(rows, "train/loss")[0]) or _eval_names(rows, "loss"):
    loss_chart = {
      "title": "Loss",
      "svg": _loss_chart(rows, unit),
      "narrow": _loss_chart(rows, unit, is_narrow=True),
      "width": "wide",
    }
    drawings.append(loss_chart)
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
      svg = _line_chart(title, steps, values, gaps(rows), **options)
      drawings.append({"title": title, "svg": svg, "narrow": "", "width": ""})
  return drawings


def curves(runs: dict[str, Rows], name: str) -> str:
  """Draw a metric of several runs by step, as SVG; a long curve is drawn as its running mean."""
  figure, axes = _axes("", 5.2, 2.9)
  for index, (run, rows) in enumerate(runs.items()):
    steps, values = series(rows, name)
    marker = "o"
    if len(steps) >= _SMOOTHED_FROM:
      steps, values = _thin(steps, _running_mean(values))
      marker = None
    style = dict(color=_colour(index), linewidth=1.4, marker=marker, markersize=3)
    axes.plot(steps, values, label=run, **style)
  _draw_legend(axes, fontsize=7)
  return _svg(figure, name)


def interval_curves(
  steps: list[int],
  values_by_label: dict[str, list[float | None]],
  intervals_by_label: dict[str, list[dict[str, float] | None]],
  name: str,
) -> str:
  """Draw curves by step, each in the band of its intervals, as SVG; None is a gap.

  Args:
    steps: the steps of all curves.
    values_by_label: the values of each curve.
    intervals_by_label: the intervals `{"low", "high"}` of the values.
    name: the title for screen readers.
  """
  figure, axes = _axes("", 9.4, 3.7)
  for index, (label, values) in enumerate(values_by_label.items()):
    colour = _colour(index)
    points = np.array([math.nan if value is None else value for value in values])
    axes.plot(steps, points, color=colour, linewidth=1.4, marker="o", markersize=3, label=label)
    intervals = intervals_by_label.get(label) or [None] * len(steps)
    low = np.array([math.nan if limits is None else limits["low"] for limits in intervals])
    high = np.array([math.nan if limits is None else limits["high"] for limits in intervals])
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
  axes.set_xlabel("step")
  _draw_legend(axes, fontsize=7)
  return _svg(figure, name)


def scaling(
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
    style = dict(color=_colour(index), linewidth=0, marker="o", markersize=5, alpha=0.8)
    axes.plot(x, y, label=label, **style)
  for index, (label, (x, y)) in enumerate(lines.items()):
    legend_label = None if label in points else label
    axes.plot(x, y, color=_colour(index), linewidth=1.3, label=legend_label)
  axes.xaxis.set_major_formatter(EngFormatter(sep=""))
  axes.xaxis.set_minor_formatter(NullFormatter())
  axes.set_xlabel(x_label)
  axes.set_ylabel(y_label)
  _draw_legend(axes, fontsize=7)
  return _svg(figure, name)


def points_by_group(groups: dict[str, list[float]], name: str) -> str:
  """Draw a point for each value of each group and a line at its lower median, as SVG."""
  figure, axes = _axes("", 5.2, 2.9)
  for column, values in enumerate(groups.values()):
    colour = _colour(column)
    columns = [column] * len(values)
    axes.plot(columns, values, color=colour, linewidth=0, marker="o", markersize=5, alpha=0.7)
    median = statistics.median_low(values)
    axes.hlines(median, column - 0.25, column + 0.25, color=colour, linewidth=1.6)
  _label_columns(axes, list(groups))
  axes.set_xlim(-0.6, len(groups) - 0.4)
  return _svg(figure, name)


def bars(groups: dict[str, float], name: str) -> str:
  """Draw a bar for each group whose value is finite, with the value, as SVG."""
  figure, axes = _axes("", 5.2, 2.9)
  for column, value in enumerate(groups.values()):
    if math.isfinite(value):
      axes.bar(column, value, width=0.7, color=_COLOURS[0], alpha=0.75)
      text = f"{value:.1f}"
      axes.annotate(text, (column, value), ha="center", va="bottom", fontsize=8, color=_INK)
  _label_columns(axes, list(groups))
  return _svg(figure, name)


def confusion(classes: list[str], counts_GP: np.ndarray, name: str) -> str:
  """Draw a confusion matrix as SVG, each cell shaded by its share of the row.

  Args:
    counts_GP: examples by class (rows) and predicted class (columns).
  """
  side = 1.2 + 0.42 * len(classes)
  figure, axes = _axes("", max(side + 0.8, 4.0), max(side, 2.9))
  axes.grid(False)
  share_GP = counts_GP / np.maximum(counts_GP.sum(axis=1, keepdims=True), 1)
  for row, column in np.argwhere(counts_GP):
    axes.add_patch(_shaded_cell(row, column, float(share_GP[row, column])))
    text = str(counts_GP[row, column])
    axes.annotate(text, (column, row), ha="center", va="center", fontsize=7, color=_INK)
  _label_columns(axes, classes)
  axes.set_yticks(range(len(classes)), [_short(name) for name in classes])
  axes.set_xlim(-0.5, len(classes) - 0.5)
  axes.set_ylim(len(classes) - 0.5, -0.5)
  axes.set_xlabel("prediction")
  axes.set_ylabel("target")
  return _svg(figure, name)


def _shaded_cell(row: int, column: int, share: float):
  """Return the square of a cell of a matrix; the larger the share, the darker it is."""
  from matplotlib.patches import Rectangle

  corner = (column - 0.5, row - 0.5)
  alpha = 0.08 + 0.72 * share
  return Rectangle(corner, 1, 1, color=_COLOURS[0], alpha=alpha, linewidth=0)


def _colour(index: int) -> str:
  """Return the colour of a curve; colours repeat after the last."""
  return _COLOURS[index % len(_COLOURS)]


def _draw_legend(owner, *, fontsize: int, **options) -> None:
  """Draw the legend of axes or of a figure."""
  owner.legend(frameon=False, fontsize=fontsize, labelcolor=_INK, **options)


def _label_columns(axes, names: list[str]) -> None:
  """Label the columns of a chart, at an angle if the labels are long."""
  labels = [_short(name) for name in names]
  is_crowded = max(map(len, names)) * len(names) > 60
  if is_crowded:
    axes.set_xticks(range(len(names)), labels, rotation=40, ha="right")
  else:
    axes.set_xticks(range(len(names)), labels, ha="center")


def _short(name: str) -> str:
  return name if len(name) <= 18 else f"{name[:17]}…"


def _eval_names(rows: Rows, metric: str) -> list[str]:
  matches = []
  for name in names(rows):
    if name.startswith("eval/") and name.endswith(f"/{metric}"):
      matches.append(name)
  return sorted(matches)


def _loss_chart(rows: Rows, unit: str, is_narrow: bool = False) -> str:
  """Draw the losses of training and evaluations, and the unigram entropies of their targets.

  Args:
    unit: the label of the vertical axis; empty for none.
    is_narrow: whether it is drawn for a phone, with the legend above the curves.
  """
  if is_narrow:
    figure, axes = _axes("loss", 3.9, 3.3)
  else:
    figure, axes = _axes("loss", 9.4, 3.7)
  steps, values = series(rows, "train/loss")
  plotted = []
  lost = gaps(rows)
  if len(steps):
    _curve(axes, steps, values, "train", lost)
    plotted.append(values)
  for index, name in enumerate(_eval_names(rows, "loss")):
    colour = _COLOURS[1 + index % (len(_COLOURS) - 1)]
    task = name.removeprefix("eval/").removesuffix("/loss")
    steps, values = series(rows, name)
    if len(steps):
      x, y = break_at_gaps(steps, values, lost)
      label = f"eval {task}"
      axes.plot(x, y, color=colour, linewidth=1.6, marker="o", markersize=4.5, label=label)
      plotted.append(values)
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
      plotted.append(entropy[-1:])
  losses = np.concatenate(plotted) if plotted else np.zeros(1)
  low = losses.min()
  high = np.percentile(losses, 99.5)
  height = (high - low) or 1
  axes.set_ylim(low - 0.05 * height, high + 0.08 * height)
  axes.set_xlabel("step")
  if unit:
    axes.set_ylabel(unit)
  if is_narrow:
    handles, labels = axes.get_legend_handles_labels()
    labels = [textwrap.fill(label, _NARROW_CHARACTERS) for label in labels]
    _draw_legend(figure, fontsize=9, loc="outside upper left", handles=handles, labels=labels)
    return _svg(figure, "loss", "loss_narrow")
  _draw_legend(axes, fontsize=9, loc="upper right")
  return _svg(figure, "loss")


def _line_chart(
  title: str, steps, values, lost, *, noise=True, log=False, from_zero=False, percent=False
) -> str:
  """Draw one metric of training by step, as SVG.

  Args:
    lost: the ranges of steps from `gaps`.
    noise: whether the metric is noisy, so that a running mean is drawn over it.
    log: whether the vertical axis is logarithmic if the values span more than a factor of 30.
    from_zero: whether the vertical axis begins at 0.
    percent: whether values are shares, shown in percent.
  """
  from matplotlib.ticker import EngFormatter, NullFormatter

  figure, axes = _axes(title, 4.7, 2.7)
  if percent:
    values = 100 * values
  _curve(axes, steps, values, None, lost, noise)
  if log and values.min() > 0 and values.max() > 30 * values.min():
    axes.set_yscale("log")
    # The default formatter of the scale writes 10^3 as mathematics.
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_minor_formatter(NullFormatter())
  elif from_zero:  # the first step compiles, and would compress all others
    axes.set_ylim(0, 1.15 * max(np.percentile(values, 99), 1e-12))
  if percent:
    axes.yaxis.set_major_formatter("{x:g}%")
  axes.set_xlabel("step")
  return _svg(figure, title)


def _curve(axes, steps, values, label: str | None, lost, noise: bool = True) -> None:
  """Draw a curve with gaps; draw a noisy one faintly, with its running mean on top."""
  colour = _COLOURS[0]
  thin_steps, thin_values = _thin(steps, values)
  x, y = break_at_gaps(thin_steps, thin_values, lost)
  if not noise or len(steps) < _SMOOTHED_FROM:
    marker = "o" if len(steps) < 3 else None
    axes.plot(x, y, color=colour, linewidth=1.7, label=label, marker=marker, markersize=4.5)
    return
  axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.35)
  mean_steps, mean_values = _thin(steps, _running_mean(values))
  x, y = break_at_gaps(mean_steps, mean_values, lost)
  mean_label = f"{label} (smoothed)" if label else None
  axes.plot(x, y, color=colour, linewidth=1.8, label=mean_label)


def _axes(title: str, width: float, height: float):
  """Return a new figure of this size in inches and its axes, without a background."""
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


def _svg(figure, name: str, key: str = "") -> Markup:
  """Return the figure as an <svg> element without size and date, in the page's colours and fonts.

  Matplotlib escapes the texts in it. The element is markup already, so that a page does not escape
  it again.
  """
  import matplotlib
  from matplotlib.text import Text

  buffer = io.StringIO()
  style = {"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}
  for text in figure.findobj(Text):
    text.set_parse_math(False)  # a name may contain dollar signs
  with matplotlib.rc_context(style | {"text.parse_math": False}):
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
  document = buffer.getvalue()
  text = document[document.index("<svg") :]
  text = text.replace(_INK, "currentColor")
  text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
  text = re.sub(r"font: [^;\"]*?([\d.]+)px[^;\"]*", r"font-size: \1px; font-family: inherit", text)
  tag, content = text.split(">", 1)
  tag = re.sub(r' (width|height)="[^"]*"', "", tag)
  tag += f' role="img" aria-label="{escape(name)}"'
  content = _prefix_ids(content, re.sub(r"\W+", "_", (key or name).lower()))
  return Markup(f"{tag}>{content}")


def _prefix_ids(content: str, prefix: str) -> str:
  """Make the ids of an <svg> element unique on a page with several charts."""
  content = re.sub(r'\bid="', f'id="{prefix}-', content)
  content = re.sub(r"url\(#", f"url(#{prefix}-", content)
  return re.sub(r'xlink:href="#', f'xlink:href="#{prefix}-', content)


def _thin(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Reduce a curve to about `_POINTS` points, with the extremes of every section."""
  if len(steps) <= _POINTS:
    return steps, values
  indices = {0, len(steps) - 1}
  for section in np.array_split(np.arange(len(steps)), _POINTS // 2):
    section_values = values[section]
    indices.add(int(section[section_values.argmin()]))
    indices.add(int(section[section_values.argmax()]))
  selection = sorted(indices)
  return steps[selection], values[selection]


def _running_mean(values: np.ndarray) -> np.ndarray:
  """Return the running mean over a fiftieth of the run; the window is shorter at both ends."""
  half = max(2, len(values) // 100)
  sums = np.concatenate([[0.0], np.cumsum(values)])
  indices = np.arange(len(values))
  low = np.maximum(indices - half, 0)
  high = np.minimum(indices + half + 1, len(values))
  return (sums[high] - sums[low]) / (high - low)
