"""Runs survive kills while they write any small file, read-only disks and damaged programs."""

import contextlib
import json
import os
import random
import signal
import subprocess

import pytest
from PIL import Image

from tests.drills.moments import kill_at, seeded_random
from tests.runs import (
  Process,
  assert_same_bits,
  count_metrics,
  losses,
  run,
  run_to_end,
  steps,
  train,
)

pytestmark = pytest.mark.drill
SHORT = ("--config.total_steps=6", "--config.checkpoint.every=3", "--config.eval_every=3")
LONG = ("--config.total_steps=60", "--config.checkpoint.every=5", "--config.eval_every=60")
IMAGES = "tests/recipes/nano_image.py"
# Small files; a run is killed when it has written twenty bytes of each.
HALF_WRITTEN = (
  "config.json",
  "environment.json",
  "history.jsonl",
  "vocabulary/",
  "metrics.jsonl",
  "samples/",
  "report.html",
)
# Those that are written under another name first, and again by the next start.
RENAMED = ("samples/", "report.html")


@pytest.fixture(scope="module")
def process_options(tmp_path_factory):
  return {"cache": tmp_path_factory.mktemp("compiled")}


def assert_files_complete(workdir) -> list[str]:
  """Assert that every small file under its name is complete; return their names."""
  files = []
  for file in workdir.rglob("*"):
    if not file.is_file() or "checkpoints" in file.parts:
      continue
    name = file.relative_to(workdir).as_posix()
    if file.suffix == ".json":
      json.loads(file.read_text())
    elif file.suffix == ".html":
      assert file.read_text().rstrip().endswith("</html>"), name
    elif file.suffix == ".png":
      Image.open(file).load()
    elif file.suffix == ".jsonl" and name not in ("history.jsonl", "metrics.jsonl"):
      # The two others grow line by line, and may end in half a line.
      assert [json.loads(line) for line in file.read_text().splitlines()], name
      assert file.read_bytes().endswith(b"\n"), name
    else:
      continue
    files.append(name)
  return files


def kill_at_file(command, event: str, name: str, process_options, *, half: bool) -> None:
  """Run a command until it is killed; see `kill_at`. A write is cut by a limit of file sizes."""
  code, output = run(kill_at(command, event, name, half=half), **process_options)
  assert code in (-signal.SIGKILL, -signal.SIGXFSZ), f"not killed at {event} of {name}: {output}"


def test_a_run_killed_while_any_small_file_is_written_goes_on(process_options, tmp_path):
  workdir = tmp_path / "killed"

  def command(folder):
    return train(folder, *SHORT, "--config.evals.span_infilling.max_examples=8")

  run_to_end(command(tmp_path / "whole"), **process_options)
  for name in HALF_WRITTEN:
    kill_at_file(command(workdir), "open", name, process_options, half=True)
    assert_files_complete(workdir)
    if name in RENAMED:
      kill_at_file(command(workdir), "os.rename", name, process_options, half=False)
      assert_files_complete(workdir)
  run_to_end(command(workdir), **process_options)
  files = set(assert_files_complete(workdir))
  assert {"report.html", "config.json"} < files
  assert files == set(assert_files_complete(tmp_path / "whole"))
  assert losses(workdir) == losses(tmp_path / "whole")
  for file in (tmp_path / "whole" / "samples").iterdir():
    assert (workdir / "samples" / file.name).read_bytes() == file.read_bytes()
  json.loads((workdir / "history.jsonl").read_text().splitlines()[-1])


def test_a_run_killed_while_pictures_and_evaluations_are_written_goes_on(process_options, tmp_path):
  workdir = tmp_path / "killed"
  flags = (*SHORT, "--config.evals.image_classification.max_examples=16")
  command = train(workdir, *flags, recipe=IMAGES)
  kill_at_file(command, "open", "pictures/", process_options, half=True)
  assert_files_complete(workdir)
  kill_at_file(command, "os.rename", "pictures/", process_options, half=False)
  assert_files_complete(workdir)
  run_to_end(command, **process_options)
  evaluate = [command[0], "-m", "t5x_like.evaluate", f"--workdir={workdir}"]
  import_recipe = f"import {IMAGES.removesuffix('.py').replace('/', '.')}"  # registers its model
  for event, name, half, expected_code in (
    ("open", "evaluations/", True, -signal.SIGXFSZ),
    ("os.rename", "evaluations/", False, -signal.SIGKILL),
    ("os.rename", "no such name", False, 0),  # not killed
  ):
    killed = kill_at(evaluate, event, name, half=half, also=import_recipe)
    code, output = run(killed, **process_options)
    assert code == expected_code, output
    assert_files_complete(workdir)
  files = assert_files_complete(workdir)
  assert any(name.startswith("evaluations/") for name in files)
  assert any(name.endswith(".png") for name in files)


