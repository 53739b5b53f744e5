"""Join the processes of one job, with a time limit and clear errors.

JAX's own initialisation aborts the process from C++ if a port is taken or a process is missing. So
the processes first meet over a plain socket on the coordinator's port, where every failure becomes
a one-line error. Then JAX takes over the port.
"""

import contextlib
import ctypes
import functools
import hashlib
import hmac
import itertools
import json
import os
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from t5x_like import errors
from t5x_like.errors import EXIT_TRANSIENT, TransientError, UserError, is_transient, one_line
from t5x_like.files.streams import GuardedStream
from t5x_like.parallel import jax_internals

_JOB_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
# The environment variable with the secret of the job; processes with another secret are ignored.
_KEY_VARIABLE = "T5X_LIKE_JOB_KEY"
_GREETING = "t5x_like.rendezvous.v2"
_GREETING_SECONDS = 5.0
_LINE_BYTES = 4096
_VERDICT_SECONDS = 60.0  # further time for process 0 to answer after it has compared all processes
_POLL_SECONDS = 60.0  # between two messages of a process that waits for process 0
_ABORT_MESSAGE = (
  "jax has ended this process, usually because another process of the job has ended or does not "
  "answer; see the logs of the others, and run the same command again"
)
# Keeps the function that libc calls from being garbage collected.
_abort_handler = None
# All processes count their calls, so that each call has its own key in JAX's key-value store.
_call_numbers = itertools.count()
_broadcast_numbers = itertools.count()
_gather_numbers = itertools.count()


class LateError(TransientError):
  """Another process of the job did not answer in time."""


@dataclass(frozen=True)
class _Job:
  address: str
  num_processes: int
  process_id: int
  local_device_ids: list[int] | None = None


def initialize(*, timeout_seconds: float = 300) -> None:
  """Join the job of this process; do nothing for a single process, or when called again.

  The job is read from `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`, or else
  detected by JAX (TPU pod slice, GKE, Slurm, Open MPI). Call it before the first use of a device.

  Raises:
    UserError: the variables are incomplete or wrong, or the coordinator's port is in use.
    TransientError: the coordinator cannot be reached, or some process did not join within
      `timeout_seconds`.
  """
  if jax.distributed.is_initialized():
    return
  job = _find_job(timeout_seconds)
  if job is None or job.num_processes == 1:
    return
  deadline = time.monotonic() + timeout_seconds
  host, port = _split_address(job.address)
  if job.process_id == 0:
    _await_processes(port, job.num_processes, deadline, timeout_seconds)
  else:
    _greet_coordinator(host, port, job, deadline, timeout_seconds)
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  _keep_stdout_for_python()
  _install_abort_handler()
  try:
    jax.distributed.initialize(
      job.address,
      job.num_processes,
      job.process_id,
      local_device_ids=job.local_device_ids,
      cluster_detection_method="deactivate",
      initialization_timeout=max(30, int(deadline - time.monotonic())),
    )
  except RuntimeError as error:
    raise TransientError(
      f"{job.address}: process {job.process_id} could not join the job: {one_line(error)[:300]}"
    ) from error


def _keep_stdout_for_python() -> None:
  """Redirect the output of native libraries, whose threads may write within a line, from stdout.

  On CPU it is only Gloo's greeting and is discarded. Elsewhere, such as NCCL's log, it goes to
  stderr.
  """
  try:
    if sys.stdout.fileno() != 1:
      return
  except (OSError, ValueError):  # a stream without a file, as in a notebook or a test
    return
  sys.stdout.flush()
  descriptor = os.dup(1)
  native_output = 2
  if jax.config.jax_platforms == "cpu":
    native_output = os.open(os.devnull, os.O_WRONLY)
  os.dup2(native_output, 1)
  stream = open(
    descriptor, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, buffering=1
  )
  sys.stdout = GuardedStream(stream)


