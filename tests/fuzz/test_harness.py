"""The harness distinguishes the two accepted ends of a case from every kind of failure."""

import os
import pathlib
import shutil
import sys
import time

import numpy as np
import pytest

from t5x_like.errors import DamageError, UserError, handle_errors
from tests.fuzz.harness import Sandbox, generator, run_cases

pytestmark = pytest.mark.runs


def raise_user_error(workdir):
  raise UserError("KEY: found 1, expected 2")


def raise_damage_error(workdir):
  raise DamageError("a file is torn")


def write_outside(workdir):
  (workdir.parent / "elsewhere").write_text("x")


def write_inside(workdir):
  (workdir / "folder" / "inner").mkdir(parents=True)
  (workdir / "folder" / "inner" / "file").write_text("x")
  shutil.rmtree(workdir / "folder")  # removes files by names relative to descriptors


def print_two_lines(workdir):
  print("error: one\nerror: two", file=sys.stderr)
  return 2


def print_no_line(workdir):
  return 2


def return_wrong_code(workdir):
  print("error: one", file=sys.stderr)
  return 4


def compute_forever(workdir):
  while True:
    pass


def fill_memory(workdir):
  ones = np.ones(2**28, np.uint8)  # written, so that its pages are in memory
  assert ones[0] == 1


@pytest.mark.parametrize(
  "end, call",
  [
    ("success", lambda workdir: None),
    ("success", write_inside),
    ("refusal", handle_errors(raise_user_error)),
    ("refusal", handle_errors(raise_damage_error)),
    ("traceback", lambda workdir: [][1]),
    ("exit", lambda workdir: sys.exit(0)),
    ("lines", print_two_lines),
    ("lines", print_no_line),
    ("lines", return_wrong_code),
    ("outside", write_outside),
    ("hang", lambda workdir: time.sleep(5)),
    ("hang", compute_forever),
    ("memory", fill_memory),
  ],
)
def test_a_case_has_the_outcome_of_its_call(end, call, tmp_path):
  seconds = 0.3 if end == "hang" else 20
  memory = 2**25 if end == "memory" else 2**31
  sandbox = Sandbox(tmp_path, seconds=seconds, memory=memory)
  assert sandbox.run("the case", call).end == end, sandbox.outcomes
  if end in ("success", "refusal"):
    sandbox.check()
  else:
    with pytest.raises(AssertionError, match=f"{end}: the case: "):
      sandbox.check()


def test_allocation_beyond_the_memory_limit_fails(tmp_path):
  sandbox = Sandbox(tmp_path, memory=2**28)
  assert sandbox.run("bomb", lambda workdir: len(bytearray(2**36))).end == "memory"


def test_directory_outside_the_sandbox_is_detected(tmp_path):
  sandbox = Sandbox(tmp_path / "sandbox")
  away = tmp_path / "away"
  outcome = sandbox.run("away", lambda workdir: pathlib.Path(away).mkdir())
  assert outcome.end == "outside"
  assert str(away) in outcome.message


def test_generator_depends_on_seed_and_case_only():
  assert generator(1, 7).random() == generator(1, 7).random()
  assert generator(1, 7).random() != generator(1, 8).random()


def test_a_case_that_starts_a_program_fails(tmp_path):
  def make_case(rng, folder):
    return "a program", lambda case_folder: os.system("true")

  with pytest.raises(AssertionError, match="a program: os.system"):
    run_cases(make_case, tmp_path, range(2))