@contextlib.contextmanager
def read_only(folder):
  """Make a directory read-only under a running process.

  Root mounts it over itself; another user loses the permission to write.
  """
  mounted = os.geteuid() == 0
  if mounted:
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    print("mounted read-only")
  else:
    for directory in (folder, folder / "checkpoints"):
      directory.chmod(0o555)
  try:
    yield
  finally:
    if mounted:
      subprocess.run(["umount", folder], check=True)
    else:
      for directory in (folder, folder / "checkpoints"):
        directory.chmod(0o755)


def test_a_disk_that_turns_read_only_ends_a_run_in_one_line(process_options, tmp_path):
  run_to_end(train(tmp_path / "whole", *LONG), **process_options)
  workdir = tmp_path / "run"
  command = train(workdir, *LONG)
  with Process(command, **process_options) as process:
    assert process.until(lambda: count_metrics(workdir) >= 12), process.end()
    process.send(signal.SIGSTOP)
    saved = steps(workdir)
    with read_only(workdir):
      process.send(signal.SIGCONT)
      code, output = process.end()
      error_lines = [line for line in output.splitlines() if "error" in line]
      assert code == 2, output
      assert len(error_lines) == 1, output
      assert str(workdir) in error_lines[0], output
      assert "Traceback" not in output, output
      assert "Read-only file system" in error_lines[0] or "Permission denied" in error_lines[0], (
        error_lines
      )
      print(error_lines[0])
      code, output = run(command, **process_options)
      assert code == 2, output
      assert "Traceback" not in output, output
      assert output.count("error") == 1, output
      print(output.splitlines()[-1])
  assert saved
  assert set(saved) <= set(steps(workdir))
  output = run_to_end(command, **process_options)
  assert "resuming" in output, output
  assert losses(workdir) == losses(tmp_path / "whole")
  assert_same_bits(workdir, tmp_path / "whole", 60)


def flip_bit(data: bytes, draw: random.Random) -> bytes:
  position = draw.randrange(len(data))
  return data[:position] + bytes([data[position] ^ 1 << draw.randrange(8)]) + data[position + 1 :]


def test_a_damaged_cache_of_programs_changes_no_loss(tmp_path):
  """Each start has a cache whose entries are all damaged in one way; the last has a file for it."""
  cache = tmp_path / "compiled"
  draw = seeded_random("cache")
  damages = {
    "none": lambda data: data,
    "truncated": lambda data: data[: draw.randrange(1, len(data))],
    "flipped": lambda data: flip_bit(data, draw),
    "empty": lambda data: b"",
    "random": lambda data: draw.randbytes(len(data)),
  }
  losses_by_cache = {}
  for name, damage in damages.items():
    for entry in cache.glob("*-cache"):
      entry.write_bytes(damage(entry.read_bytes()))
    output = run_to_end(train(tmp_path / name, *SHORT), cache=cache)
    assert "Traceback" not in output, output
    assert name == "none" or "damaged programs" in output, output
    losses_by_cache[name] = losses(tmp_path / name)
  for entry in cache.iterdir():
    entry.unlink()
  with read_only(cache):
    output = run_to_end(train(tmp_path / "unwritable", *SHORT), cache=cache)
  assert "Traceback" not in output, output
  for run_losses in [*losses_by_cache.values(), losses(tmp_path / "unwritable")]:
    assert run_losses == losses_by_cache["none"]
  (tmp_path / "file").write_text("not a directory")
  output = run_to_end(train(tmp_path / "file's", *SHORT), cache=tmp_path / "file")
  assert "Traceback" not in output, output
  assert losses(tmp_path / "file's") == losses_by_cache["none"]