def _install_abort_handler() -> None:
  """Replace jax's abort of this process by an exit with the code of a transient error.

  Jax aborts, from C++ and in another thread, as soon as its service reports that another process of
  the job has ended or does not answer. Jax accepts no Python callback instead (jaxlib 0.10 cannot
  convert its argument), and Python's own signal handlers run too late. So the handler is set
  through libc, in jobs of several processes only.
  """
  global _abort_handler

  @ctypes.CFUNCTYPE(None, ctypes.c_int)
  def end(_: int) -> None:
    os.write(2, f"transient error: {_ABORT_MESSAGE}\n".encode())
    os._exit(EXIT_TRANSIENT)

  set_handler = ctypes.CDLL(None).signal
  set_handler.argtypes = [ctypes.c_int, ctypes.c_void_p]
  set_handler.restype = ctypes.c_void_p
  set_handler(signal.SIGABRT, ctypes.cast(end, ctypes.c_void_p))
  _abort_handler = end


def check_agreement(facts: dict[str, str], *, timeout_seconds: float = 300) -> None:
  """Check that all processes have the same facts; every process must call it.

  Args:
    facts: config hash, code version and so on, by name.

  Raises:
    UserError: two processes differ; names the process and the fact.
    TransientError: a process did not report in time; names it.
  """
  store = key_value_store()
  if store is None:
    return
  key = f"t5x_like/agree/{next(_call_numbers)}"

  def compare():
    deadline = time.monotonic() + timeout_seconds
    for index in range(1, jax.process_count()):
      late_message = (
        f"process {index} of {jax.process_count()} did not report within {timeout_seconds:g} "
        "s; see its log"
      )
      report = json.loads(
        _wait_for_key(store, f"{key}/{index}", deadline - time.monotonic(), late_message)
      )
      for name in sorted({*facts, *report}):
        if report.get(name) != facts.get(name):
          raise UserError(
            f"process {index} has {name} {report.get(name)}, process 0 has {facts.get(name)}; "
            "start all processes with the same code, config, workdir and packages"
          )

  # Process 0 reads the facts of all processes, and the others read its verdict. This takes two
  # messages per process, whatever the number of processes.
  store.key_value_set(f"{key}/{jax.process_index()}", json.dumps(facts))
  broadcast_from_first(compare, timeout_seconds=timeout_seconds + _VERDICT_SECONDS)


def key_value_store():
  """Return the client of the coordinator's key-value store; None in a job of one process."""
  if not jax.distributed.is_initialized() or jax.process_count() == 1:
    return None
  return jax_internals.key_value_client()


def _wait_for_key(store, key: str, seconds: float, late_message: str) -> str:
  """Return the value of a key once another process has set it.

  Args:
    late_message: the message of the error after `seconds`.

  Raises:
    LateError: the key was not set in time.
    TransientError: process 0, which holds the keys, cannot be reached.
  """
  try:
    return store.blocking_key_value_get(key, max(1, int(seconds * 1000)))
  except RuntimeError as error:
    if "DEADLINE_EXCEEDED" in str(error):
      raise LateError(late_message) from None
    if is_transient(error):
      raise TransientError(
        f"process 0 of {jax.process_count()} cannot be reached: {one_line(error)[:200]}; see its "
        "log, and run the same command again"
      ) from error
    raise


def run_first_alone(make: Callable[[], Any], *, timeout_seconds: float = 86_400) -> Any:
  """Call `make` in process 0, then in the other processes, and return its result.

  All processes must call it. Use it for results that the first call leaves on a shared disk, such
  as prepared data.

  Raises:
    UserError: `make` raised one in process 0.
    TransientError: `make` failed there in another way, or took longer than `timeout_seconds`.
  """
  store = key_value_store()
  key = f"t5x_like/first/{next(_call_numbers)}"
  if store is None:
    return make()
  if jax.process_index() == 0:
    return _run_and_report(make, store, key)
  _wait_for_report(store, key, timeout_seconds)
  return make()


