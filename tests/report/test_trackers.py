"""Trackers get each step once despite kills, and none of their failures ends a run."""

import collections
import json
import math
import os
import signal

import pytest

from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.report.trackers import _following
from t5x_like.report.writer import MetricsWriter, read_metrics
from tests import runs

TRACKERS = "t5x_like.report.trackers"
PROJECT = {"wandb": "project", "mlflow": "experiment"}


class Service:
  """Stand in for a remote run that can be down and refuses a step that it has."""

  def __init__(self):
    self.rows = []
    self.down = False
    self.calls = 0
    self.closed = None

  def connect(self):
    return self

  def send(self, rows):
    self.calls += 1
    if self.down:
      raise ConnectionError("no route\nto host")
    self.rows += rows

  def close(self, outcome):
    self.closed = outcome


def following(tmp_path, service):
  return MetricsWriter(
    tmp_path,
    resume_step=0,
    trackers=lambda: [_following.Following("here", tmp_path, service.connect)],
  )


def test_every_line_is_sent_in_order_without_values_that_are_not_finite(tmp_path):
  service = Service()
  with following(tmp_path, service) as writer:
    for step in range(1, 6):
      writer.write(step, {"train/loss": 1 / step, "train/gradient_norm": math.inf})
    writer.write(5, {"eval/loss": 2.0})
  assert service.rows == [(step, {"train/loss": 1 / step}) for step in range(1, 6)] + [
    (5, {"eval/loss": 2.0})
  ]
  assert service.closed == "finished"


def test_a_failure_is_reported_once_and_its_lines_are_sent_afterwards(
  tmp_path, caplog, monkeypatch
):
  monkeypatch.setattr(_following, "_RETRY_SECONDS", 0.01)
  service = Service()
  service.down = True
  with following(tmp_path, service) as writer:
    for step in range(1, 4):
      writer.write(step, {"train/loss": 1.0})
    while service.calls < 3:
      pass
    service.down = False
  assert [step for step, _ in service.rows] == [1, 2, 3]
  assert (
    caplog.text.count("config.trackers.here: ConnectionError: no route to host; the run continues")
    == 1
  )


def test_an_unreachable_tracker_ends_no_run(tmp_path):
  service = Service()
  service.down = True
  with following(tmp_path, service) as writer:
    writer.write(1, {"train/loss": 1.0})
  assert [row["step"] for row in read_metrics(tmp_path)] == [1]
  assert service.rows == []


def test_a_missing_library_is_refused_in_one_line(monkeypatch):
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  for name in PROJECT:
    with pytest.raises(
      UserError,
      match=rf"{name} is not installed; install it with pip install "
      rf"'t5x-like\[{name}\]'",
    ):
      slots.make(f"config.trackers.{name}", name, TRACKERS, "Tracker")


def test_an_unknown_tracker_and_argument_are_refused():
  with pytest.raises(UserError, match="config.trackers.wand: .*did you mean 'wandb'"):
    slots.make("config.trackers.wand", "wand", TRACKERS, "Tracker")
  with pytest.raises(UserError, match="config.trackers.tensorboard.folder: unknown key"):
    slots.make(
      "config.trackers.tensorboard", {"name": "tensorboard", "folder": "x"}, TRACKERS, "Tracker"
    )


def kill_and_resume(workdir, *flags):
  """Kill a run twice amid its steps and finish it; return its metrics' steps by name."""
  flags = [
    *flags,
    "--config.eval_every=10",
    '--config.evals={"loss":{"max_examples":64}}',
    "--config.total_steps=40",
  ]
  for last in (12, 25):
    with runs.Process(runs.train(workdir, *flags)) as run:
      assert run.until(
        lambda last=last: any(row["step"] >= last for row in read_metrics(workdir))
      ), run.output_so_far()
      run.send(signal.SIGKILL)
      run.end()
  with runs.Process(runs.train(workdir, *flags)) as run:
    code, output = run.end()
    assert code == 0, output
    assert "warning: config.trackers" not in output, output
  steps = collections.defaultdict(list)
  for row in read_metrics(workdir):
    for name in set(row) - {"step"}:
      steps[name].append(row["step"])
  assert steps["train/loss"] == list(range(1, 41))
  return steps


@pytest.mark.services
def test_wandb_offline_has_every_step_once_after_kills(tmp_path):
  pytest.importorskip("wandb")
  from wandb.proto import wandb_internal_pb2

  from t5x_like.report.trackers.wandb import read_records

  expected = kill_and_resume(
    tmp_path, '--config.trackers={"wandb":{"mode":"offline","project":"p"}}'
  )
  steps_by_metric = collections.defaultdict(list)
  ids = set()
  files = list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
  assert len(files) == 3
  for path in sorted(files, key=lambda path: path.stat().st_ctime_ns):
    for content in read_records(path.read_bytes()):
      record = wandb_internal_pb2.Record.FromString(content)
      ids |= {record.run.run_id} - {""}
      for item in record.history.item:
        steps_by_metric["/".join(item.nested_key) or item.key].append(record.history.step.num)
  assert len(ids) == 1
  assert {name: sorted(steps_by_metric[name]) for name in expected} == expected


@pytest.mark.services
def test_mlflow_files_have_every_step_once_after_kills(tmp_path, monkeypatch):
  mlflow = pytest.importorskip("mlflow")
  monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
  uri = (tmp_path / "store").as_uri()
  workdir = tmp_path / "run"
  trackers = {"mlflow": {"uri": uri, "experiment": "e"}, "tensorboard": {}}
  expected = kill_and_resume(workdir, f"--config.trackers={json.dumps(trackers)}")
  client = mlflow.MlflowClient(tracking_uri=uri)
  (run,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
  assert run.info.status == "FINISHED"
  assert run.data.params["model.name"] == "t5"
  for name, steps in expected.items():
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, name)] == steps
  assert list(workdir.glob("events*")), os.listdir(workdir)


@pytest.mark.services
def test_a_profile_opens_in_xprof(tmp_path):
  convert = pytest.importorskip("xprof.convert.raw_to_tool_data")
  with runs.Process(runs.train(tmp_path, "--config.total_steps=12", "--profile=5:8")) as run:
    code, output = run.end()
  assert code == 0, output
  traces = [str(path) for path in tmp_path.glob("profile/plugins/profile/*/*.xplane.pb")]
  assert len(traces) == 1
  assert any(name.startswith("trace_viewer") for name in convert.xspace_to_tool_names(traces))
  content, _ = convert.xspace_to_tool_data(traces, "trace_viewer", {})
  events = json.loads(content)["traceEvents"]
  assert any(
    "PjitFunction" in str(event.get("name")) or "step" in str(event.get("name")) for event in events
  )
