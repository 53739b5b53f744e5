"""Commands on a damaged workdir end in a one-line error or in the results of the intact one."""

import contextlib
import functools
import io
import json
import pathlib
import random
import tempfile

import jax
import pytest
from safetensors.numpy import load_file

from t5x_like import evaluate, predict, train
from t5x_like.errors import handle_errors
from t5x_like.report import page
from tests.fuzz.harness import Sandbox, call_in_process, fuzz_seed, generator
from tests.fuzz.mutations import copy_folder, hash_files, list_files, mutate_folder
from tests.runs import fingerprints, losses
from tools import convert_hf

pytestmark = pytest.mark.runs

SEED = fuzz_seed(11)
NUM_SAMPLE_CASES = 15
NUM_CASES = 220
PARTS = 4
FLAGS = ("--config=tests/recipes/nano.py", "--config.eval_every=2", "--config.checkpoint.every=2")
FLAGS += ('--config.evals.loss={"max_examples": 16}',)
# The finished run has checkpoints of these steps, and the train command continues to the last step.
STEPS = (2, 4)
LAST_STEP = 6
# The beginnings of the names of files that a command may write; it must not change any other.
WRITES = {
  "train": (
    "certificate.jsonl",
    "history.jsonl",
    "metrics.jsonl",
    "environment.json",
    "report.html",
    "lock",
    "events.",
    "config.json",
  ),
  "evaluate": ("evaluations/",),
  "predict": (),
  "export": (),
  "report": ("report.html",),
}
# Commands are drawn from these; repeating one makes it more likely.
COMMANDS_WITHOUT_COMPILATION = ("export",) * 3 + ("report",)
COMMANDS = COMMANDS_WITHOUT_COMPILATION + ("predict",) * 3 + ("evaluate",) * 2 + ("train",) * 3


class Workdir:
  """A copy of a finished run, with the results that commands have on it.

  Args:
    trained: the run's workdir.
    folder: a directory for the copy and the results.
    commands: the commands that cases call; their results here are compared to those on a damaged
      copy.
  """

  def __init__(
    self,
    trained: pathlib.Path,
    folder: pathlib.Path,
    commands: tuple[str, ...] = COMMANDS_WITHOUT_COMPILATION,
  ):
    self.folder = copy_folder(trained, folder / "run")
    self._input = folder / "lines.txt"
    self._input.write_text("Returns the <extra_id_0>.\n")
    (self.folder / "evaluations").mkdir(exist_ok=True)
    (self.folder / "evaluations" / "4_loss_test.json").write_text(
      '{"step": 4, "metrics": {"loss": 6.5}}'
    )
    (self.folder / "evaluations" / "4_loss_test.jsonl").write_text('{"input": "a"}\n')
    self._expected: dict[str, list] = {command: [] for command in set(commands)}
    for command in set(commands) - {"report"}:
      steps = STEPS[-1:] if command == "train" else STEPS
      for step in steps:
        case_folder = folder / f"{command}{step}"
        intact = copy_folder(self.folder, case_folder / "run")
        assert self._call(command, case_folder, intact, f"--step={step}") == 0, command
        self._expected[command].append(self._results(command, case_folder, intact))

  def damage(self, rng: random.Random, folder: pathlib.Path) -> str:
    """Damage one file of a copied workdir, and return a description of the change."""
    unread = ("events.", "report.html", "compiled/")  # no command reads these
    files = [file for file in list_files(folder) if not file.startswith(unread)]
    groups = [
      ["config.json"],
      ["history.jsonl", "metrics.jsonl", "certificate.jsonl"],
      ["environment.json", "lock", *(file for file in files if file.startswith("evaluations/"))],
      [file for file in files if file.startswith("vocabulary/")],
      [file for file in files if file.endswith("manifest/metadata")],
      [file for file in files if file.startswith(("checkpoints/", "best/"))],
    ]
    # The config and the checkpoints are twice as likely as the other groups.
    weighted_groups = [*groups, groups[0], groups[-1]]
    return mutate_folder(rng, folder, rng.choice(weighted_groups))

  def call_and_compare(
    self, command: str, case_folder: pathlib.Path, folder: pathlib.Path, is_readable: bool
  ) -> int:
    """Call a command on a damaged workdir; if it succeeds, compare its results to the intact ones.

    Args:
      is_readable: whether config and vocabulary are intact; otherwise the results may differ.
    """
    code = self._call(command, case_folder, folder)
    if not code and is_readable and command != "report":
      assert self._results(command, case_folder, folder) in self._expected[command], "wrong results"
    return code

  def _call(self, command: str, case_folder: pathlib.Path, folder: pathlib.Path, *step: str) -> int:
    if command == "train":
      return train.main([*FLAGS, f"--config.total_steps={LAST_STEP}", f"--workdir={folder}"])
    if command == "evaluate":
      return evaluate.main([f"--workdir={folder}", *step])
    if command == "predict":
      flags = (
        f"--input={self._input}",
        f"--output={case_folder / 'out.jsonl'}",
        "--max_new_tokens=2",
      )
      return predict.main([f"--workdir={folder}", *flags, *step])
    if command == "report":
      return handle_errors(self._write_report)(folder)
    with contextlib.redirect_stdout(io.StringIO()):
      return convert_hf.main([f"--input={folder}", f"--output={case_folder / 'exported'}", *step])

  def _results(self, command: str, case_folder: pathlib.Path, folder: pathlib.Path):
    """Return the results that a command has written, without times."""
    if command == "train":
      new_losses = [(step, loss) for step, loss in losses(folder) if step > STEPS[-1]]
      return fingerprints(folder, LAST_STEP), new_losses
    if command == "evaluate":
      results = []
      for file in (folder / "evaluations").glob("*_loss_validation.json"):
        result = json.loads(file.read_text())
        metrics = {key: value for key, value in result["metrics"].items() if key != "seconds"}
        results.append((result["step"], metrics))
      return results
    if command == "predict":
      return (case_folder / "out.jsonl").read_text()
    tensors = load_file(case_folder / "exported" / "model.safetensors")
    return {key: (x.dtype.str, x.shape, x.tobytes()) for key, x in tensors.items()}

  @staticmethod
  def _write_report(folder: pathlib.Path) -> None:
    page.write_report(str(folder))  # its return value is no exit code


