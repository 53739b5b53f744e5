"""Files that a run is killed in the middle of, a disk that turns read-only, and a damaged cache of
programs."""

import contextlib
import json
import os
import random
import signal
import subprocess

import pytest
from PIL import Image

from tests.drills.moments import killed_at, seeded
from tests.runs import Process, assert_same_bits, count_metrics, losses, run, steps, train

pytestmark = pytest.mark.drill
SHORT = ("--config.total_steps=6", "--config.checkpoint.every=3", "--config.eval_every=3")
LONG = ("--config.total_steps=60", "--config.checkpoint.every=5", "--config.eval_every=60")
IMAGES = "tests/recipes/nano_image.py"
HALF = (
  "config.json",
  "environment.json",
  "history.jsonl",
  "vocabulary/",
  "metrics.jsonl",
  "samples/",
  "report.html",
)
RENAMED = ("samples/", "report.html")


@pytest.fixture(scope="module")
def where(tmp_path_factory):
  return {"cache": tmp_path_factory.mktemp("compiled")}


def assert_whole(workdir) -> list[str]:
  """Every file that is written at once is whole under its name; returns their names."""
  found = []
  for file in (
    file for file in workdir.rglob("*") if file.is_file() and "checkpoints" not in file.parts
  ):
    name = file.relative_to(workdir).as_posix()
    if file.suffix == ".json":
      json.loads(file.read_text())
    elif file.suffix == ".html":
      assert file.read_text().rstrip().endswith("</html>"), name
    elif file.suffix == ".png":
      Image.open(file).load()
    # these two are appended to
    elif file.suffix == ".jsonl" and name not in ("history.jsonl", "metrics.jsonl"):
      assert [json.loads(line) for line in file.read_text().splitlines()], name
      assert file.read_bytes().endswith(b"\n"), name
    else:
      continue
    found.append(name)
  return found


def killed(command, event: str, name: str, where, *, half: bool) -> None:
  code, said = run(killed_at(command, event, name, half=half), **where)
  assert code in (-signal.SIGKILL, -signal.SIGXFSZ), f"not killed at {event} of {name}: {said}"


def test_killed_while_any_small_file_is_written(where, tmp_path):
  workdir = tmp_path / "killed"

  def command(w):
    return train(w, *SHORT, "--config.evals.span_infilling.max_examples=8")

  code, said = run(command(tmp_path / "whole"), **where)
  assert code == 0, said
  for name in HALF:
    killed(command(workdir), "open", name, where, half=True)
    assert_whole(workdir)
    if name in RENAMED:  # the next start comes to it again
      killed(command(workdir), "os.rename", name, where, half=False)
      assert_whole(workdir)
  code, said = run(command(workdir), **where)
  assert code == 0, said
  assert (
    {"report.html", "config.json"} < {*assert_whole(workdir)} == {*assert_whole(tmp_path / "whole")}
  )
  assert losses(workdir) == losses(tmp_path / "whole")
  for file in (tmp_path / "whole" / "samples").iterdir():
    assert (workdir / "samples" / file.name).read_bytes() == file.read_bytes()
  [json.loads(line) for line in (workdir / "history.jsonl").read_text().splitlines()[-1:]]


def test_killed_while_pictures_and_evaluations_are_written(where, tmp_path):
  workdir = tmp_path / "killed"
  flags = (*SHORT, "--config.evals.image_classification.max_examples=16")
  command = train(workdir, *flags, recipe=IMAGES)
  killed(command, "open", "pictures/", where, half=True)
  assert_whole(workdir)
  killed(command, "os.rename", "pictures/", where, half=False)
  assert_whole(workdir)
  code, said = run(command, **where)
  assert code == 0, said
  evaluate = [command[0], "-m", "t5x_like.evaluate", f"--workdir={workdir}"]
  for name, half in (("evaluations/", True), ("evaluations/", False), ("no such name", False)):
    event = "open" if half else "os.rename"
    also = f"import {IMAGES.removesuffix('.py').replace('/', '.')}"
    code, said = run(killed_at(evaluate, event, name, half=half, also=also), **where)
    assert code == (
      0 if name == "no such name" else -signal.SIGXFSZ if half else -signal.SIGKILL
    ), said
    assert_whole(workdir)
  found = assert_whole(workdir)
  assert any(name.startswith("evaluations/") for name in found)
  assert any(name.endswith(".png") for name in found)