def _run_and_report(make: Callable[[], Any], store, key: str) -> Any:
  """Call `make` in process 0, and report its outcome to the other processes."""
  report = ["failed", "see its log"]
  try:
    result = make()
    report = ["made", ""]
    return result
  except UserError as error:
    if errors.error_class(error) is UserError:
      report = ["refused", one_line(error)]
    raise
  finally:
    store.key_value_set(key, json.dumps(report))


def _wait_for_report(store, key: str, timeout_seconds: float) -> None:
  """Wait until process 0 has called `make`; raise an error if the call failed or takes too long."""
  start = time.monotonic()
  while True:
    try:
      report = _wait_for_key(store, key, _POLL_SECONDS, "process 0 has not prepared the data yet")
      break
    except LateError:
      waited = time.monotonic() - start
    if waited > timeout_seconds:
      raise TransientError(
        f"process 0 has not prepared the data within {timeout_seconds:g} s; see its log"
      )
    print(f"waiting for process 0 to prepare the data ({waited:.0f} s so far)", flush=True)
  outcome, reason = json.loads(report)
  if outcome == "refused":
    raise UserError(f"process 0 could not prepare the data: {reason}")
  if outcome != "made":
    raise TransientError(f"process 0 could not prepare the data: {reason}")


def broadcast_from_first(make: Callable[[], Any], *, timeout_seconds: float = 600) -> Any:
  """Return the result of `make()` in process 0 to all processes; all of them must call it.

  Use it to query a file system, which may give two processes different answers.

  Args:
    make: called in process 0 only; its result must be serialisable as JSON.
  Raises:
    Exception: process 0 raised one. The other processes raise the same class of `t5x_like.errors`,
      or a RuntimeError.
    TransientError: process 0 did not answer in time.
  """
  store = key_value_store()
  key = f"t5x_like/from_first/{next(_broadcast_numbers)}"
  if store is None:
    return make()
  if jax.process_index() == 0:
    try:
      answer = make()
    except Exception as error:
      kind = errors.error_class(error) or type(error)
      store.key_value_set(key, json.dumps({"error": kind.__name__, "message": one_line(error)}))
      raise
    store.key_value_set(key, json.dumps({"answer": answer}))
    return answer
  late_message = f"process 0 did not answer within {timeout_seconds:g} s; see its log"
  answer_or_error = json.loads(_wait_for_key(store, key, timeout_seconds, late_message))
  if "error" in answer_or_error:
    raise getattr(errors, answer_or_error["error"], RuntimeError)(answer_or_error["message"])
  return answer_or_error["answer"]


def gather_in_first(value: Any, *, timeout_seconds: float = 600) -> list | None:
  """Return the values of all processes, by index, in process 0, and None in the others.

  All processes must call it. Only process 0 waits.

  Args:
    value: serialisable as JSON.
  Raises:
    TransientError: a process did not send its value in time.
  """
  store = key_value_store()
  key = f"t5x_like/gather/{next(_gather_numbers)}"
  if store is None:
    return [value]
  if jax.process_index() > 0:
    store.key_value_set(f"{key}/{jax.process_index()}", json.dumps(value))
    return None
  deadline = time.monotonic() + timeout_seconds
  values = [value]
  for index in range(1, jax.process_count()):
    late_message = (
      f"process {index} of {jax.process_count()} did not answer within {timeout_seconds:g} s; see "
      "its log"
    )
    seconds = deadline - time.monotonic()
    values.append(json.loads(_wait_for_key(store, f"{key}/{index}", seconds, late_message)))
  store.key_value_delete(f"{key}/")
  return values


@functools.cache
def code_version() -> str:
  """Hash the names and contents of the package's source files: 16 hexadecimal digits."""
  package = pathlib.Path(__file__).resolve().parents[1]
  digest = hashlib.sha256()
  for path in sorted(package.rglob("*.py"), key=lambda p: p.relative_to(package).as_posix()):
    content = path.read_bytes()
    digest.update(f"{path.relative_to(package).as_posix()}\0{len(content)}\0".encode() + content)
  return digest.hexdigest()[:16]


