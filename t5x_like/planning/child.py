"""Make plans in child processes.

A plan needs other environment variables and a larger stack, and the compiler may crash.
"""

import dataclasses
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from t5x_like.errors import UserError
from t5x_like.planning import hardware

COMMAND = (sys.executable, "-m", "t5x_like.planning.compiling")
PROGRESS_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class Request:
  """A request for a plan.

  Attributes:
    config, overrides: as for training.
    topology, slices: see `hardware.parse`.
    step: `train`, `eval` or `decode`.
    phase: a phase of the recipe; None is the end of the run.
    hlo: a file for the text of the compiled program, or None.
    search: whether to return candidates for planning instead; see `search.candidates`.
    trust: whether the command has `--trust`, see `t5x_like.trust`.
  """

  config: str
  topology: str
  slices: int = 1
  step: str = "train"
  phase: str | None = None
  overrides: tuple[str, ...] = ()
  hlo: str | None = None
  search: bool = False
  trust: bool = False


def plan(
  request: Request,
  timeout_seconds: float,
  report_progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
  """Return the plan; without an answer of the compiler, `fits` is None and `verdict` says why.

  Args:
    timeout_seconds: how long the compiler may take.
    report_progress: receives a line every `PROGRESS_SECONDS` while the compiler works.

  Raises:
    UserError: the request is invalid, such as an unknown recipe, topology or mesh.
  """
  topology = hardware.parse(request.topology, request.slices)
  environment = os.environ | hardware.environment(topology)
  start = time.perf_counter()
  with tempfile.TemporaryDirectory() as folder:
    request_file = pathlib.Path(folder) / "request.json"
    answer_file = pathlib.Path(folder) / "answer.json"
    log_file = pathlib.Path(folder) / "log"
    request_file.write_text(json.dumps(dataclasses.asdict(request)))
    command = [*COMMAND, str(request_file), str(answer_file)]
    with log_file.open("wb") as log:
      code = _run(command, environment, log, timeout_seconds, report_progress)
    if code == 0:
      answer = json.loads(answer_file.read_text())
      if "error" in answer:
        raise UserError(answer["error"])
      return answer
    messages = log_file.read_bytes().decode(errors="replace")
  seconds = time.perf_counter() - start
  return {
    "topology": topology.name,
    "step": request.step,
    "config": request.config,
    "overrides": list(request.overrides),
    "fits": None,
    "compile_seconds": seconds,
    "verdict": _failure(code, seconds, messages),
  }


def _run(
  command: list[str], environment: dict[str, str], log, timeout_seconds: float, report_progress
) -> int:
  """Run a command; return its exit code, or minus the number of the signal that ended it.

  A timeout counts as SIGALRM.
  """
  process = subprocess.Popen(
    command,
    env=environment,
    stdin=subprocess.DEVNULL,
    stdout=log,
    stderr=log,
    preexec_fn=_raise_stack_limit,
  )
  start = time.perf_counter()
  try:
    while True:
      elapsed = time.perf_counter() - start
      remaining = timeout_seconds - elapsed
      if remaining <= 0:
        return -signal.SIGALRM
      try:
        return process.wait(min(PROGRESS_SECONDS, remaining))
      except subprocess.TimeoutExpired:
        elapsed = time.perf_counter() - start
        report_progress(
          f"compiling for {elapsed:.0f} s, at most {timeout_seconds:g} s (--timeout_seconds)"
        )
  finally:
    process.kill()
    process.wait()


def _raise_stack_limit() -> None:
  """Raise the stack limit, which jax reads when it starts threads.

  For Transformers, the compiler's threads overflow ordinary stacks.
  """
  _, hard = resource.getrlimit(resource.RLIMIT_STACK)
  resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))


def _failure(code: int, seconds: float, messages: str) -> str:
  """Explain in one line why the compiler gave no answer."""
  if code == -signal.SIGALRM:
    return f"the compiler had not finished after {seconds:.0f} s; raise --timeout_seconds"
  if code < 0:
    name = signal.Signals(-code).name
    hint = ", as when memory runs out" if code == -signal.SIGKILL else ""
    return f"the compiler crashed with {name}{hint} (exit code {128 - code}) after {seconds:.0f} s"
  message = "no message"
  for line in messages.splitlines():
    if line.strip("- ") and "JAX has removed" not in line:
      message = line.strip()[:300]
  return f"the compiler failed (exit code {code}) after {seconds:.0f} s: {message}"
