"""Commands lose no data of a workdir that another run writes to, or whose files are damaged."""

import contextlib
import pathlib
import shutil

import fsspec
import pytest

import json_lines
import more
from t5x_like import evaluate, train
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.report.writer import read_metrics
from t5x_like.saved_model.workdir import read_history
from t5x_like.training import workdir as workdirs
from t5x_like.training.run import TrainingRun
from tests.runs import NANO, fingerprints, losses, steps

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled", "one_device")]
FLAGS = (
  f"--config={NANO}",
  "--config.eval_every=4",
  "--config.checkpoint.every=2",
  "--config.evals.loss.max_examples=8",
)
ALL_STEPS = [1, 2, 3, 4, 5, 6]


def train_run(workdir, total: int = 4, *flags) -> int:
  return train.main([*FLAGS, f"--workdir={workdir}", f"--config.total_steps={total}", *flags])


def last_error(capsys) -> str:
  return capsys.readouterr().err.splitlines()[-1]


def logged_steps(workdir) -> list[int]:
  return [step for step, _ in losses(workdir)]


@pytest.fixture
def copied_run(trained, tmp_path):
  """Return a copy of a run of four steps."""
  return shutil.copytree(trained, tmp_path / "run")


def download_logs(location, tmp_path) -> pathlib.Path:
  """Download the metrics and the history of a remote workdir; return their local directory."""
  if "://" not in str(location):
    return pathlib.Path(location)
  files, root = fsspec.core.url_to_fs(location)
  folder = tmp_path / "fetched"
  folder.mkdir(exist_ok=True)
  for name in ("metrics.jsonl", "history.jsonl"):
    (folder / name).write_bytes(files.cat_file(f"{root}/{name}"))
  return folder


@pytest.mark.parametrize("location", more.beyond(1, ["memory://handover", "{}/run"]))
def test_steps_that_another_run_saves_just_before_it_ends_are_kept(
  location, tmp_path, monkeypatch, capsys
):
  location = location.format(tmp_path)
  lock = workdirs.lock_workdir
  totals_of_another_run = [4]

  def lock_after_another_run(workdir):
    if totals_of_another_run:  # continue the run just before this one locks the workdir
      assert train_run(location, totals_of_another_run.pop()) == 0
    return lock(workdir)

  assert train_run(location, 2) == 0
  monkeypatch.setattr(workdirs, "lock_workdir", lock_after_another_run)
  assert train_run(location, 6) == 0
  assert not totals_of_another_run
  folder = download_logs(location, tmp_path)
  assert logged_steps(folder) == ALL_STEPS
  changes = [row["changes"] for row in read_history(folder) if "changes" in row]
  assert changes == [[], ["total_steps: 2 -> 4"], ["total_steps: 4 -> 6"]]
  assert "from step 4 of 6" in capsys.readouterr().out


def leave_missing(path: pathlib.Path) -> None:
  """Write nothing to a path."""


# A function that writes something in place of the folder of checkpoints -> part of the error.
REPLACEMENTS = {
  leave_missing: "holds no checkpoint, but history.jsonl says that step",
  pathlib.Path.mkdir: "holds no checkpoint, but history.jsonl says that step",
  pathlib.Path.touch: "found a file",
  lambda path: path.symlink_to(
    "/mnt/not/mounted"
  ): "a link to /mnt/not/mounted, which is not there",
}


@pytest.mark.parametrize("replace, message", more.beyond(1, REPLACEMENTS.items()))
def test_trained_run_without_its_checkpoints_is_refused_and_not_changed(
  replace, message, copied_run, capsys
):
  checkpoints = copied_run / "checkpoints"
  before = (copied_run / "metrics.jsonl").read_bytes()
  checkpoints.rename(copied_run / "elsewhere")
  replace(checkpoints)
  for _ in range(2):
    assert train_run(copied_run, 6) == 2
    error = last_error(capsys)
    assert message in error
    assert ("--from_step=0" in error) == ("holds no checkpoint" in message)
    assert (copied_run / "metrics.jsonl").read_bytes() == before
  if checkpoints.is_dir():
    checkpoints.rmdir()
  checkpoints.unlink(missing_ok=True)
  (copied_run / "elsewhere").rename(checkpoints)
  assert train_run(copied_run, 6) == 0
  assert logged_steps(copied_run) == ALL_STEPS


