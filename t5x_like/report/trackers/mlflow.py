"""MLflow: one run for a workdir, however often it is started. Extra: t5x-like[mlflow]."""

import dataclasses
import functools
import pathlib
import time
from typing import Any

from t5x_like import config as config_lib
from t5x_like.report.trackers import _following, require_library
from t5x_like.runtime import process

_MAX_METRICS = 1000  # in a request
_MAX_PARAMETERS = 100
_MAX_VALUE_LENGTH = 6000


@dataclasses.dataclass(frozen=True)
class Tracker:
  """Logs to an experiment of MLflow.

  Attributes:
    experiment: the name of the experiment, which is created if it does not exist.
    uri: the tracking server or store; None uses `MLFLOW_TRACKING_URI`.
  """

  experiment: str = "t5x_like"
  uri: str | None = None

  def __post_init__(self):
    require_library("mlflow", "mlflow")

  def open(
    self, workdir: pathlib.Path, name: str, step: int, config: dict[str, Any]
  ) -> _following.Following:
    connect = functools.partial(_Run, self, workdir, name, config)
    return _following.Following("mlflow", workdir, connect)


class _Run:
  """A new or continued run of MLflow; `_last` has the last step of each of its metrics."""

  def __init__(self, tracker: Tracker, workdir: pathlib.Path, name: str, config: dict[str, Any]):
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    self._client = MlflowClient(tracking_uri=tracker.uri)
    self._metric = Metric
    self._id = _following.read_id(workdir, "mlflow")
    self._last = {}
    if self._id is None:
      experiment = self._client.get_experiment_by_name(tracker.experiment)
      if experiment:
        experiment_id = experiment.experiment_id
      else:
        experiment_id = self._client.create_experiment(tracker.experiment)
      self._id = self._client.create_run(experiment_id, run_name=name).info.run_id
      _following.write_id(workdir, "mlflow", self._id)
      params = []
      for key, value in config_lib.flatten(config).items():
        params.append(Param(key, str(value)[:_MAX_VALUE_LENGTH]))
      for chunk in _chunks(params, _MAX_PARAMETERS):
        self._client.log_batch(self._id, params=chunk)
    else:
      self._client.update_run(self._id, status="RUNNING")
      for key in self._client.get_run(self._id).data.metrics:
        history = self._client.get_metric_history(self._id, key)
        self._last[key] = max(metric.step for metric in history)
    process.log(f"mlflow: run {self._id} of experiment {tracker.experiment}")

  def send(self, rows: list[tuple[int, dict[str, float]]]) -> None:
    """Log the metrics of steps that the run does not have yet."""
    now = int(1000 * time.time())
    metrics = []
    for step, values in rows:
      for name, value in values.items():
        if step > self._last.get(name, -1):
          metrics.append(self._metric(name, value, now, step))
    for chunk in _chunks(metrics, _MAX_METRICS):
      self._client.log_batch(self._id, metrics=chunk)
      self._last |= {metric.key: metric.step for metric in chunk}

  def close(self, outcome: str) -> None:
    status = "KILLED" if outcome == "paused" else outcome.upper()
    self._client.set_terminated(self._id, status)


def _chunks(entries: list, size: int) -> list[list]:
  return [entries[first : first + size] for first in range(0, len(entries), size)]
