"""A tf.data pipeline that calls Python functions can be dropped at any time, on any thread.

A defect would show as a hang, so these tests run programs in subprocesses with a time limit.
"""

import errno
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import more
from t5x_like import quiet_tensorflow
from t5x_like.data import iterator as dataset_iterator
from t5x_like.errors import TransientError, UserError
from t5x_like.quiet_tensorflow import tf

pytestmark = pytest.mark.runs

PIPELINE = """
import gc, itertools, random, sys, threading, time
import numpy as np
from t5x_like.data import iterator as dataset_iterator
from t5x_like.quiet_tensorflow import tf

def work(step):  # releases and reacquires the interpreter's lock
  for _ in range(random.randrange(4)):
    garbage = [[] for _ in range(1000)]
    garbage.append(garbage)
    time.sleep(0.0005)
  return np.full(64, step)

def elements(steps=2**60):
  def element(step):
    return {"a": tf.ensure_shape(tf.numpy_function(work, [step], tf.int64), [64])}
  return dataset_iterator.iterate(
    tf.data.Dataset.range(steps), lambda steps: steps.map(element, num_parallel_calls=3).prefetch(2))

def take(iterator, n):
  assert [int(e["a"][0]) for e in itertools.islice(iterator, n)] == list(range(n))

def ready():  # the test begins when it reads this line
  print("ready", flush=True)

def drop(times):
  for i in range(times):
    iterator = elements()
    take(iterator, random.randrange(4))
    time.sleep(random.random() * 0.004)
    if i % 3 == 0:
      iterator.close()
    elif i % 3 == 1:  # left to the garbage collector
      cycle = [iterator]
      cycle.append(cycle)
      del cycle
    del iterator
"""

DROPS = {
  "one after another": "ready(); drop(160)",
  "beside one in use": """
ready()
iterator = elements()
take(iterator, 3)
drop(40)
assert int(next(iterator)["a"][0]) == 3
""",
  "on three threads": """
ready()
failed = []
def run():
  try:
    drop(20)
  except BaseException as error:
    failed.append(error)
threads = [threading.Thread(target=run) for _ in range(3)]
for thread in threads:
  thread.start()
for thread in threads:
  thread.join()
assert not failed, failed
""",
}

# The beginning of programs that end while several pipelines are alive.
ALIVE = """
first = elements()
second = elements()
take(first, 2)
take(second, 1)
thread = threading.Thread(target=lambda: take(elements(), 5))
thread.start()
cycle = [elements()]
next(cycle[0])
cycle.append(cycle)
ready()
"""

# Ends of programs, by name: the code, its exit status, and its last line on stderr ("" for none).
ENDS = {
  "the last line": ("", 0, ""),
  "sys.exit within a loop": ("for e in first: sys.exit(4)", 4, ""),
  "an exception within a loop": ("for e in first: raise ValueError('mine')", 1, "ValueError: mine"),
  "a daemon thread that iterates": (
    "threading.Thread(target=lambda: list(second), daemon=True).start(); time.sleep(0.02)",
    0,
    "",
  ),
  "an atexit function that drops": ("import atexit; atexit.register(first.close)", 0, ""),
}


