"""The metrics of a run are one gapless sequence after any kill."""

import contextlib
import json
import math
import os
import pathlib
import pty
import resource
import shutil
import signal
import subprocess
import sys
import termios

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from t5x_like.errors import TransientError, UserError
from t5x_like.report.trackers import console
from t5x_like.report.writer import MetricsWriter, read_metrics

REPO = pathlib.Path(__file__).resolve().parents[2]
ROGUE = """
import sys, os, signal
sys.path[:0] = [{repo!r}]
import pathlib
from t5x_like.report.trackers import console, tensorboard
from t5x_like.report.writer import MetricsWriter
start, workdir = int(sys.argv[2]), pathlib.Path(sys.argv[1])
kinds = tensorboard, console
events = lambda: [kind.Tracker().open(workdir, "run", start, {{"total_steps": 30}}) for kind in kinds]
with MetricsWriter(workdir, resume_step=start, trackers=events) as writer:
  for step in range(start + 1, 31):
    writer.write(step, {{"train/loss": 1 / step}})
    writer.flush()
    if step == int(sys.argv[3]):
      os.write(writer._file.fileno(), b'{{"step": 99, "tra')
      os.kill(os.getpid(), signal.SIGKILL)
"""


def tensorboard_steps(workdir):
  """Return the steps that TensorBoard shows: a session replaces the steps after its start."""
  steps = []
  for path in sorted(workdir.glob("events.out.tfevents.*"), key=lambda p: p.stat().st_mtime_ns):
    content = path.read_bytes()
    while len(content) >= 12:  # length, its checksum, the event, its checksum
      size = int.from_bytes(content[:8], "little")
      event = Event.FromString(content[12 : 12 + size])
      content = content[16 + size :]
      if event.session_log.status == SessionLog.START:
        steps = [step for step in steps if step < event.step]
      steps += [event.step for value in event.summary.value if value.tag == "train/loss"]
  return steps


def write(workdir, steps, resume_step=0, **extra):

  def make_trackers():
    return [console.Tracker().open(workdir, "run", resume_step, {"total_steps": 10})]

  with MetricsWriter(workdir, resume_step=resume_step, trackers=make_trackers) as writer:
    for step in steps:
      writer.write(step, {"train/loss": 1 / step, **extra})


def test_lines_are_flat_json_with_the_step_first(tmp_path):
  write(tmp_path, [1, 2], **{"train/gradient_norm": math.inf, "train/mfu": math.nan})
  lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
  assert lines[1] == (
    '{"step": 2, "train/loss": 0.5, "train/gradient_norm": null, "train/mfu": null}'
  )
  assert read_metrics(tmp_path) == [json.loads(line) for line in lines]
  assert read_metrics(tmp_path / "nothing") == []


def test_metrics_are_gapless_after_kills(tmp_path):
  for start, kill in [(0, 12), (10, 17), (5, 9), (8, 99)]:
    process = subprocess.run(
      [sys.executable, "-c", ROGUE.format(repo=str(REPO)), str(tmp_path), str(start), str(kill)],
      capture_output=True,
      timeout=600,
    )
    assert process.returncode == (0 if kill == 99 else -signal.SIGKILL), process.stderr
  assert [(row["step"], row["train/loss"]) for row in read_metrics(tmp_path)] == [
    (s, 1 / s) for s in range(1, 31)
  ]
  assert tensorboard_steps(tmp_path) == list(range(1, 31))


@pytest.mark.parametrize(
  "bad",
  [b'{"step": 2, "tr', b"\xff\xfe", b"[2]", b'{"train/loss": 1}', b'{"step": 2.5}', b"[" * 100_000],
  ids=range(6),
)
def test_a_torn_or_foreign_line_is_reported_once_and_set_aside(bad, tmp_path, caplog):
  write(tmp_path, [1, 2, 3])
  path = tmp_path / "metrics.jsonl"
  lines = path.read_bytes().splitlines()
  path.write_bytes(b"\n".join([lines[0], bad, lines[2]]) + b"\n")
  content = path.read_bytes()
  assert (
    [row["step"] for row in read_metrics(tmp_path)]
    == [1, 3]
    == [row["step"] for row in read_metrics(tmp_path)]
  )
  assert caplog.text.count("metrics.jsonl:2: torn or foreign line is skipped") == 1
  assert path.read_bytes() == content, "reading changes nothing"
  write(tmp_path, [4], resume_step=3)
  assert [row["step"] for row in read_metrics(tmp_path)] == [1, 3, 4]
  (aside,) = tmp_path.glob("metrics.*.jsonl")
  assert aside.read_bytes() == content


