"""Processes of a job meet and agree, or each says in one line why not."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
import types

import pytest

from t5x_like.errors import TransientError
from t5x_like.parallel import distributed

pytestmark = pytest.mark.runs

REPO = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
sys.path[:0] = [{repo!r}]
from t5x_like.errors import handle_errors
from t5x_like.parallel import distributed

@handle_errors
def main():
  distributed.initialize(timeout_seconds={timeout})
  import jax
  {body}
  print("met", jax.process_index(), jax.process_count(), flush=True)

sys.exit(main())
"""


def free_port():
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


def start(environment, timeout=60, body="pass"):
  env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", **environment}
  command = [sys.executable, "-c", PROGRAM.format(repo=str(REPO), timeout=timeout, body=body)]
  return subprocess.Popen(
    command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )


def start_job(port, indices, count, **options):
  processes = []
  for i in indices:
    environment = {
      "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
      "JAX_NUM_PROCESSES": str(count),
      "JAX_PROCESS_ID": str(i),
    }
    processes.append(start(environment, **options))
  return processes


INTERLEAVED = """
  import numpy as np
  from jax.experimental import multihost_utils
  from jax.sharding import Mesh, NamedSharding, PartitionSpec
  from t5x_like.parallel.rules import from_local_rows, local_rows
  x = np.arange(32 * 3).reshape(32, 3)
  devices = np.array(jax.devices())
  for order, shape in (([0, 4, 1, 5, 2, 6, 3, 7], (8, 1)), ([0, 4, 5, 1, 2, 6, 7, 3], (4, 2))):
    mesh = Mesh(devices[order].reshape(shape), ("data", "tensor"))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    rows = local_rows(sharding, 32)
    made = from_local_rows(sharding, rows, x[rows], 32)
    assert (np.asarray(multihost_utils.process_allgather(made, tiled=True)) == x).all()
    print("rows", len(rows), bool((np.diff(rows) == 1).all()), flush=True)
"""


def test_processes_whose_rows_interleave_make_the_global_batch():
  flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
  port = free_port()
  address = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2"}
  jobs = [
    start(address | flags | {"JAX_PROCESS_ID": str(i)}, body=INTERLEAVED.strip()) for i in range(2)
  ]
  for code, out, err in finish(jobs):
    assert code == 0, err
    assert [line for line in out.splitlines() if line.startswith("rows")] == [
      "rows 16 False",
      "rows 32 True",
    ]


def finish(processes, seconds=600):
  outputs = [process.communicate(timeout=seconds) for process in processes]
  return [
    (process.returncode, out.strip(), err.strip())
    for process, (out, err) in zip(processes, outputs)
  ]


def assert_refused(result, *words, expected=(2, "error: ")):
  code, out, err = result
  assert code == expected[0], result
  assert out == "", result
  assert err.startswith(expected[1]), result
  assert "\n" not in err, result
  assert all(part in err for part in words), err


TRANSIENT = (69, "transient error: ")  # launchers start again


def test_processes_with_equal_facts_start():
  facts = "distributed.check_agreement({'config': 'a', 'code': distributed.code_version()}, timeout_seconds=30)"
  results = finish(start_job(free_port(), range(3), 3, body=f"{facts}; {facts}"))
  assert [(code, out) for code, out, _ in results] == [(0, f"met {i} 3") for i in range(3)], results


def test_a_difference_is_refused_by_process_and_fact():
  body = "distributed.check_agreement({'config hash': 'ab'[jax.process_index()], 'code': 'x'}, timeout_seconds=30)"
  for result in finish(start_job(free_port(), range(2), 2, body=body)):
    assert_refused(result, "process 1 has config hash b, process 0 has a")


def test_a_process_that_does_not_report_is_named():
  body = (
    "distributed.check_agreement({}, timeout_seconds=1) if jax.process_index() == 0 else "
    "__import__('time').sleep(4)"
  )
  results = finish(start_job(free_port(), range(2), 2, body=body))
  assert_refused(results[0], "process 1 of 2 did not report within 1 s", expected=TRANSIENT)