@pytest.fixture(scope="module")
def workdir(trained, tmp_path_factory) -> Workdir:
  return Workdir(trained, tmp_path_factory.mktemp("intact"))


def run_cases(
  workdir: Workdir,
  folder: pathlib.Path,
  cases: range,
  commands: tuple[str, ...],
  allowed_folder=None,
) -> None:
  """Damage a copy of the workdir for each case, and call one of the commands on it."""
  sandbox = Sandbox(folder / "sandbox", seconds=300, memory=2**30, allowed_folder=allowed_folder)
  for number in cases:
    description = [f"seed {SEED}, case {number}:"]
    rng = generator(SEED, number)
    run_case = functools.partial(damage_and_call, workdir, rng, commands, description)
    sandbox.run(description, run_case)
    print(*sandbox.outcomes[-1], flush=True)
  sandbox.check(min_cases=len(cases))


def damage_and_call(
  workdir: Workdir,
  rng: random.Random,
  commands: tuple[str, ...],
  description: list[str],
  case_folder: pathlib.Path,
) -> int:
  """Damage a copy of a workdir and call a command on it, which must not change the other files.

  Args:
    description: the parts of the case's description; the command and the damage are appended.
  """
  folder = copy_folder(workdir.folder, case_folder / "run")
  command = rng.choice(commands)
  before = hash_files(folder)
  description += [command, workdir.damage(rng, folder)]
  intact = {
    file: digest for file, digest in hash_files(folder).items() if before.get(file) == digest
  }
  damaged = [file for file in before if file not in intact]
  is_readable = not any(file.startswith(("config.json", "vocabulary/")) for file in damaged)
  code = workdir.call_and_compare(command, case_folder, folder, is_readable)
  after = hash_files(folder)
  may_write = WRITES[command]
  checkpoint_folders = ("checkpoints/", "best/")
  if command == "train" and any(file.startswith(checkpoint_folders) for file in damaged):
    may_write += checkpoint_folders  # a damaged checkpoint is moved out of the way
  for file, digest in intact.items():
    assert file.startswith(may_write) or after.get(file) == digest, (
      f"an intact file changed: {file}"
    )
  return code


def run_cases_in_process(first: int, last: int, cache: str) -> None:
  """Run the cases from `first` to before `last` with all commands, in a process of its own."""
  for option, value in {"min_compile_time_secs": 0.05, "min_entry_size_bytes": 0}.items():
    jax.config.update(f"jax_persistent_cache_{option}", value)
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    flags = [*FLAGS, f"--config.total_steps={STEPS[-1]}", f"--workdir={root / 'trained'}"]
    assert train.main(flags) == 0
    workdir = Workdir(root / "trained", root / "intact", COMMANDS)
    run_cases(workdir, root, range(first, last), COMMANDS, pathlib.Path(cache))


def test_some_damaged_workdirs_are_used_or_refused(workdir, tmp_path):
  run_cases(workdir, tmp_path, range(NUM_SAMPLE_CASES), COMMANDS_WITHOUT_COMPILATION)


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(PARTS))
def test_many_damaged_workdirs_are_used_or_refused(part, compiled):
  first = part * NUM_CASES // PARTS
  last = (part + 1) * NUM_CASES // PARTS
  call_in_process(run_cases_in_process, first, last, str(compiled), cache=compiled)