def test_restart_from_step_0_sets_old_metrics_aside_and_ends_with_the_same_bits(
  copied_run, trained, capsys
):
  before = (copied_run / "metrics.jsonl").read_bytes()
  shutil.rmtree(copied_run / "checkpoints")
  assert train_run(copied_run, 2, "--from_step=0") == 0
  (old_metrics,) = copied_run.glob("metrics.*.jsonl")
  assert old_metrics.read_bytes() == before
  assert logged_steps(copied_run) == [1, 2]
  assert train_run(copied_run, 4, "--from_step=0") == 0, "the flag takes effect only once"
  assert "from step 2 of 4" in capsys.readouterr().out
  assert list(copied_run.glob("metrics.*.jsonl")) == [old_metrics]
  assert losses(copied_run) == losses(trained)
  assert fingerprints(copied_run, 4) == fingerprints(trained, 4)
  assert train_run(copied_run, 6, "--from_step=2") == 0
  assert list_steps_set_aside(copied_run) == ["4.set_aside"]
  assert len(list(copied_run.glob("metrics.*.jsonl"))) == 2


def list_steps_set_aside(workdir) -> list[str]:
  return [path.name for path in (workdir / "checkpoints").glob("*.set_aside*")]


@pytest.mark.more
def test_remote_run_without_its_checkpoints_is_refused(tmp_path, capsys):
  location = "memory://vanished/run"
  assert train_run(location, 2) == 0
  files, root = fsspec.core.url_to_fs(location)
  files.rm(f"{root}/checkpoints", recursive=True)
  before = files.cat_file(f"{root}/metrics.jsonl")
  assert train_run(location, 4) == 2
  error = last_error(capsys)
  assert f"{location}/checkpoints: holds no checkpoint" in error
  assert "step 2 was saved" in error
  assert files.cat_file(f"{root}/metrics.jsonl") == before
  assert train_run(location, 2, "--from_step=0") == 0
  assert [name for name in files.ls(root, detail=False) if "/metrics.2" in name]


def test_metrics_show_that_steps_were_saved_if_history_is_missing(copied_run, capsys):
  shutil.rmtree(copied_run / "checkpoints")
  (copied_run / "history.jsonl").unlink()
  with open(copied_run / "metrics.jsonl", "a") as file:
    file.write('{"step": 5, "train/loss": 1.0}\n')
  assert train_run(copied_run) == 2
  assert "metrics.jsonl reaches step 5, and a step was saved every 2" in last_error(capsys)


@pytest.mark.more
def test_run_that_ended_before_its_first_checkpoint_starts_again(
  tmp_path, trained, monkeypatch, capsys
):
  def interrupt(self, *_, **__):
    raise KeyboardInterrupt

  monkeypatch.setattr(Checkpoints, "save", interrupt)
  for _ in range(2):
    with contextlib.suppress(KeyboardInterrupt):
      train_run(tmp_path)
  monkeypatch.undo()
  assert logged_steps(tmp_path) == [1, 2]
  assert workdirs.find_saved_step(read_history(tmp_path)) is None
  assert train_run(tmp_path) == 0
  assert capsys.readouterr().out.count("new run in") == 3
  assert losses(tmp_path) == losses(trained)


@pytest.mark.more
def test_first_save_is_recorded_while_the_run_continues(tmp_path, monkeypatch):
  recorded_steps = []
  advance = TrainingRun.advance

  def check_history_and_advance(self):
    if self.step == 4:
      self.session.wait_for_save()
      recorded_steps.append(workdirs.find_saved_step(read_history(self.session.workdir)))
    return advance(self)

  monkeypatch.setattr(TrainingRun, "advance", check_history_and_advance)
  assert train_run(tmp_path, 6) == 0
  assert recorded_steps[0] in (2, 4)
  assert len([row for row in read_history(tmp_path) if "saved" in row]) == 1