@pytest.mark.parametrize(
  "waits", ["time.sleep(60)", "any(map(lambda _: False, iter(int, 1)))"], ids=["asleep", "busy"]
)
def test_losing_the_first_process_is_a_transient_error(waits):
  body = f"import os, time; time.sleep(1) or os._exit(9) if jax.process_index() == 0 else {waits}"
  first, second = finish(start_job(free_port(), range(2), 2, body=body))
  assert first[0] == 9
  code, _, err = second
  line = err.splitlines()[-1]
  assert code == 69, second
  assert line.startswith("transient error: jax has ended this process"), second
  assert "Traceback" not in err, second


COUNTED = """
  from jax._src import distributed as state
  jax.devices()
  client, reads = state.global_state.client, []
  class Counting:
    def __getattr__(self, name):
      reads.extend([name] * ("get" in name))
      return getattr(client, name)
  state.global_state.client = Counting()
  distributed.check_agreement({}, timeout_seconds=30)
  state.global_state.client = client
  print(len(reads), flush=True)
"""


def test_only_the_first_process_reads_the_facts_of_all():
  results = finish(start_job(free_port(), range(3), 3, body=COUNTED.strip()))
  assert [(code, out.split()[:1]) for code, out, _ in results] == [
    (0, ["2"]),
    (0, ["1"]),
    (0, ["1"]),
  ], results


FIRST_ALONE = """
  import pathlib, time
  made, slow = pathlib.Path({path!r}), jax.process_index() == 0
  def make():
    if slow:
      time.sleep(1)
      made.write_text("made")
    return made.read_text()
  distributed._POLL_SECONDS = 0.3
  print(distributed.run_first_alone(make), flush=True)
  def refuse():
    raise distributed.UserError("no such source")
  distributed.run_first_alone(refuse)
"""


def test_the_first_process_is_waited_for_and_its_refusal_passed_on(tmp_path):
  body = FIRST_ALONE.format(path=str(tmp_path / "made")).strip()
  first, second = finish(start_job(free_port(), range(2), 2, body=body))
  assert first == (2, "made", "error: no such source")
  assert second[0] == 2
  assert second[2].endswith("error: process 0 could not prepare the data: no such source")
  assert second[1].startswith("waiting for process 0 to prepare the data (0 s")
  assert second[1].endswith("made")


def test_a_missing_process_is_named_by_all():
  started = time.time()
  for result in finish(start_job(free_port(), (0, 2), 3, timeout=10)):
    assert_refused(
      result, "only 2 of 3 processes came within 10 s", "missing: process 1", expected=TRANSIENT
    )
  assert time.time() - started < 200


def test_an_unreachable_coordinator_is_named():
  port = free_port()
  (result,) = finish(start_job(port, [1], 2, timeout=2))
  assert_refused(result, f"127.0.0.1:{port} within 2 s", "Connection refused", expected=TRANSIENT)


def test_a_port_in_use_is_refused():
  with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
    assert_refused(
      finish(start_job(port, [0], 2))[0], f"coordinator port {port}", "Address already in use"
    )


