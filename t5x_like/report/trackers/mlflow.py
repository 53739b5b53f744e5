"""MLflow: one run for a workdir, however often it is started. Extra: t5x-like[mlflow]."""

import dataclasses
import functools
import pathlib
import time
from typing import Any

from t5x_like import config as config_lib
from t5x_like.report.trackers import _following, need
from t5x_like.runtime import process

_MOST_METRICS = 1000  # of one request
_MOST_PARAMETERS = 100
_LONGEST_VALUE = 6000


@dataclasses.dataclass(frozen=True)
class Tracker:
  """Logs to an experiment of MLflow.

  Attributes:
    experiment: its name; it is made if there is none.
    uri: the tracking server or store; None follows `MLFLOW_TRACKING_URI`.
  """

  experiment: str = "t5x_like"
  uri: str | None = None

  def __post_init__(self):
    need("mlflow", "mlflow")

  def open(
    self, workdir: pathlib.Path, name: str, step: int, config: dict[str, Any]
  ) -> _following.Following:
    return _following.Following(
      "mlflow", workdir, functools.partial(_Run, self, workdir, name, config)
    )


class _Run:
  """A run of MLflow, opened or continued; `_last` has the last step of each metric that it
  holds."""

  def __init__(self, tracker: Tracker, workdir: pathlib.Path, name: str, config: dict[str, Any]):
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    self._client = MlflowClient(tracking_uri=tracker.uri)
    self._metric = Metric
    self._id = _following.kept_id(workdir, "mlflow")
    self._last = {}
    if self._id is None:
      found = self._client.get_experiment_by_name(tracker.experiment)
      experiment = (
        found.experiment_id if found else self._client.create_experiment(tracker.experiment)
      )
      self._id = self._client.create_run(experiment, run_name=name).info.run_id
      _following.keep_id(workdir, "mlflow", self._id)
      values = {
        key: str(value)[:_LONGEST_VALUE] for key, value in config_lib.flatten(config).items()
      }
      for some in _parts([Param(key, value) for key, value in values.items()], _MOST_PARAMETERS):
        self._client.log_batch(self._id, params=some)
    else:
      self._client.update_run(self._id, status="RUNNING")
      for key in self._client.get_run(self._id).data.metrics:
        self._last[key] = max(
          metric.step for metric in self._client.get_metric_history(self._id, key)
        )
    process.log(f"mlflow: run {self._id} of experiment {tracker.experiment}")

  def send(self, rows: list[tuple[int, dict[str, float]]]) -> None:
    now = int(1000 * time.time())
    metrics = [
      self._metric(name, value, now, step)
      for step, values in rows
      for name, value in values.items()
      if step > self._last.get(name, -1)
    ]
    for some in _parts(metrics, _MOST_METRICS):
      self._client.log_batch(self._id, metrics=some)
      self._last |= {metric.key: metric.step for metric in some}

  def close(self, outcome: str) -> None:
    self._client.set_terminated(self._id, {"paused": "KILLED"}.get(outcome, outcome.upper()))


def _parts(items: list, most: int) -> list[list]:
  return [items[first : first + most] for first in range(0, len(items), most)]