@pytest.mark.parametrize(
  "damaged_line",
  [b'{"time": "2026-01', b"[1]", b"null", b"{}", b'{"time": 5}', b'{"time": "soon"}', b"\xff"],
  ids=range(7),
)
def test_damaged_lines_of_history_are_skipped(damaged_line, tmp_path, caplog):
  workdirs.add_line(tmp_path, {"step": 0, "environment": {}, "from_step": 2})
  path = tmp_path / "history.jsonl"
  path.write_bytes(damaged_line + b"\n" + path.read_bytes() + damaged_line)
  workdirs.add_line(tmp_path, {"saved": 7})
  rows = read_history(tmp_path)
  assert [row.get("saved") for row in rows] == [None, 7]
  assert workdirs.last_from_step(rows) == 2
  assert workdirs.find_saved_step(rows) == 7
  warnings = [record.getMessage() for record in caplog.records]
  assert [text.partition(": ")[0] for text in warnings] == [
    f"{path}:1",
    f"{path}:3",
  ]
  assert workdirs.first_start_time(rows)


@pytest.mark.more
def test_from_step_takes_effect_once_despite_a_torn_line_of_history(copied_run, caplog):
  with open(copied_run / "history.jsonl", "ab") as file:
    file.write(b'{"time": "2026-01-01T00:00:00+00:00", "st')
  for _ in range(2):
    assert train_run(copied_run, 4, "--from_step=2") == 0
  assert caplog.text.count("torn or foreign line is skipped") == 1
  assert list_steps_set_aside(copied_run) == ["4.set_aside"]
  assert steps(copied_run) == [2, 4]


@pytest.mark.parametrize("content", more.beyond(1, [b"", b'{"model": {', b"[]", None]))
def test_damaged_config_is_restored_from_history(content, copied_run, caplog, capsys):
  path = copied_run / "config.json"
  before = path.read_bytes()
  path.unlink()
  if content is not None:
    path.write_bytes(content)
  assert evaluate.main([f"--workdir={copied_run}", "--config.evals.loss.max_examples=8"]) == 0
  assert f"{path}: " in caplog.text
  assert "its copy in history.jsonl is used" in caplog.text
  assert train_run(copied_run, 4, "--config.seed=1") == 2
  assert "seed: 0 there, 1 here" in last_error(capsys)
  assert train_run(copied_run, 4, "--config.evals.loss.max_examples=None") == 0
  assert path.read_bytes() == before


def test_damaged_config_without_a_copy_is_refused_with_a_remedy(copied_run, capsys):
  (copied_run / "config.json").write_bytes(b"")
  rows = json_lines.read(copied_run / "history.jsonl")
  rows[0]["config"]["seed"] = 5  # no longer matches its digest
  json_lines.write(copied_run / "history.jsonl", rows)
  message = "config.json: damaged (empty), and history.jsonl has no copy of it; restore the file"
  assert train_run(copied_run) == 2
  assert message in last_error(capsys)
  assert evaluate.main([f"--workdir={copied_run}"]) == 2
  assert message in last_error(capsys)
  (copied_run / "config.json").unlink()
  assert train_run(copied_run) == 0


@pytest.mark.parametrize("num_lines, first", more.beyond(1, [(2, 3), (0, 1)]))
def test_lost_metrics_are_reported_and_leave_a_gap(num_lines, first, copied_run, capsys):
  path = copied_run / "metrics.jsonl"
  lines = path.read_bytes().splitlines(keepends=True)
  path.unlink()
  if num_lines:
    path.write_bytes(b"".join(lines[:num_lines]))
  assert train_run(copied_run, 6) == 0
  assert capsys.readouterr().out.count(f"metrics.jsonl: steps {first} to 4 have no metrics") == 1
  (row,) = [row for row in read_metrics(copied_run) if "missing_from" in row]
  assert row["missing_from"] == first
  assert f"Steps {first} to 4 have no metrics" in (copied_run / "report.html").read_text()
  assert train_run(copied_run, 6) == 0
  assert "have no metrics" not in capsys.readouterr().out
