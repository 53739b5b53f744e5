"""Launchers price a job before its start, and end it, saved, within its budget and deadline."""

import argparse
import json
import os
import subprocess
import sys
import time

import pytest

from launch import gke, sky, slurm, spending
from launch.spending import Chips, Limit
from t5x_like.errors import UserError

COMMAND = ("--", "python", "-m", "my.train", "--workdir=gs://bucket/run")
SAVES = (
  "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); time.sleep(60)"
)


@pytest.fixture
def prices(tmp_path):
  path = tmp_path / "prices.toml"
  path.write_text('currency = "EUR"\n[per_chip_hour]\nv5e = 1.5\nnvidia-h100-80gb = 4\ngpu = 2\n')
  return path


def arguments(**changes):
  values = {"prices": "", "budget": None, "deadline": None, "chip": ""}
  return argparse.Namespace(**values | changes)


@pytest.mark.parametrize(
  "accelerator_type, chips",
  [
    ("v5litepod-64", Chips("v5e", 128)),
    ("tpu-v5litepod-8", Chips("v5e", 16)),
    ("v6e-256", Chips("v6e", 512)),
    ("v4-64", Chips("v4", 64)),
    ("v5p-8", Chips("v5p", 8)),
  ],
)
def test_chips_of_tpus_are_counted(accelerator_type, chips):
  assert spending.chips_of_tpu(accelerator_type, 2) == chips


def test_the_price_is_printed_and_the_budget_pays_for_the_save_too(prices, capsys):
  args = arguments(prices=str(prices), budget=150.0)
  limit = spending.set_limit(args, Chips("v5e", 50), 168, 1800)
  assert limit.hours == pytest.approx(1.5)  # two hours at 75, less the reserve
  (line,) = capsys.readouterr().err.splitlines()
  assert "50 chips (v5e) at 1.5 EUR an hour each: 75.00 EUR an hour" in line
  assert "at most 150.00 EUR in 1.5 hours (--budget)" in line
  large = arguments(prices=str(prices), budget=1e9)
  assert spending.set_limit(large, Chips("v5e", 50), 168, 1800).hours == 168
  assert "at most 12637.50 EUR in 168.0 hours (its longest duration)" in capsys.readouterr().err


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"budget": 3.0}, "--budget=3: needs the price of the chips; give --prices=FILE"),
    ({"budget": 3.0, "prices": True}, "--budget=3: found less than 37.50 EUR, the price of 30 min"),
    ({"prices": True, "chip": "v6e"}, "per_chip_hour.v6e: missing"),
    ({"prices": "/no/such/file"}, "/no/such/file: prices cannot be read"),
    ({"deadline": 1e9}, "--deadline: found 2001-09-09T"),
  ],
)
def test_a_limit_without_time_or_price_is_refused(changes, message, prices):
  changes = {name: str(prices) if value is True else value for name, value in changes.items()}
  with pytest.raises(UserError) as refusal:
    spending.set_limit(arguments(**changes), Chips("v5e", 50), 168, 1800)
  assert message in str(refusal.value)
  assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "ten"])
def test_an_amount_is_above_zero(text):
  with pytest.raises(argparse.ArgumentTypeError, match="amount above 0"):
    spending.parse_amount(text)


def test_a_deadline_has_a_date_and_a_time():
  moment = spending.parse_time("2027-01-31T18:00+01:00")
  assert moment == 1801414800
  assert spending.parse_time("2027-01-31T17:00Z") == moment
  for text in ("soon", "2027-01-31", "18:00", "2027-13-31T18:00"):
    with pytest.raises(argparse.ArgumentTypeError, match="a date and a time"):
      spending.parse_time(text)