def start_program(program):
  """Start a program that has the functions of PIPELINE, and wait until it is ready."""
  # Children of a shell that runs the tests in the background would ignore Ctrl-C.
  enable_interrupt = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
  process = subprocess.Popen(
    [sys.executable, "-c", enable_interrupt + PIPELINE + program],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert process.stdout.readline() == "ready\n", process.communicate()[1]
  return process


def wait_for_end(process, seconds=300):
  """Wait for the end of a program; return its lines on stderr."""
  try:
    out, err = process.communicate(timeout=seconds)
  except subprocess.TimeoutExpired:
    process.kill()
    process.communicate()
    pytest.fail("the program hangs")
  assert out == ""
  return err.splitlines()


@pytest.mark.parametrize("program", more.beyond(1, DROPS.values()), ids=DROPS)
def test_dropped_pipelines_do_not_hang(program):
  process = start_program(program)
  assert wait_for_end(process, 240) == []
  assert process.returncode == 0


@pytest.mark.parametrize("program, status, last_line", more.beyond(2, ENDS.values()), ids=ENDS)
def test_program_with_live_pipelines_can_end(program, status, last_line):
  process = start_program(ALIVE + program)
  lines = wait_for_end(process)
  if last_line:
    assert lines[-1] == last_line
  else:
    assert lines == []
  assert process.returncode == status


@pytest.mark.parametrize("num_signals", more.beyond(1, [2, 1]))
def test_interrupt_ends_a_program_with_live_pipelines(num_signals):
  process = start_program(ALIVE + "for e in first: pass")
  time.sleep(0.05)
  for _ in range(num_signals):
    process.send_signal(signal.SIGINT)
    time.sleep(0.01)
  # Python ignores an interrupt during a `__del__`, and TensorFlow deletes an executor per element.
  # So the signal is repeated until the program ends.
  for _ in range(5):
    try:
      process.wait(30)
    except subprocess.TimeoutExpired:
      process.send_signal(signal.SIGINT)
  assert "KeyboardInterrupt" in wait_for_end(process)
  assert process.returncode in (-signal.SIGINT, 130)


def iterate_numbers(steps, function=lambda step: step, **kwargs):
  """Return an iterator over the values of a Python function at 0 to `steps` - 1."""
  return dataset_iterator.iterate(
    tf.data.Dataset.range(steps),
    lambda steps: steps.map(
      lambda step: {"a": tf.numpy_function(function, [step], tf.int64)}, **kwargs
    ).prefetch(2),
  )


def test_elements_are_in_order_and_end():
  iterator = iterate_numbers(100, num_parallel_calls=4)
  assert [int(element["a"]) for element in iterator] == list(range(100))
  assert list(iterator) == []
  assert list(iterate_numbers(0)) == []


def test_pipeline_can_be_iterated_on_another_thread():
  actual = []

  def iterate_on_thread():
    for element in iterate_numbers(50):
      actual.append(int(element["a"]))

  thread = threading.Thread(target=iterate_on_thread)
  thread.start()
  thread.join(300)
  assert actual == list(range(50))


def test_transient_disk_error_stays_transient_in_a_pipeline():
  """TensorFlow drops the cause of an exception, by which it is recognised."""

  def refuse(step):
    try:
      raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "a.jpg")
    except OSError as error:
      raise UserError(f"a.jpg cannot be read ({error})") from error

  with pytest.raises(TransientError, match="a.jpg cannot be read .*Stale file handle"):
    next(iterate_numbers(9, refuse))


@pytest.mark.parametrize("parallel", [None, 3])
def test_user_errors_keep_their_class_and_message(parallel):
  def refuse(step):
    if step == 3:
      raise UserError("store/x: found 3, expected 4: do it")
    return step

  iterator = iterate_numbers(9, refuse, num_parallel_calls=parallel)
  actual = []
  with pytest.raises(UserError, match="^store/x: found 3, expected 4: do it$"):
    for element in iterator:
      actual.append(int(element["a"]))
  assert actual == [0, 1, 2]

  def fail(step):
    raise KeyError("a bug")

  with pytest.raises(tf.errors.OpError, match="KeyError: 'a bug'"):
    next(iterate_numbers(9, fail, num_parallel_calls=parallel))


def test_dropped_pipeline_stops_and_is_freed():
  calls = []
  open_before = set(dataset_iterator._open)  # by earlier tests

  def count(step):
    calls.append(int(step))
    return step

  iterator = iterate_numbers(2**60, count, num_parallel_calls=3)
  next(iterator)
  del iterator
  deadline = time.monotonic() + 300
  while dataset_iterator._open - open_before and time.monotonic() < deadline:
    time.sleep(0.01)
  assert not dataset_iterator._open - open_before
  num_calls = len(calls)
  time.sleep(0.05)
  assert len(calls) == num_calls
  assert num_calls <= 12


def test_log_level_of_tensorflow_is_raised_unless_the_user_sets_it(monkeypatch):
  """Otherwise TensorFlow prints a traceback for each error that the program reports.

  JAX sets level 1 when it is imported, so this level does not count as the user's.
  """
  levels = {}
  for level in ("1", "0", "3"):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    quiet_tensorflow._tensorflow.__wrapped__()
    levels[level] = os.environ["TF_CPP_MIN_LOG_LEVEL"]
  assert levels == {"1": "2", "0": "0", "3": "3"}
