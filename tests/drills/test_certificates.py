"""Certificates of ten kinds of runs hold after kills at random moments, and name no step that
differs from a run that was not killed (`make test-drills`).

Each kind is killed 3 times as it stands; `T5X_LIKE_KILLS=100` kills each 10 times. Certificates are
verified whole: every batch is made again, and every step that a kept checkpoint allows is computed
again.
"""

import dataclasses
import json
import pathlib
import random
import signal
import sys
import time

import pytest

import tests.recipes.nano_decoder
import tests.recipes.nano_encoder
import tests.recipes.nano_image  # noqa: F401 -- the variants of the runs
from tests.drills.moments import kill_at, kills, seeded_random
from tests.drills.test_rollback import POISON_BATCH
from tests.runs import (
  NANO,
  Process,
  assert_same_bits,
  count_metrics,
  losses,
  run,
  run_to_end,
  steps_being_saved,
  train,
)

pytestmark = pytest.mark.drill
STEPS = 40
FLAGS = (
  "--config.checkpoint.every=4",
  "--config.checkpoint.keep_last=20",
  "--config.eval_every=15",
)
CERTIFY = """
import tests.recipes.nano, tests.recipes.nano_decoder, tests.recipes.nano_encoder
import tests.recipes.nano_image
from t5x_like import certify, command_line
command_line.run_program(certify.main)
"""
MIXTURE = {
  "name": "mixture",
  "shared": {"inputs_length": 32, "targets_length": 8},
  "parts": {
    "short": {"name": "span_corruption", "store": "builtin"},
    "long": {"name": "span_corruption", "store": "builtin", "mean_noise_span_length": 8.0},
  },
  "rates": {"short": 1, "long": 3},
}
OTHER_RATES = {"first": {"until": 17, "task": {"rates": {"short": 3, "long": 1}}}}
SHORT_PHASE = {"short": {"until": 17, "task": {"length": 32}, "batch_size": 16}}


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of run.

  Attributes:
    recipe: of its command.
    flags: of its command.
    also: code that its processes run first.
    processes: the numbers of processes of its stages, each of an equal part of the steps.
  """

  recipe: str = NANO
  flags: tuple[str, ...] = ()
  also: str = ""
  processes: tuple[int, ...] = (1,)

  def commands(self, workdir: pathlib.Path) -> list[list[str]]:
    """Return the command of each stage."""
    commands = []
    for stage, count in enumerate(self.processes, start=1):
      total = STEPS * stage // len(self.processes)
      flags = (*FLAGS, f"--config.total_steps={total}", *self.flags)
      flags = [flag.replace("WORKDIR", str(workdir)) for flag in flags]
      command = train(workdir, *flags, recipe=self.recipe)
      if self.also:
        command = kill_at(command, "os.rename", "no such name", also=self.also)
      if count > 1:
        options = (f"--processes={count}", "--devices_per_process=1", "--grace_seconds=5")
        command = [sys.executable, "launch/local.py", *options, "--", *command]
      commands.append(command)
    return commands


KINDS = {
  "mixture with other rates": Kind(
    flags=(f"--config.task={json.dumps(MIXTURE)}", f"--config.phases={json.dumps(OTHER_RATES)}")
  ),
  "phases": Kind("tests/recipes/nano_encoder.py", (f"--config.phases={json.dumps(SHORT_PHASE)}",)),
  "packed rows": Kind("tests/recipes/nano_decoder.py", ("--config.log_every=3",)),
  "accumulation": Kind(flags=("--config.accumulation_steps=2", "--config.clip_norm=1.0")),
  "average of the weights": Kind(
    flags=('--config.optimizer={"name": "adamw", "ema": 0.9}', "--config.evals.loss={}")
  ),
  "adapters": Kind(flags=("--config.tuning.name=lora",)),
  "rollback": Kind(flags=('--config.guard={"name": "rollback", "steps": 4}',), also=POISON_BATCH),
  "images": Kind("tests/recipes/nano_image.py"),
  "emergency copies": Kind(
    flags=(
      "--config.checkpoint.emergency.directory=WORKDIR.near",
      "--config.checkpoint.emergency.every=3",
      "--config.checkpoint.every=20",
    )
  ),
  "1, 2 and 4 processes": Kind(processes=(1, 2, 4)),
}


@pytest.fixture(scope="module")
def where(tmp_path_factory):
  return {"cache": tmp_path_factory.mktemp("compiled")}


def kill(command: list[str], workdir: pathlib.Path, draw: random.Random, where: dict) -> str:
  """Kill a run once, and return the moment; the run must not have ended."""
  moment = draw.choice(("step", "step", "saving", "starting"))
  before = count_metrics(workdir)
  under_way = set(steps_being_saved(workdir))
  since = time.monotonic()
  with Process(command, **where) as process:
    if moment == "starting":
      wait = draw.uniform(0, 20)
      process.until(
        lambda: time.monotonic() - since > wait or count_metrics(workdir) not in (0, before)
      )
    else:
      # Count lines of this start: a start drops the lines after its step.
      process.until(lambda: count_metrics(workdir) not in (0, before))
      reach = count_metrics(workdir) + draw.randint(0, 5)
      is_saving = lambda: moment == "saving" and set(steps_being_saved(workdir)) - under_way  # noqa: E731
      process.until(lambda: is_saving() or count_metrics(workdir) >= reach)
    process.send(signal.SIGKILL)
    code, output = process.end()
  assert code != 0, f"it ended before it was killed: {output[-2000:]}"
  return moment


def certify(workdir: pathlib.Path, *flags: str, **where) -> tuple[int, str, dict]:
  """Return the exit code, the output and the JSON of the command."""
  file = workdir.with_suffix(".json")
  command = [sys.executable, "-c", CERTIFY, f"--workdir={workdir}", f"--json={file}", *flags]
  code, output = run(command, **where)
  return code, output, json.loads(file.read_text())


@pytest.mark.parametrize("name", KINDS)
def test_the_certificate_of_a_killed_run_holds(name, where, tmp_path, capsys):
  kind = KINDS[name]
  whole = tmp_path / "whole"
  killed = tmp_path / "killed"
  for command in kind.commands(whole):
    run_to_end(command, **where)
  count = kills(3, share=len(KINDS))
  commands = kind.commands(killed)
  moments = []
  with capsys.disabled():
    draw = seeded_random(f"certificate of {name}")
  for number in range(count):
    stage = number * len(commands) // count
    for command in commands[:stage]:  # stages before this one have ended, or end now
      run_to_end(command, **where)
    moments.append(kill(commands[stage], killed, draw, where))
  for command in commands:
    run_to_end(command, **where)
  assert losses(killed) == losses(whole)
  assert_same_bits(killed, whole, STEPS)

  code, output, outcome = certify(killed, "--steps=all", "--replay=all", **where)
  assert code == 0, output
  assert outcome["holds"] is True
  assert outcome["first_step"] == 1
  assert outcome["last_step"] == STEPS
  assert len(outcome["starts"]) >= len(commands)  # a start may be killed before it is recorded
  code, output, comparison = certify(killed, f"--against={whole}", **where)
  assert code == 0, output
  assert comparison["last_equal_step"] == STEPS
  with capsys.disabled():
    starts = len(outcome["starts"])
    print(
      f"{name}: {count} kills ({', '.join(moments)}), {starts} recorded starts, "
      f"{outcome['repeated_steps']} steps made again: same bits; certificate holds"
    )
    print(next(check["summary"] for check in outcome["checks"] if check["name"] == "replay"))
