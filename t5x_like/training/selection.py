"""Stop early, and keep the best checkpoint.

`config.selection = {"metric": "eval/sst2/accuracy", "patience": 3}`.

After each evaluation, the parameters with the best score so far are saved under `best/` in the
workdir, before the scores are written. Both decisions follow from `metrics.jsonl` alone, so a
killed run decides as an uninterrupted one.
"""

import math
from collections.abc import Collection
from typing import Any

from ml_collections import ConfigDict

from t5x_like import slots
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.checkpoints.manifest import nest
from t5x_like.errors import UserError, did_you_mean

FOLDER = "best"
_LOWER_IS_BETTER = ("loss", "perplexity")  # endings of the names of such metrics
Rows = list[dict[str, Any]]


class Selection:
  """Choose the best step, and the time to stop, by a metric of the evaluations.

  Args:
    config: the resolved config, with a selection.
    workdir: the run's directory or address.
    rows: the metrics so far, the same in all processes.
  """

  def __init__(self, config: ConfigDict, workdir, rows: Rows):
    values = config.selection.to_dict()
    self._metric = values["metric"]
    self._patience = values["patience"]
    self._sign = 1.0 if values["goal"] == "max" else -1.0
    self._directory = f"{workdir}/{FOLDER}"
    self._values = [
      (row["step"], self._score_or_worst(row[self._metric])) for row in rows if self._metric in row
    ]

  @property
  def best_step(self) -> int | None:
    """The first step with the best score."""
    if not self._values:
      return None
    step, _ = max(self._values, key=lambda pair: (self._sign * pair[1], -pair[0]))
    return step

  @property
  def is_out_of_patience(self) -> bool:
    """Whether none of the last `patience` evaluations was better than one before."""
    if self._patience is None or not self._values:
      return False
    steps = [step for step, _ in self._values]
    evaluations_since = len(steps) - 1 - steps.index(self.best_step)
    return evaluations_since >= self._patience

  def _score_or_worst(self, value: float | None) -> float:
    """Return a score; one that is undefined or not finite is worse than any other."""
    return value if value is not None and math.isfinite(value) else -self._sign * 1e9

  def offer(
    self, step: int, metrics: dict[str, float], arrays: dict, metadata: dict[str, Any]
  ) -> None:
    """Note an evaluation and save its parameters if it is the best; all processes must call it.

    Raises:
      UserError: the evaluation lacks the metric, or the parameters cannot be written.
    """
    _check_name(self._metric, metrics)
    value = self._score_or_worst(metrics[self._metric])
    self._values = [pair for pair in self._values if pair[0] != step] + [(step, value)]
    if self.best_step == step:
      tree = nest({f"params/{name}": x for name, x in arrays.items()})
      with Checkpoints(self._directory, keep_last=1) as checkpoints:
        checkpoints.set_aside(step, "set_aside")  # later ones are of a run before a rollback
        try:
          checkpoints.save(step, tree, metadata)
        except UserError:
          if not checkpoints.set_aside(step - 1, "set_aside"):
            raise
          # The step was saved with other values, before an interruption or a rollback.
          checkpoints.save(step, tree, metadata)
        checkpoints.wait()


def check_selection(config: ConfigDict, metrics: Collection[str] | None) -> None:
  """Refuse a metric that no evaluation writes, and the goal "max" for a loss.

  Args:
    metrics: all metrics that evaluations may write; None if they are not known.
  """
  metric = config.selection.metric
  goal = config.selection.goal
  if metrics is not None:
    _check_name(metric, metrics)
  if goal == "max" and metric.endswith(_LOWER_IS_BETTER):
    raise UserError(
      f"config.selection.goal: found 'max' for {metric}, of which lower values are better; set it "
      "to 'min'"
    )


def _check_name(metric: str, metrics: Collection[str]) -> None:
  """Refuse a metric that no evaluator writes."""
  if metric in metrics:
    return
  expectation = "but config.evals has no evaluator"
  if metrics:
    expectation = f"expected one of {', '.join(sorted(metrics))}"
  raise UserError(
    f"config.selection.metric: found {slots.format_value(metric)}, "
    f"{expectation}{did_you_mean(metric, metrics)}"
  )
