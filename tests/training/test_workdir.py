"""Commands lose nothing of a workdir that others write to, or that lost or tore files."""

import contextlib
import json
import pathlib
import shutil

import fsspec
import pytest

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
  "--config.eval_every=4",
  "--config.checkpoint.every=2",
  "--config.evals.loss.max_examples=8",
)


def train_run(workdir, total: int = 4, *flags) -> int:
  return train.main(
    [f"--config={NANO}", f"--workdir={workdir}", *FLAGS, f"--config.total_steps={total}", *flags]
  )


@pytest.fixture
def trained_copy(trained, tmp_path):
  """Return a copy of a run of four steps."""
  shutil.copytree(trained, tmp_path / "run")
  return tmp_path / "run"


def download_small_files(address, tmp_path) -> pathlib.Path:
  """Download the small files of a workdir; return their local directory."""
  if "://" not in str(address):
    return pathlib.Path(address)
  files, root = fsspec.core.url_to_fs(address)
  folder = tmp_path / "fetched"
  folder.mkdir(exist_ok=True)
  for name in ("metrics.jsonl", "history.jsonl"):
    (folder / name).write_bytes(files.cat_file(f"{root}/{name}"))
  return folder


@pytest.mark.parametrize("address", more.beyond(1, ["memory://handover", "{}/run"]))
def test_steps_that_another_run_saves_before_it_hands_over_are_kept(
  address, tmp_path, monkeypatch, capsys
):
  address = address.format(tmp_path)
  hold = workdirs.lock_workdir
  other_steps = [4]

  def after_another(workdir):
    if other_steps:  # the other run goes on, and ends just before this one gets the workdir
      assert train_run(address, other_steps.pop()) == 0
    return hold(workdir)

  assert train_run(address, 2) == 0
  monkeypatch.setattr(workdirs, "lock_workdir", after_another)
  assert train_run(address, 6) == 0
  assert not other_steps
  folder = download_small_files(address, tmp_path)
  assert [step for step, _ in losses(folder)] == [1, 2, 3, 4, 5, 6]
  assert [row["changes"] for row in read_history(folder) if "changes" in row] == [
    [],
    ["total_steps: 2 -> 4"],
    ["total_steps: 4 -> 6"],
  ]
  assert "from step 4 of 6" in capsys.readouterr().out


@pytest.mark.parametrize("how", more.beyond(1, ["removed", "empty", "a dangling link", "a file"]))
def test_a_trained_run_without_its_checkpoints_is_refused_unchanged(how, trained_copy, capsys):
  checkpoints = trained_copy / "checkpoints"
  before = (trained_copy / "metrics.jsonl").read_bytes()
  checkpoints.rename(trained_copy / "elsewhere")
  if how == "empty":
    checkpoints.mkdir()
  elif how == "a dangling link":
    checkpoints.symlink_to("/mnt/not/mounted")
  elif how == "a file":
    checkpoints.write_text("")
  for _ in range(2):
    assert train_run(trained_copy, 6) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    expected = {
      "a dangling link": "a link to /mnt/not/mounted, which is not there",
      "a file": "found a file",
    }
    assert expected.get(how, "holds no checkpoint, but history.jsonl says that step") in error
    assert how in expected or "--from_step=0" in error
    assert (trained_copy / "metrics.jsonl").read_bytes() == before
  checkpoints.rmdir() if how == "empty" else checkpoints.unlink(missing_ok=True)
  (trained_copy / "elsewhere").rename(checkpoints)
  assert train_run(trained_copy, 6) == 0
  assert [step for step, _ in losses(trained_copy)] == [1, 2, 3, 4, 5, 6]


def test_beginning_anew_sets_the_old_metrics_aside_and_ends_with_the_same_bits(
  trained_copy, trained, capsys
):
  before = (trained_copy / "metrics.jsonl").read_bytes()
  shutil.rmtree(trained_copy / "checkpoints")
  assert train_run(trained_copy, 2, "--from_step=0") == 0
  (aside,) = trained_copy.glob("metrics.*.jsonl")
  assert aside.read_bytes() == before
  assert [step for step, _ in losses(trained_copy)] == [1, 2]
  assert train_run(trained_copy, 4, "--from_step=0") == 0, "it acts once"
  assert "from step 2 of 4" in capsys.readouterr().out
  assert len(list(trained_copy.glob("metrics.*.jsonl"))) == 1
  assert losses(trained_copy) == losses(trained)
  assert fingerprints(trained_copy, 4) == fingerprints(trained, 4)
  assert train_run(trained_copy, 6, "--from_step=2") == 0
  assert sorted(path.name for path in (trained_copy / "checkpoints").glob("*.set_aside")) == [
    "4.set_aside"
  ]
  assert len(list(trained_copy.glob("metrics.*.jsonl"))) == 2


@pytest.mark.more
def test_a_remote_run_without_its_checkpoints_is_refused_too(tmp_path, capsys):
  address = "memory://vanished/run"
  assert train_run(address, 2) == 0
  files, root = fsspec.core.url_to_fs(address)
  files.rm(f"{root}/checkpoints", recursive=True)
  before = files.cat_file(f"{root}/metrics.jsonl")
  assert train_run(address, 4) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert (
    f"{address}/checkpoints: holds no checkpoint, but history.jsonl says that step 2 was saved"
  ) in error
  assert files.cat_file(f"{root}/metrics.jsonl") == before
  assert train_run(address, 2, "--from_step=0") == 0
  assert [name for name in files.ls(root, detail=False) if "/metrics.2" in name]


