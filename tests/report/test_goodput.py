"""Goodput splits all time since the start into steps, saves, evaluations and disruptions."""

import json

import pytest

from t5x_like.files.local import LocalPath
from t5x_like.report.trackers import goodput


class Clock:
  def __init__(self):
    self.now = 1_000.0

  def __call__(self):
    return self.now


def line(seconds, waited=0.0):
  return {"train/seconds_per_step": seconds, "train/data_wait_fraction": waited}


def test_every_second_is_counted_once(tmp_path):
  clock = Clock()
  file = LocalPath(tmp_path / "goodput.json")
  run = goodput.Goodput(file, 0, 990.0, clock)  # 10 s until the state was there
  clock.now += 22
  run.write(1, line(2.0))  # 20 s of compiling
  for step in range(2, 11):
    clock.now += 2
    run.write(step, line(2.0, 0.25))
  clock.now += 3
  run.write(10, {"eval/loss/seconds": 3.0, "eval/loss/loss": 1.0})
  clock.now += 6
  run.write(11, line(2.0))  # 4 s of saving
  run.flush()
  clock.now += 1  # and killed
  clock.now += 35
  run = goodput.Goodput(file, 8, clock.now - 5, clock)  # 31 s after the last sign, three steps back
  run.write(9, line(0.0))
  run.close("paused")
  totals = json.loads(file.read())
  badput = totals["badput_time"]
  assert badput["custom_badput_events.evaluation"] == 3
  assert badput["unproductive_checkpoint_save_time"] == 4
  assert badput["data_loading_sync"] == 4.5
  assert badput["program_startup"] == 20
  assert badput["infrastructure_recovery_from_disruption"] == pytest.approx(31)
  assert badput["wasted_progress_from_disruption"] == pytest.approx(17.5 * 3 / 11, abs=1e-3)
  assert totals["goodput_time"] == pytest.approx(17.5 * 8 / 11, abs=1e-3)
  assert totals["disruption_count"] == 1
  assert totals["max_productive_step"] == 9
  assert sum(badput.values()) + totals["goodput_time"] == pytest.approx(
    totals["total_elapsed_time"], abs=0.01
  )


def test_an_orderly_stop_is_no_disruption_and_a_damaged_file_begins_anew(tmp_path, caplog):
  clock = Clock()
  file = LocalPath(tmp_path / "goodput.json")
  run = goodput.Goodput(file, 0, clock.now, clock)
  run.write(1, line(1.0))
  run.close("paused")
  run = goodput.Goodput(file, 1, clock.now, clock)
  assert run._record["disruption_count"] == 0
  run.close("failed")
  run = goodput.Goodput(file, 1, clock.now, clock)
  assert run._record["disruption_count"] == 1
  run.write(2, line(1.0))
  run.close("finished")
  assert goodput.Goodput(file, 2, clock.now, clock)._record["disruption_count"] == 1
  for content in ("{", "[]", '{"badput_time": 3}', '{"badput_time": {}}'):
    file.write_text(content)
    assert goodput.Goodput(file, 1, clock.now, clock)._record["began"] == clock.now


def test_a_clock_set_back_subtracts_no_time(tmp_path):
  clock = Clock()
  file = LocalPath(tmp_path / "goodput.json")
  run = goodput.Goodput(file, 0, clock.now, clock)
  clock.now += 30
  run.write(1, line(20.0))
  run.flush()  # and killed
  clock.now = 100.0
  run = goodput.Goodput(file, 1, clock.now - 5, clock)
  clock.now += 40
  run.write(2, line(20.0))
  run.close("finished")
  totals = json.loads(file.read())
  assert totals["total_elapsed_time"] == 70
  assert totals["goodput"] == pytest.approx(40 / 70, abs=1e-3)


def test_the_time_before_the_import_counts(tmp_path):
  import time

  assert time.time() - 86_400 * 30 < goodput._program_start() <= time.time()