@pytest.mark.parametrize(
  "environment, message",
  [
    ({"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1"}, "JAX_NUM_PROCESSES, JAX_PROCESS_ID missing"),
    (
      {"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_NUM_PROCESSES": "two", "JAX_PROCESS_ID": "0"},
      "is 'two'",
    ),
    (
      {"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"},
      "JAX_PROCESS_ID is 2",
    ),
    (
      {"JAX_COORDINATOR_ADDRESS": "nowhere", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"},
      "expected host:port",
    ),
  ],
)
def test_wrong_environment_variables_are_refused(environment, message, monkeypatch):
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  with pytest.raises(distributed.UserError, match=message):
    distributed.initialize()


def test_slurm_is_detected():
  port = free_port()
  processes = []
  for i in range(2):
    environment = {
      "SLURM_JOB_ID": "7",
      "SLURM_STEP_NODELIST": "localhost",
      "SLURM_NTASKS": "2",
      "SLURM_PROCID": str(i),
      "SLURM_LOCALID": str(i),
      "JAX_COORDINATOR_PORT": str(port),
    }
    processes.append(start(environment))
  assert [r[:2] for r in finish(processes)] == [(0, "met 0 2"), (0, "met 1 2")]


def test_one_process_needs_nothing():
  assert finish([start({}), start({"JAX_NUM_PROCESSES": "1"})]) == [(0, "met 0 1", "")] * 2
  assert len(distributed.code_version()) == 16


@pytest.mark.parametrize(
  "answer, kind, message",
  [
    ("DEADLINE_EXCEEDED: GetKeyValue() timed out", TransientError, "^process 1 is late$"),
    (
      "UNAVAILABLE: failed to connect to all addresses",
      TransientError,
      "process 0 of 1 cannot be reached: UNAVAILABLE",
    ),
    ("INTERNAL: a bug", RuntimeError, "INTERNAL"),
  ],
)
def test_a_first_process_that_does_not_answer_is_transient(answer, kind, message):
  def get(key, milliseconds):
    raise RuntimeError(answer)

  with pytest.raises(kind, match=message):
    distributed._wait_for_key(
      types.SimpleNamespace(blocking_key_value_get=get), "key", 1, "process 1 is late"
    )


def test_a_wait_for_prepared_data_ends_when_the_first_process_is_lost(monkeypatch, capsys):
  def get(key, milliseconds):
    raise RuntimeError("UNAVAILABLE: failed to connect to all addresses")

  store = types.SimpleNamespace(blocking_key_value_get=get)
  monkeypatch.setattr(distributed, "key_value_store", lambda: store)
  monkeypatch.setattr(distributed.jax, "process_index", lambda: 1)
  with pytest.raises(TransientError, match="process 0 of 1 cannot be reached"):
    distributed.run_first_alone(lambda: None, timeout_seconds=2)
  assert "waiting" not in capsys.readouterr().out


KEYED = {
  "greeting": distributed._GREETING,
  "key": distributed._secret_digest(),
  "process": 1,
  "processes": 2,
}


@pytest.mark.parametrize(
  "message",
  [
    {"process": [1]},
    {"process": {}},
    {"process": True},
    {"process": "1"},
    {"process": 10**30},
    {"process": -1},
    {"processes": None},
    {"processes": 3},
    {"key": "wrong"},
    {"key": None},
    {"key": "\ud800"},
  ],
)
def test_a_connection_of_a_stranger_is_ignored(message):
  """Process 0 goes on when its own process 1 connects."""
  assert (
    gather_from_strangers([json.dumps(KEYED | message).encode(), json.dumps(KEYED).encode()])
    is None
  )


@pytest.mark.parametrize(
  "content", [b"GET / HTTP/1.1\r\n\r\n", b"", b"[" * 5000, b"\xff\xfe", b"x" * 10_000]
)
def test_nonsense_at_the_port_is_ignored(content):
  assert gather_from_strangers([content, json.dumps(KEYED).encode()]) is None


def test_a_slow_connection_has_a_few_seconds(monkeypatch):
  monkeypatch.setattr(distributed, "_GREETING_SECONDS", 0.3)
  assert gather_from_strangers([b"{", json.dumps(KEYED).encode()], end=b"") is None


def test_a_process_with_another_count_is_named_when_one_is_missing():
  error = gather_from_strangers([json.dumps(KEYED | {"processes": 3}).encode()], seconds=1.0)
  assert isinstance(error, distributed.UserError)
  assert "missing: process 1; process 1 of 3 came" in str(error)


def gather_from_strangers(contents, seconds=20.0, end=b"\n"):
  """Send lines to process 0 of a job of two, each by a connection of its own; return its error, if
  any."""
  port = free_port()
  errors = []

  def gather():
    try:
      distributed._await_processes(port, 2, time.monotonic() + seconds, seconds)
    except Exception as error:
      errors.append(error)

  thread = threading.Thread(target=gather)
  thread.start()
  peers = []
  for content in contents:
    while True:
      try:
        peers.append(socket.create_connection(("127.0.0.1", port), timeout=10))
        break
      except ConnectionRefusedError:
        time.sleep(0.01)
    with contextlib.suppress(OSError):
      peers[-1].sendall(content + (b"\n" if content is contents[-1] else end))
      if content == b"":
        peers[-1].close()
  thread.join(60)
  for peer in peers:
    peer.close()
  return errors[0] if errors else None