def _find_job(timeout_seconds: float) -> _Job | None:
  """Return the job that the environment's variables or a cluster describe; None for one process.

  Raises:
    UserError: the variables are incomplete or wrong.
  """
  variables = {name: os.environ[name] for name in _JOB_VARIABLES if os.environ.get(name)}
  if variables.get("JAX_NUM_PROCESSES") == "1":
    return None
  if not variables:
    return _detect_job(timeout_seconds)
  missing = [name for name in _JOB_VARIABLES if name not in variables]
  if missing:
    raise UserError(
      f"environment: {', '.join(variables)} set, {', '.join(missing)} missing; set all three, or "
      "none"
    )
  for name in _JOB_VARIABLES[1:]:
    if not variables[name].isdecimal():
      raise UserError(f"environment: {name} is {variables[name]!r}, expected a whole number")
  count = int(variables["JAX_NUM_PROCESSES"])
  index = int(variables["JAX_PROCESS_ID"])
  if index >= count:
    raise UserError(
      f"environment: JAX_PROCESS_ID is {index}, expected less than JAX_NUM_PROCESSES={count}"
    )
  return _Job(variables["JAX_COORDINATOR_ADDRESS"], count, index)


def _detect_job(timeout_seconds: float) -> _Job | None:
  """Return the job that jax reads from the cluster's environment; None if there is none.

  Raises:
    UserError: jax cannot read it.
  """
  try:
    detected = jax_internals.detect_job(int(timeout_seconds))
  except Exception as error:
    raise UserError(
      "this looks like a cluster, but jax cannot read the number of processes: "
      f"{one_line(error)[:200]}; set "
      f"{', '.join(_JOB_VARIABLES)} (JAX_NUM_PROCESSES=1 for a single process)"
    ) from error
  address, num_processes, process_id, local_device_ids = detected
  if None in (address, num_processes, process_id):
    return None
  return _Job(address, num_processes, process_id, local_device_ids)


def _split_address(address: str) -> tuple[str, int]:
  """Return the host and the port of an address; raise UserError if it has another form."""
  host, _, port = address.rpartition(":")
  if not host or not port.isdecimal() or not 0 < int(port) < 65536:
    raise UserError(
      f"coordinator address is {address!r}, expected host:port, for example 10.0.0.2:8476"
    )
  return host.strip("[]"), int(port)


def _open_server(port: int, backlog: int) -> socket.socket:
  """Listen on a port of all interfaces; raise UserError if it cannot be opened."""
  dual = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if dual else socket.AF_INET
  try:
    return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=backlog)
  except OSError as error:
    raise UserError(
      f"coordinator port {port} cannot be opened: {os.strerror(error.errno)}; end the job that "
      "uses it, or give another port in JAX_COORDINATOR_ADDRESS (launch/local.py: --port)"
    ) from None


def _await_processes(port: int, count: int, deadline: float, timeout_seconds: float) -> None:
  """Wait, in process 0, for all others to connect; then release them together."""
  server = _open_server(port, count)
  with contextlib.ExitStack() as stack:
    stack.enter_context(server)
    peers: dict[int, socket.socket] = {}
    last_refusal = ""
    while len(peers) < count - 1:
      server.settimeout(max(0.001, deadline - time.monotonic()))
      try:
        peer = stack.enter_context(server.accept()[0])
      except TimeoutError:
        error = _absence_error(peers, count, timeout_seconds, last_refusal)
        for peer in peers.values():
          _send(peer, {"refused": str(error), "transient": isinstance(error, TransientError)})
        raise error from None
      greeting = _receive(peer, _GREETING_SECONDS)
      if not _is_greeting(greeting):  # for example a port scanner or a health check
        peer.close()
        continue
      index = greeting["process"]
      is_expected = greeting["processes"] == count and index in range(1, count)
      if is_expected and (index not in peers or _has_left(peers[index])):
        peers[index] = peer
        continue
      # The process may belong to another job, so only the process is refused, and this job
      # continues.
      last_refusal = (
        f"process {index} of {greeting['processes']} connected to a job of {count} processes, "
        "where its index is taken or its count differs; give every process its own JAX_PROCESS_ID "
        "and the same JAX_NUM_PROCESSES"
      )
      _send(peer, {"refused": last_refusal, "transient": False})
      peer.close()
    for peer in peers.values():
      _send(peer, {"go": True})