def test_metrics_prove_a_save_where_history_is_gone(trained_copy, capsys):
  shutil.rmtree(trained_copy / "checkpoints")
  (trained_copy / "history.jsonl").unlink()
  with open(trained_copy / "metrics.jsonl", "a") as file:
    file.write('{"step": 5, "train/loss": 1.0}\n')
  assert train_run(trained_copy) == 2
  assert "metrics.jsonl reaches step 5, and a step was saved every 2" in capsys.readouterr().err


@pytest.mark.more
def test_a_run_that_ended_before_its_first_checkpoint_begins_again(
  tmp_path, trained, monkeypatch, capsys
):
  def kill(self, *_, **__):
    raise KeyboardInterrupt

  monkeypatch.setattr(Checkpoints, "save", kill)
  for _ in range(2):
    with contextlib.suppress(KeyboardInterrupt):
      train_run(tmp_path)
  monkeypatch.undo()
  assert [step for step, _ in losses(tmp_path)] == [1, 2]
  assert workdirs.find_saved_step(read_history(tmp_path)) is None
  assert train_run(tmp_path) == 0
  assert capsys.readouterr().out.count("new run in") == 3
  assert losses(tmp_path) == losses(trained)


@pytest.mark.more
def test_the_first_save_is_noted_while_the_run_goes_on(tmp_path, monkeypatch):
  noted = []
  advance = TrainingRun.advance

  def looking(self):
    if self.step == 4:
      self.session.wait_for_save()
      noted.append(workdirs.find_saved_step(read_history(self.session.workdir)))
    return advance(self)

  monkeypatch.setattr(TrainingRun, "advance", looking)
  assert train_run(tmp_path, 6) == 0
  assert noted[0] in (2, 4)
  assert len([row for row in read_history(tmp_path) if "saved" in row]) == 1


@pytest.mark.parametrize(
  "foreign",
  [b'{"time": "2026-01', b"[1]", b"null", b"{}", b'{"time": 5}', b'{"time": "soon"}', b"\xff"],
  ids=range(7),
)
def test_history_is_read_line_by_line(foreign, tmp_path, caplog):
  workdirs.add_line(tmp_path, {"step": 0, "environment": {}, "from_step": 2})
  path = tmp_path / "history.jsonl"
  path.write_bytes(foreign + b"\n" + path.read_bytes() + foreign)
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
def test_going_back_happens_once_despite_a_torn_line_of_history(trained_copy, caplog):
  with open(trained_copy / "history.jsonl", "ab") as file:
    file.write(b'{"time": "2026-01-01T00:00:00+00:00", "st')
  for _ in range(2):
    assert train_run(trained_copy, 4, "--from_step=2") == 0
  assert caplog.text.count("torn or foreign line is skipped") == 1
  assert [path.name for path in (trained_copy / "checkpoints").glob("*.set_aside*")] == [
    "4.set_aside"
  ]
  assert steps(trained_copy) == [2, 4]


@pytest.mark.parametrize("content", more.beyond(1, [b"", b'{"model": {', b"[]", None]))
def test_a_damaged_config_is_taken_from_history(content, trained_copy, caplog, capsys):
  path = trained_copy / "config.json"
  before = (trained_copy / "config.json").read_bytes()
  path.unlink() if content is None else path.write_bytes(content)
  assert evaluate.main([f"--workdir={trained_copy}", "--config.evals.loss.max_examples=8"]) == 0
  assert f"{path}: " in caplog.text
  assert "its copy in history.jsonl is used" in caplog.text
  assert train_run(trained_copy, 4, "--config.seed=1") == 2
  assert "seed: 0 there, 1 here" in capsys.readouterr().err
  assert train_run(trained_copy, 4, "--config.evals.loss.max_examples=None") == 0
  assert path.read_bytes() == before


def test_a_damaged_config_without_a_copy_says_how_to_mend_it(trained_copy, capsys):
  (trained_copy / "config.json").write_bytes(b"")
  rows = [json.loads(line) for line in (trained_copy / "history.jsonl").read_text().splitlines()]
  rows[0]["config"]["seed"] = 5  # its digest is another now
  (trained_copy / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  for code in (
    train_run(trained_copy),
    evaluate.main([f"--workdir={trained_copy}"]),
  ):
    assert code == 2
  for error in capsys.readouterr().err.splitlines()[-2:]:
    assert (
      "config.json: damaged (empty), and history.jsonl has no copy of it; restore the file" in error
    )
  (trained_copy / "config.json").unlink()
  assert train_run(trained_copy) == 0


@pytest.mark.parametrize("remaining", more.beyond(1, [2, None]))
def test_lost_metrics_are_reported_and_leave_a_gap(remaining, trained_copy, capsys):
  path = trained_copy / "metrics.jsonl"
  lines = path.read_bytes().splitlines(keepends=True)
  path.unlink() if remaining is None else path.write_bytes(b"".join(lines[:remaining]))
  first = 1 if remaining is None else 3
  assert train_run(trained_copy, 6) == 0
  assert capsys.readouterr().out.count(f"metrics.jsonl: steps {first} to 4 have no metrics") == 1
  assert [row["missing_from"] for row in read_metrics(trained_copy) if "missing_from" in row] == [
    first
  ]
  assert f"Steps {first} to 4 have no metrics" in (trained_copy / "report.html").read_text()
  assert train_run(trained_copy, 6) == 0
  assert "have no metrics" not in capsys.readouterr().out
