"""A signal stops all processes of a run after the same step."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from t5x_like.training.preemption import StopRequest

pytestmark = pytest.mark.runs

REPO = pathlib.Path(__file__).resolve().parents[2]
LOOP = """
import sys, time
sys.path[:0] = [{repo!r}]
import jax
from t5x_like.parallel import distributed
distributed.initialize(timeout_seconds=60)
from t5x_like.training.preemption import StopRequest
if {early}:
  print("running", flush=True)
  time.sleep(3)  # the time a step takes to compile
with StopRequest() as stop:
  for step in range(1, 3000):
    if step == 3 and not {early}: print("running", flush=True)
    time.sleep(0.01)
    if stop.requested():
      print("stopped at", step, flush=True)
      if {linger}: time.sleep(900)
      break
"""


def start_processes(processes=1, linger=False, early=False):
  """Start the processes of a run of empty steps.

  Args:
    linger: stay alive after the stop.
    early: report readiness long before the first step.
  """
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
  running = []
  for index in range(processes):
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    if processes > 1:
      env |= {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": str(processes),
        "JAX_PROCESS_ID": str(index),
      }
    command = [sys.executable, "-c", LOOP.format(repo=str(REPO), linger=linger, early=early)]
    running.append(
      subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    )
  for process in running:
    assert process.stdout.readline() == "running\n", process.communicate(timeout=600)[1]
  return running


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_process_stops_at_a_step_boundary(number):
  (process,) = start_processes()
  process.send_signal(number)
  out, _ = process.communicate(timeout=600)
  assert out.startswith("stopped at ")
  assert process.returncode == 0


def test_signal_to_one_of_two_processes_stops_both_after_the_same_step():
  processes = start_processes(2)
  processes[1].send_signal(signal.SIGTERM)
  outs = [process.communicate(timeout=600)[0] for process in processes]
  assert outs[0] == outs[1]
  assert outs[0].startswith("stopped at ")
  assert [process.returncode for process in processes] == [0, 0]


def test_signal_before_the_first_step_stops_both_after_it():
  processes = start_processes(2, early=True)
  processes[1].send_signal(signal.SIGTERM)
  outs = [process.communicate(timeout=600)[0] for process in processes]
  assert outs == ["stopped at 1\n"] * 2


def test_second_sigint_ends_the_process_at_once():
  (process,) = start_processes(linger=True)
  process.send_signal(signal.SIGINT)
  assert process.stdout.readline().startswith("stopped at ")
  process.send_signal(signal.SIGINT)
  start_time = time.time()
  process.communicate(timeout=600)
  assert process.returncode == -signal.SIGINT
  assert time.time() - start_time < 300


def test_handlers_see_a_signal_and_are_restored():
  signals = (signal.SIGTERM, signal.SIGINT)
  handlers_before = [signal.getsignal(number) for number in signals]
  with StopRequest() as stop:
    assert not stop.requested()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.requested()
  assert [signal.getsignal(number) for number in signals] == handlers_before


def test_stop_request_works_on_a_thread_that_cannot_handle_signals():
  requests = []

  def body():
    with StopRequest() as stop:
      requests.append(stop.requested())

  thread = threading.Thread(target=body)
  thread.start()
  thread.join()
  assert requests == [False]