def _is_greeting(message: dict) -> bool:
  """Return whether a message is a greeting of `_greet_coordinator` from the same job."""
  if message.get("greeting") != _GREETING:
    return False
  if type(message.get("process")) is not int or type(message.get("processes")) is not int:
    return False
  key = message.get("key")
  if not isinstance(key, str):
    return False
  return hmac.compare_digest(key.encode("utf-8", "replace"), _secret_digest().encode())


def _secret_digest() -> str:
  """Return a digest of the secret that the processes of a job share, if there is one."""
  secret = f"{_GREETING}:{os.environ.get(_KEY_VARIABLE, '')}"
  return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _has_left(peer: socket.socket) -> bool:
  """Return whether the other end of a connection has closed it, as a restarted process has."""
  peer.settimeout(0.0)
  try:
    return peer.recv(1, socket.MSG_PEEK) == b""
  except BlockingIOError:
    return False
  except OSError:
    return True
  finally:
    with contextlib.suppress(OSError):
      peer.settimeout(5.0)


def _absence_error(
  peers: dict[int, socket.socket], count: int, timeout_seconds: float, last_refusal: str
) -> Exception:
  """Return the error of process 0 for processes that have not connected in time."""
  missing = ", ".join(str(index) for index in range(1, count) if index not in peers)
  message = (
    f"only {len(peers) + 1} of {count} processes connected within {timeout_seconds:g} s; "
    f"missing: process {missing}"
  )
  if last_refusal:
    return UserError(f"{message}; {last_refusal}")
  return TransientError(f"{message}; start the same command on every host")


def _greet_coordinator(
  host: str, port: int, job: _Job, deadline: float, timeout_seconds: float
) -> None:
  """Connect to process 0 from another process, and wait for its permission to continue."""
  reason = "no answer"
  while time.monotonic() < deadline:
    seconds = max(0.001, min(5, deadline - time.monotonic()))
    try:
      peer = socket.create_connection((host, port), timeout=seconds)
    except OSError as error:
      reason = error.strerror or one_line(error)
      time.sleep(min(0.2, max(0, deadline - time.monotonic())))
      continue
    with peer:
      greeting = {
        "greeting": _GREETING,
        "process": job.process_id,
        "processes": job.num_processes,
        "key": _secret_digest(),
      }
      _send(peer, greeting)
      answer = _receive(peer, max(1, deadline + 5 - time.monotonic()))
    if answer.get("go"):
      return
    if "refused" in answer:
      error_class = TransientError if answer.get("transient") else UserError
      raise error_class(str(answer["refused"]))
    reason = "it answers, but not as a coordinator"
    time.sleep(0.2)
  raise TransientError(
    f"process {job.process_id} could not reach the coordinator at {host}:{port} within "
    f"{timeout_seconds:g} s: {reason}"
    "; check that process 0 is running and that JAX_COORDINATOR_ADDRESS is its address"
  )


def _send(peer: socket.socket, message: dict) -> None:
  with contextlib.suppress(OSError):
    peer.sendall(json.dumps(message).encode() + b"\n")


def _receive(peer: socket.socket, seconds: float) -> dict:
  """Receive one line of JSON within a time limit; return {} for anything else."""
  deadline = time.monotonic() + seconds
  line = b""
  with contextlib.suppress(OSError, ValueError, RecursionError):
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES:
      peer.settimeout(max(0.001, deadline - time.monotonic()))
      part = peer.recv(_LINE_BYTES)
      if not part:
        break
      line += part
    message = json.loads(line)
    return message if isinstance(message, dict) else {}
  return {}