@contextlib.contextmanager
def read_only(folder):
  """Makes a directory read-only under a running process: mounted over itself where that is
  permitted; a user who is not root loses the permission instead."""
  mounted = os.geteuid() == 0
  if mounted:
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    print("mounted read-only")
  else:
    for one in (folder, folder / "checkpoints"):
      one.chmod(0o555)
  try:
    yield
  finally:
    if mounted:
      subprocess.run(["umount", folder], check=True)
    else:
      for one in (folder, folder / "checkpoints"):
        one.chmod(0o755)


def test_a_disk_that_turns_read_only(where, tmp_path):
  code, said = run(train(tmp_path / "whole", *LONG), **where)
  assert code == 0, said
  workdir = tmp_path / "run"
  command = train(workdir, *LONG)
  with Process(command, **where) as process:
    assert process.until(lambda: count_metrics(workdir) >= 12), process.end()
    process.send(signal.SIGSTOP)
    saved = steps(workdir)
    with read_only(workdir):
      process.send(signal.SIGCONT)
      code, said = process.end()
      told = [line for line in said.splitlines() if "error" in line]
      assert code == 2, said
      assert len(told) == 1, said
      assert str(workdir) in told[0], said
      assert "Traceback" not in said, said
      assert "Read-only file system" in told[0] or "Permission denied" in told[0], told
      print(told[0])
      code, said = run(command, **where)
      assert code == 2, said
      assert "Traceback" not in said, said
      assert said.count("error") == 1, said
      print(said.splitlines()[-1])
  assert saved
  assert set(saved) <= set(steps(workdir))
  code, said = run(command, **where)
  assert code == 0, said
  assert "resuming" in said, said
  assert losses(workdir) == losses(tmp_path / "whole")
  assert_same_bits(workdir, tmp_path / "whole", 60)


def flipped(data: bytes, draw: random.Random) -> bytes:
  place = draw.randrange(len(data))
  return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]


def test_a_damaged_cache_of_programs_costs_time_alone(tmp_path):
  """Each start finds every entry damaged in one way; the last finds a file where the directory
  should be."""
  cache = tmp_path / "compiled"
  draw = seeded("cache")
  damages = {
    "none": lambda data: data,
    "truncated": lambda data: data[: draw.randrange(1, len(data))],
    "flipped": lambda data: flipped(data, draw),
    "empty": lambda data: b"",
    "another's": lambda data: draw.randbytes(len(data)),
  }
  found = {}
  for name, damage in damages.items():
    for entry in cache.glob("*-cache"):
      entry.write_bytes(damage(entry.read_bytes()))
    code, said = run(train(tmp_path / name, *SHORT), cache=cache)
    assert code == 0, said
    assert "Traceback" not in said, said
    assert name == "none" or "that were damaged are removed" in said, said
    found[name] = losses(tmp_path / name)
  for entry in cache.iterdir():
    entry.unlink()
  with read_only(cache):
    code, said = run(train(tmp_path / "unwritable", *SHORT), cache=cache)
  assert code == 0, said
  assert "Traceback" not in said, said
  assert all(one == found["none"] for one in [*found.values(), losses(tmp_path / "unwritable")])
  (tmp_path / "file").write_text("not a directory")
  code, said = run(train(tmp_path / "file's", *SHORT), cache=tmp_path / "file")
  assert code == 0, said
  assert "Traceback" not in said, said
  assert losses(tmp_path / "file's") == found["none"]