def test_lost_lines_are_noticed_and_marked_once(tmp_path):
  write(tmp_path, range(1, 10))
  path = tmp_path / "metrics.jsonl"
  path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
  for expected in ((5, 9), None):
    with MetricsWriter(tmp_path, resume_step=9, expected=9) as writer:
      assert writer.missing == expected
  assert read_metrics(tmp_path)[4:] == [{"step": 9, "missing_from": 5}]
  path.unlink()
  with MetricsWriter(tmp_path, resume_step=9, expected=6) as writer:
    assert writer.missing == (1, 9)


def remove(path):
  path.unlink()


def remove_the_directory(path):
  shutil.rmtree(path.parent)


def empty(path):
  path.write_bytes(b"")


def cut_inside_the_second_line(path):
  content = path.read_bytes()
  os.truncate(path, content.index(b"\n") + 5)


def replace_with_an_equal_file(path):
  content = path.read_bytes()
  path.unlink()
  path.write_bytes(content)


@pytest.mark.parametrize(
  "change, message, present",
  [
    (remove, "removed", []),
    (remove_the_directory, "removed", []),
    (empty, "cut", []),
    (cut_inside_the_second_line, "cut", [1]),
    (replace_with_an_equal_file, "replaced", [1, 2, 3]),
  ],
)
def test_a_file_that_changes_during_the_run_is_reported_and_continued(
  change, message, present, tmp_path, caplog
):
  workdir = tmp_path / "run"
  with MetricsWriter(workdir, resume_step=0) as writer:
    for step in (1, 2, 3):
      writer.write(step, {"train/loss": 1.0})
    change(workdir / "metrics.jsonl")
    for step in (4, 5):
      writer.write(step, {"train/loss": 1.0})
  lost = [{"step": 3, "missing_from": len(present) + 1}] if len(present) < 3 else []
  lines = [{"step": step, "train/loss": 1.0} for step in present] + lost
  assert read_metrics(workdir) == lines + [{"step": step, "train/loss": 1.0} for step in (4, 5)]
  (record,) = caplog.records
  assert f"metrics.jsonl: was {message} while the run writes to it" in record.message
  assert ("steps 1 to 3 are lost" in record.message) == (present == [])


def test_a_file_that_another_run_has_replaced_gets_no_line(tmp_path):
  def check():
    raise TransientError("another process has taken the workdir over")

  writer = MetricsWriter(tmp_path, resume_step=0, check=check)
  writer.write(1, {"train/loss": 1.0})
  MetricsWriter(tmp_path, resume_step=0).close()
  with pytest.raises(TransientError, match="taken the workdir over"):
    writer.write(2, {"train/loss": 1.0})
  assert read_metrics(tmp_path) == []


def test_a_file_removed_after_its_last_line_is_marked_too(tmp_path):
  with MetricsWriter(tmp_path, resume_step=0) as writer:
    writer.write(7, {"train/loss": 1.0})
    (tmp_path / "metrics.jsonl").unlink()
  assert read_metrics(tmp_path) == [{"step": 7, "missing_from": 1}]


@pytest.mark.parametrize("size", [1, 5])
def test_a_file_overwritten_in_place_is_set_aside_and_marked(size, tmp_path, caplog):
  path = tmp_path / "metrics.jsonl"
  with MetricsWriter(tmp_path, resume_step=0) as writer:
    for step in (1, 2, 3):
      writer.write(step, {"train/loss": 1.0})
    path.write_bytes(size * path.stat().st_size * b"\0")
    writer.write(4, {"train/loss": 1.0})
  assert read_metrics(tmp_path) == [
    {"step": 3, "missing_from": 1},
    {"step": 4, "train/loss": 1.0},
  ]
  assert "was overwritten while the run writes to it" in caplog.text
  (aside,) = tmp_path.glob("metrics.*.jsonl")
  assert set(aside.read_bytes()) == {0}


