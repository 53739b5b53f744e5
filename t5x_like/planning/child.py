"""Make plans in child processes: they need another environment and stack, and the compiler may crash."""

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
from typing import Any

from t5x_like.errors import UserError
from t5x_like.planning import hardware

COMMAND = (sys.executable, "-m", "t5x_like.planning.compiling")


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


def plan(request: Request, timeout_seconds: float) -> dict[str, Any]:
  """Return the plan or, if the compiler fails, a finding: `fits` False and a `verdict` with the exit code.

  Raises:
    UserError: the request is invalid, such as an unknown recipe, topology or mesh.
  """
  topology = hardware.parse(request.topology, request.slices)
  environment = os.environ | hardware.environment(topology)
  start = time.perf_counter()
  with tempfile.TemporaryDirectory() as folder:
    asked, answer, log = (pathlib.Path(folder) / name for name in ("request.json", "answer.json", "log"))
    asked.write_text(json.dumps(dataclasses.asdict(request)))
    with log.open("wb") as sink:
      code = _run([*COMMAND, str(asked), str(answer)], environment, sink, timeout_seconds)
    if code == 0:
      found = json.loads(answer.read_text())
      if "error" in found:
        raise UserError(found["error"])
      return found
    last = log.read_bytes().decode(errors="replace")
  return _finding(request, topology, code, time.perf_counter() - start, last)


def _run(command: list[str], environment: dict[str, str], sink, timeout_seconds: float) -> int:
  process = subprocess.Popen(
    command, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, preexec_fn=_deep_stack
  )
  try:
    return process.wait(timeout_seconds)
  except subprocess.TimeoutExpired:
    return -signal.SIGALRM
  finally:
    process.kill()
    process.wait()


def _deep_stack() -> None:
  """Raise the stack limit before jax reads it: on Transformers, the compiler's threads overflow ordinary stacks."""
  _, hard = resource.getrlimit(resource.RLIMIT_STACK)
  resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))


def _finding(request: Request, topology, code: int, seconds: float, log: str) -> dict[str, Any]:
  """Describe a program whose compiler ended without an answer."""
  if code == -signal.SIGALRM:
    verdict = f"the compiler was not done after {seconds:.0f} s"
  elif code < 0:
    name = signal.Signals(-code).name
    why = ", as when memory runs out" if code == -signal.SIGKILL else ""
    verdict = f"the compiler crashed with {name}{why} (exit code {128 - code}) after {seconds:.0f} s"
  else:
    lines = [line.strip() for line in log.splitlines() if line.strip("- ") and "JAX has removed" not in line]
    verdict = (
      f"the compiler failed (exit code {code}) after {seconds:.0f} s: {lines[-1][:300] if lines else 'no message'}"
    )
  return {
    "topology": topology.name,
    "step": request.step,
    "config": request.config,
    "overrides": list(request.overrides),
    "fits": False,
    "compile_seconds": seconds,
    "verdict": verdict,
  }