def run_limited(seconds, program, check="true"):
  """Run a program with the line of a host for a limit; return the process."""
  quoted = f"{sys.executable} -S -c '{program}'"
  lines = [*spending.until_lines(Limit(seconds / 3600)), spending.limit_command(check, quoted, 5)]
  return subprocess.run(
    ["bash", "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60
  )


def test_a_run_is_told_to_save_at_the_end_of_its_limit():
  begin = time.monotonic()
  assert run_limited(10, SAVES).returncode == 75
  assert time.monotonic() - begin < 40


def test_a_run_within_its_limit_keeps_its_exit_code():
  for code in (0, 3, 69):
    assert run_limited(100, f"raise SystemExit({code})").returncode == code
  assert run_limited(100, "raise SystemExit(0)", check="exit 2").returncode == 2


def test_a_start_after_the_limit_is_refused_with_a_code_that_is_not_restarted():
  process = run_limited(0, "raise SystemExit(0)")
  assert process.returncode == 2
  assert process.stderr.splitlines() == [
    "[launcher] the budget or the deadline is reached; raise it to continue"
  ]


def test_the_time_of_a_budget_counts_from_the_first_start(tmp_path):
  """A deadline ends it, if that is earlier."""

  def until(limit):
    lines = spending.until_lines(limit, str(tmp_path / "begin"))
    script = "\n".join([*lines, 'echo "$T5X_LIKE_UNTIL"'])
    return int(subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout)

  first = until(Limit(1))
  assert 3590 <= first - time.time() <= 3601
  (tmp_path / "begin").write_text(str(int(time.time()) - 3000))
  assert until(Limit(1)) - time.time() <= 601
  assert until(Limit(1, until=1e9)) == 1e9
  assert until(Limit(float("inf"), until=2e9)) == 2e9


def write_program(folder, name, text):
  path = folder / name
  path.write_text(f"#!/bin/bash\n{text}\n")
  path.chmod(0o755)


def test_a_jobset_ends_within_its_budget(tmp_path, prices, monkeypatch, capsys):
  write_program(tmp_path, "kubectl", f'case "$1" in apply) cat > {tmp_path}/manifest ;; esac')
  monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
  flags = ("--image=i", "--topology=4x4", "--slices=2", f"--prices={prices}", "--budget=480")
  assert gke.main(["start", *flags, *COMMAND]) == 0
  assert "32 chips (v5e) at 1.5 EUR an hour each: 48.00 EUR an hour" in capsys.readouterr().err
  manifest = json.loads((tmp_path / "manifest").read_text())
  job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
  assert 9 * 3600 < job["activeDeadlineSeconds"] < 10 * 3600
  command = job["template"]["spec"]["containers"][0]["command"][2].replace("$$", "$")
  until = int(command.partition("T5X_LIKE_UNTIL=")[2].partition(";")[0])
  assert 9 * 3600 < until - time.time() < 10 * 3600
  assert "exec timeout --preserve-status --signal=TERM" in command
  assert gke.main(["start", "--image=i", "--budget=3", *COMMAND]) == 2


def test_a_batch_job_ends_within_its_budget_and_does_not_return(tmp_path, prices, monkeypatch):
  folder = tmp_path / "bin"
  folder.mkdir()
  write_program(folder, "squeue", "true")
  write_program(folder, "srun", 'shift; exec "$@"')
  write_program(folder, "scontrol", f'echo "$@" >> {tmp_path}/scontrol; false')
  write_program(folder, "python", "exit 0")
  write_program(
    folder, "sbatch", f'echo 7; bash "${{@: -1}}" > {tmp_path}/out 2>&1; echo $? > {tmp_path}/code'
  )
  monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
  monkeypatch.setenv("SLURM_JOB_ID", "7")
  program = (sys.executable, "-S", "-c", SAVES, f"--workdir={tmp_path}/run")
  # 4 chips at 2 an hour: 8 an hour, 3 seconds and no time for the save
  flags = ("--nodes=2", "--gpus_per_node=2", "--grace_seconds=0", f"--prices={prices}")
  assert slurm.main(["start", *flags, f"--budget={8 * 3 / 3600}", "--", *program]) == 0
  assert (tmp_path / "code").read_text().strip() == "75", (tmp_path / "out").read_text()
  assert not (tmp_path / "scontrol").exists()


def test_sky_prices_gpus_and_limits_its_task(prices, capsys):
  prices.write_text('currency = "USD"\n[per_chip_hour]\nH100 = 3\n')
  flags = ("--accelerators=H100:8", "--nodes=2", f"--prices={prices}", "--budget=480", "--dry_run")
  assert sky.main(["start", *flags, *COMMAND]) == 0
  out, err = capsys.readouterr()
  assert "16 chips (H100) at 3 USD an hour each: 48.00 USD an hour, at most 480.00 USD" in err
  assert "T5X_LIKE_UNTIL" in out
  assert sky.main(["start", *flags[:3], "--dry_run", *COMMAND]) == 0
  out, err = capsys.readouterr()
  assert "48.00 USD an hour, without a limit" in err
  assert "T5X_LIKE_UNTIL" not in out
