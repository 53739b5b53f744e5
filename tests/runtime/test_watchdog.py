"""A process in which nothing ends for too long prints its stacks and exits to be restarted."""

import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.errors import TransientError
from t5x_like.runtime.watchdog import Watchdog
from t5x_like.training.meter import Goodput
from t5x_like.training.recomputation import compute_twice
from t5x_like.training.state import TrainState
from tests.runs import REPO

PROGRAM = """
import pathlib, sys, threading, time
sys.path[:0] = [{repo!r}]
from t5x_like.runtime.watchdog import Watchdog
def hangs_here():
  {hang}
with Watchdog({seconds}, pathlib.Path({logs!r}), 3) as dog:
  for step in range(4):
    time.sleep(0.1)
    dog.beat(f"computing step {{step}}")
  hangs_here()
"""


@pytest.mark.parametrize(
  "hang", ["time.sleep(900)", "threading.Lock().acquire() and threading.Event().wait()"]
)
def test_a_hung_process_shows_its_stacks_and_exits(hang, tmp_path):
  program = PROGRAM.format(repo=str(REPO), hang=hang, seconds=1.0, logs=str(tmp_path / "logs"))
  process = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True, timeout=600
  )
  assert process.returncode == 69, process.stderr
  assert "transient error: process 3: no progress for 1 s while computing step 3;" in process.stderr
  for text in (process.stderr, (tmp_path / "logs" / "stacks-3.txt").read_text()):
    assert "in hangs_here" in text
    assert "in _watch" in text


def test_beats_and_leaving_keep_the_watchdog_quiet():
  with Watchdog(10) as dog:  # a busy machine may sleep longer than it is told to
    for _ in range(13):
      time.sleep(0.8)
      dog.beat("computing")
  assert not dog._thread.is_alive()
  with Watchdog(0) as dog:
    dog.beat("nothing")


def test_goodput_is_the_share_of_steps_in_the_time_since_the_first_start():
  goodput = Goodput(start_time=time.time() - 100, step_seconds=20)
  assert goodput.add(5) == pytest.approx(0.25, rel=0.1)
  assert goodput.add(1e6) == 1.0


def test_a_step_whose_repetition_differs_is_noticed():
  faults = []

  def step(state, _):
    moved = {"w": state.params["w"] + 1}
    if faults and faults.pop():
      moved = {"w": moved["w"].at[5].add(1e-6)}
    return TrainState(state.step + 1, moved, state.opt_state, state.watch), {}

  first_state = jax.tree.map(
    jnp.asarray, TrainState(np.int32(6), {"w": np.ones(64, np.float32)}, {})
  )
  state, _ = compute_twice(step, first_state, None)
  assert int(state.step) == 7
  assert (np.asarray(state.params["w"]) == 2).all()
  faults[:] = [True, False]
  with pytest.raises(
    TransientError,
    match=r"step 8 was computed twice, and params/w \(1 of 5 "
    r"tensors\) differs",
  ):
    compute_twice(step, state, None)