def test_repeated_lines_are_dropped_and_set_aside(tmp_path, caplog):
  with MetricsWriter(tmp_path, resume_step=0) as writer:
    for step in (1, 2):
      writer.write(step, {"train/loss": 1.0})
      writer.write(step, {"eval/loss": 1.0})
  path = tmp_path / "metrics.jsonl"
  path.write_bytes(2 * path.read_bytes())
  with MetricsWriter(tmp_path, resume_step=2) as writer:
    writer.write(3, {"train/loss": 1.0})
  assert [(row["step"], *list(row)[1:]) for row in read_metrics(tmp_path)] == [
    (1, "train/loss"),
    (1, "eval/loss"),
    (2, "train/loss"),
    (2, "eval/loss"),
    (3, "train/loss"),
  ]
  assert "dropped 4 repeated lines" in caplog.text
  (aside,) = tmp_path.glob("metrics.*.jsonl")
  assert len(aside.read_text().splitlines()) == 8


def test_a_partial_last_line_is_dropped(tmp_path):
  write(tmp_path, [1, 2])
  with open(tmp_path / "metrics.jsonl", "ab") as file:
    file.write(b'{"step": 3}')
  assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]
  write(tmp_path, [3], resume_step=2)
  assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]


def test_a_refusing_disk_ends_in_one_line(tmp_path):
  limit = resource.getrlimit(resource.RLIMIT_FSIZE)
  writer = MetricsWriter(tmp_path, resume_step=0)
  resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))
  try:
    with pytest.raises(
      UserError, match="metrics.jsonl: metrics could not be written: File too large"
    ):
      for step in range(1, 1000):
        writer.write(step, {"train/loss": 1.0})
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
  writer.close()
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match="File exists|Not a directory"):
    MetricsWriter(tmp_path / "file", resume_step=0)


def test_only_the_primary_writes(tmp_path):
  with MetricsWriter(tmp_path / "run", resume_step=0, primary=False) as writer:
    writer.write(1, {"train/loss": 1.0})
    writer.flush()
  assert not (tmp_path / "run").exists()


def test_progress_lines_state_the_remaining_time(tmp_path, capfd, monkeypatch):
  clock = iter(range(0, 10_000, 30))  # a step takes 30 s, as the clock is read twice for one
  monkeypatch.setattr(console.time, "monotonic", lambda: next(clock) / 4 * 10)
  write(tmp_path, range(1, 11))
  lines = capfd.readouterr().err.splitlines()
  assert lines[0] == "step 1/10  loss 1"
  assert lines[-1] == "step 10/10  loss 0.1"
  assert all(line.endswith((" s left", " min left")) for line in lines[1:-1])
  assert len(lines) == 10


def test_progress_is_a_bar_on_a_terminal_or_few_lines(tmp_path, capfd):
  write(tmp_path, range(1, 9), **{"train/tokens_per_second": 12345.6})
  write(tmp_path, [8], resume_step=7, **{"eval/books/loss": 2.5, "eval/books/accuracy": 0.5})
  lines = capfd.readouterr().err.splitlines()
  assert lines == [
    "step 1/10  loss 1  tokens_per_second 12,346",
    "step 8/10  eval books",
    "    loss 2.5  accuracy 0.5",
  ]
  main, terminal = pty.openpty()
  termios.tcsetwinsize(terminal, (24, 100))
  command = [sys.executable, "-c", ROGUE.format(repo=str(REPO)), str(tmp_path / "bar"), "0", "99"]
  subprocess.run(command, stderr=terminal, timeout=600, check=True)
  os.close(terminal)
  screen = b""
  with contextlib.suppress(OSError):  # what a closed terminal answers
    while part := os.read(main, 1 << 16):
      screen += part
  os.close(main)
  assert b"30/30" in screen
  assert b"loss 0.03333" in screen
