"""Processes of a job meet and agree, or each of them prints one line that says why not."""

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


def start_process(environment, timeout=60, body="pass"):
  """Start a process that initialises the runtime and then runs `body`."""
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
    processes.append(start_process(environment, **options))
  return processes


INTERLEAVED_ROWS_PROGRAM = """
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
    array = from_local_rows(sharding, rows, x[rows], 32)
    assert (np.asarray(multihost_utils.process_allgather(array, tiled=True)) == x).all()
    print("rows", len(rows), bool((np.diff(rows) == 1).all()), flush=True)
"""


def test_processes_with_interleaved_rows_make_the_global_batch():
  flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
  port = free_port()
  job = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2"}
  jobs = [
    start_process(job | flags | {"JAX_PROCESS_ID": str(i)}, body=INTERLEAVED_ROWS_PROGRAM.strip())
    for i in range(2)
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


TRANSIENT = (69, "transient error: ")  # launchers restart a job that exits with 69


def test_processes_that_agree_start():
  facts = "distributed.check_agreement({'config': 'a', 'code': distributed.code_version()}, timeout_seconds=30)"
  results = finish(start_job(free_port(), range(3), 3, body=f"{facts}; {facts}"))
  assert [(code, out) for code, out, _ in results] == [(0, f"met {i} 3") for i in range(3)], results


def test_disagreement_names_the_process_and_the_fact():
  body = "distributed.check_agreement({'config hash': 'ab'[jax.process_index()], 'code': 'x'}, timeout_seconds=30)"
  for result in finish(start_job(free_port(), range(2), 2, body=body)):
    assert_refused(result, "process 1 has config hash b, process 0 has a")


def test_process_that_does_not_report_is_named():
  body = (
    "distributed.check_agreement({}, timeout_seconds=1) if jax.process_index() == 0 else "
    "__import__('time').sleep(4)"
  )
  results = finish(start_job(free_port(), range(2), 2, body=body))
  assert_refused(results[0], "process 1 of 2 did not report within 1 s", expected=TRANSIENT)


@pytest.mark.parametrize(
  "waits", ["time.sleep(60)", "any(map(lambda _: False, iter(int, 1)))"], ids=["asleep", "busy"]
)
def test_loss_of_the_first_process_is_a_transient_error(waits):
  body = f"import os, time; time.sleep(1) or os._exit(9) if jax.process_index() == 0 else {waits}"
  first, second = finish(start_job(free_port(), range(2), 2, body=body))
  assert first[0] == 9
  code, _, err = second
  line = err.splitlines()[-1]
  assert code == 69, second
  assert line.startswith("transient error: jax has ended this process"), second
  assert "Traceback" not in err, second


COUNT_READS_PROGRAM = """
  from jax._src import distributed as state
  jax.devices()
  client, reads = state.global_state.client, []
  class CountingClient:
    def __getattr__(self, name):
      reads.extend([name] * ("get" in name))
      return getattr(client, name)
  state.global_state.client = CountingClient()
  distributed.check_agreement({}, timeout_seconds=30)
  state.global_state.client = client
  print(len(reads), flush=True)
"""


def test_only_the_first_process_reads_all_facts():
  results = finish(start_job(free_port(), range(3), 3, body=COUNT_READS_PROGRAM.strip()))
  assert [(code, out.split()[:1]) for code, out, _ in results] == [
    (0, ["2"]),
    (0, ["1"]),
    (0, ["1"]),
  ], results


PREPARE_DATA_PROGRAM = """
  import pathlib, time
  file, slow = pathlib.Path({path!r}), jax.process_index() == 0
  def prepare():
    if slow:
      time.sleep(1)
      file.write_text("prepared")
    return file.read_text()
  distributed._POLL_SECONDS = 0.3
  print(distributed.run_first_alone(prepare), flush=True)
  def refuse():
    raise distributed.UserError("no such source")
  distributed.run_first_alone(refuse)
"""


def test_other_processes_wait_for_the_first_and_repeat_its_refusal(tmp_path):
  body = PREPARE_DATA_PROGRAM.format(path=str(tmp_path / "data")).strip()
  first, second = finish(start_job(free_port(), range(2), 2, body=body))
  assert first == (2, "prepared", "error: no such source")
  assert second[0] == 2
  assert second[2].endswith("error: process 0 could not prepare the data: no such source")
  assert second[1].startswith("waiting for process 0 to prepare the data (0 s")
  assert second[1].endswith("prepared")


def test_every_process_names_the_missing_one():
  started = time.time()
  for result in finish(start_job(free_port(), (0, 2), 3, timeout=10)):
    assert_refused(
      result,
      "only 2 of 3 processes connected within 10 s",
      "missing: process 1",
      expected=TRANSIENT,
    )
  assert time.time() - started < 200


def test_unreachable_coordinator_is_named():
  port = free_port()
  (result,) = finish(start_job(port, [1], 2, timeout=2))
  assert_refused(result, f"127.0.0.1:{port} within 2 s", "Connection refused", expected=TRANSIENT)


def test_port_in_use_is_refused():
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
    processes.append(start_process(environment))
  assert [r[:2] for r in finish(processes)] == [(0, "met 0 2"), (0, "met 1 2")]


def test_single_process_needs_no_environment():
  assert (
    finish([start_process({}), start_process({"JAX_NUM_PROCESSES": "1"})])
    == [(0, "met 0 1", "")] * 2
  )
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
def test_first_process_that_does_not_answer_is_a_transient_error(answer, kind, message):
  def get(key, milliseconds):
    raise RuntimeError(answer)

  with pytest.raises(kind, match=message):
    distributed._wait_for_key(
      types.SimpleNamespace(blocking_key_value_get=get), "key", 1, "process 1 is late"
    )


def test_waiting_for_prepared_data_ends_when_the_first_process_is_lost(monkeypatch, capsys):
  def get(key, milliseconds):
    raise RuntimeError("UNAVAILABLE: failed to connect to all addresses")

  store = types.SimpleNamespace(blocking_key_value_get=get)
  monkeypatch.setattr(distributed, "key_value_store", lambda: store)
  monkeypatch.setattr(distributed.jax, "process_index", lambda: 1)
  with pytest.raises(TransientError, match="process 0 of 1 cannot be reached"):
    distributed.run_first_alone(lambda: None, timeout_seconds=2)
  assert "waiting" not in capsys.readouterr().out


VALID_GREETING = {
  "greeting": distributed._GREETING,
  "key": distributed._secret_digest(),
  "process": 1,
  "processes": 2,
}


@pytest.mark.parametrize(
  "changes",
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
def test_connection_with_a_wrong_greeting_is_ignored(changes):
  """Process 0 ignores it, and goes on as soon as the real process 1 connects."""
  wrong_greeting = json.dumps(VALID_GREETING | changes).encode()
  assert connect_and_gather([wrong_greeting, json.dumps(VALID_GREETING).encode()]) is None


@pytest.mark.parametrize(
  "content", [b"GET / HTTP/1.1\r\n\r\n", b"", b"[" * 5000, b"\xff\xfe", b"x" * 10_000]
)
def test_nonsense_sent_to_the_port_is_ignored(content):
  assert connect_and_gather([content, json.dumps(VALID_GREETING).encode()]) is None


def test_connection_that_sends_no_full_line_is_dropped_after_seconds(monkeypatch):
  monkeypatch.setattr(distributed, "_GREETING_SECONDS", 0.3)
  assert connect_and_gather([b"{", json.dumps(VALID_GREETING).encode()], end=b"") is None


def test_process_of_another_job_size_is_named_when_one_is_missing():
  error = connect_and_gather([json.dumps(VALID_GREETING | {"processes": 3}).encode()], seconds=1.0)
  assert isinstance(error, distributed.UserError)
  assert "missing: process 1; process 1 of 3 connected" in str(error)


def connect_and_gather(contents, seconds=20.0, end=b"\n"):
  """Send each of some lines to process 0 of a job of two over its own connection.

  `end` ends every line but the last, which ends with a newline. Return the error of process 0, or
  None.
  """
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
