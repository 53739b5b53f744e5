"""Commands on a damaged workdir end in a one-line error or in the right bits."""

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
from tests.fuzz.harness import Sandbox, call_in_process, generator
from tests.fuzz.mutations import copy_folder, digests, files_of, mutate_folder
from tests.runs import fingerprints, losses
from tools import convert_hf

pytestmark = pytest.mark.runs

SEED = 11
SAMPLE = 15
ALL = 220
PARTS = 4
FLAGS = ("--config=tests/recipes/nano.py", "--config.eval_every=2", "--config.checkpoint.every=2")
FLAGS += ('--config.evals.loss={"max_examples": 16}',)
# a finished run has checkpoints of the steps; the train command goes on to the last
STEPS = (2, 4)
LAST = 6
# Files that a run of each command may write; all others stay as they are.
WRITES = {
  "train": (
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
QUICK = ("export", "export", "export", "report")  # nothing is compiled
COMMANDS = (*QUICK, *3 * ("predict",), *2 * ("evaluate",), *3 * ("train",))


class Workdir:
  """A copy of a finished run, its evaluation, and its parameters as exported.

  Args:
    trained: the run.
    folder: a directory for all of this.
    commands: names of commands; what each gives for the sound workdir is kept, to be compared with.
  """

  def __init__(
    self, trained: pathlib.Path, folder: pathlib.Path, commands: tuple[str, ...] = QUICK
  ):
    self.folder = copy_folder(trained, folder / "run")
    self._input = folder / "lines.txt"
    self._input.write_text("Returns the <extra_id_0>.\n")
    (self.folder / "evaluations").mkdir(exist_ok=True)
    (self.folder / "evaluations" / "4_loss_test.json").write_text(
      '{"step": 4, "metrics": {"loss": 6.5}}'
    )
    (self.folder / "evaluations" / "4_loss_test.jsonl").write_text('{"input": "a"}\n')
    self._expected: dict[str, list] = {name: [] for name in {*commands}}
    for name in {*commands} - {"report"}:
      for step in STEPS if name != "train" else STEPS[-1:]:
        used = copy_folder(self.folder, folder / f"{name}{step}" / "run")
        assert self._call(name, used.parent, used, f"--step={step}") == 0, name
        self._expected[name].append(self._results(name, used.parent, used))

  def damage(self, choice: random.Random, folder: pathlib.Path) -> str:
    files = [
      file
      for file in files_of(folder)
      if not file.startswith(("events.", "report.html", "compiled/"))
    ]
    parts = [
      ["config.json"],
      ["history.jsonl", "metrics.jsonl"],
      ["environment.json", "lock", *(file for file in files if file.startswith("evaluations/"))],
      [file for file in files if file.startswith("vocabulary/")],
      [file for file in files if file.endswith("manifest/metadata")],
      [file for file in files if file.startswith(("checkpoints/", "best/"))],
    ]
    return mutate_folder(choice, folder, choice.choice(parts + parts[:1] + parts[-1:]))

  def use(
    self, name: str, case_folder: pathlib.Path, folder: pathlib.Path, is_readable: bool
  ) -> int:
    """Call a command on a damaged workdir, and compare what it made.

    Args:
      whole: whether config and vocabulary are sound, so that it is known.
    """
    code = self._call(name, case_folder, folder)
    if not code and is_readable and name != "report":
      assert self._results(name, case_folder, folder) in self._expected[name], "wrong bits"
    return code

  def _call(self, name: str, case_folder: pathlib.Path, folder: pathlib.Path, *step: str) -> int:
    if name == "train":
      return train.main([*FLAGS, f"--config.total_steps={LAST}", f"--workdir={folder}"])
    if name == "evaluate":
      return evaluate.main([f"--workdir={folder}", *step])
    if name == "predict":
      flags = (
        f"--input={self._input}",
        f"--output={case_folder / 'out.jsonl'}",
        "--max_new_tokens=2",
      )
      return predict.main([f"--workdir={folder}", *flags, *step])
    if name == "report":
      return handle_errors(self._report)(folder)
    with contextlib.redirect_stdout(io.StringIO()):
      return convert_hf.main([f"--input={folder}", f"--output={case_folder / 'exported'}", *step])

  def _results(self, name: str, case_folder: pathlib.Path, folder: pathlib.Path):
    if name == "train":
      return fingerprints(folder, LAST), [row for row in losses(folder) if row[0] > STEPS[-1]]
    if name == "evaluate":
      results = [
        json.loads(file.read_text())
        for file in (folder / "evaluations").glob("*_loss_validation.json")
      ]
      return [
        (result["step"], {k: v for k, v in result["metrics"].items() if k != "seconds"})
        for result in results
      ]
    if name == "predict":
      return (case_folder / "out.jsonl").read_text()
    tensors = load_file(case_folder / "exported" / "model.safetensors")
    return {key: (x.dtype.str, x.shape, x.tobytes()) for key, x in tensors.items()}

  @staticmethod
  def _report(folder: pathlib.Path) -> None:
    page.write_report(str(folder))


@pytest.fixture(scope="module")
def workdir(trained, tmp_path_factory) -> Workdir:
  return Workdir(trained, tmp_path_factory.mktemp("sound"))


def damage_and_use(
  workdir: Workdir,
  folder: pathlib.Path,
  cases: range,
  commands: tuple[str, ...],
  allowed_folder=None,
) -> None:
  sandbox = Sandbox(folder / "sandbox", seconds=300, memory=2**30, allowed_folder=allowed_folder)
  for number in cases:
    case = [f"seed {SEED}, case {number}:"]
    choice = generator(SEED, number)
    sandbox.run(case, functools.partial(damage_and_use_copy, workdir, choice, commands, case))
    print(*sandbox.outcomes[-1], flush=True)
  sandbox.check(min_cases=len(cases))


def damage_and_use_copy(
  workdir: Workdir, choice: random.Random, commands, changes: list[str], case_folder: pathlib.Path
) -> int:
  """Damage a copy of a workdir and call a command on it, which must not change the other files."""
  folder = copy_folder(workdir.folder, case_folder / "run")
  name = choice.choice(commands)
  before = digests(folder)
  changes += [name, workdir.damage(choice, folder)]
  sound = {file: digest for file, digest in digests(folder).items() if before.get(file) == digest}
  harmed = [file for file in before if file not in sound]
  is_readable = not any(file.startswith(("config.json", "vocabulary/")) for file in harmed)
  code = workdir.use(name, case_folder, folder, is_readable)
  after = digests(folder)
  steps = ("checkpoints/", "best/")  # a damaged step is set aside
  written = WRITES[name]
  if name == "train" and any(file.startswith(steps) for file in harmed):
    written += steps
  for file, digest in sound.items():
    assert file.startswith(written) or after.get(file) == digest, f"a sound file changed: {file}"
  return code


def part(first: int, last: int, cache: str) -> None:
  """Try some of the cases through all commands; called in a process of its own."""
  for name, value in {"min_compile_time_secs": 0.05, "min_entry_size_bytes": 0}.items():
    jax.config.update(f"jax_persistent_cache_{name}", value)
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    assert (
      train.main([*FLAGS, f"--config.total_steps={STEPS[-1]}", f"--workdir={root / 'trained'}"])
      == 0
    )
    workdir = Workdir(root / "trained", root / "sound", COMMANDS)
    damage_and_use(workdir, root, range(first, last), COMMANDS, pathlib.Path(cache))


def test_some_damaged_workdirs_are_used_or_refused(workdir, tmp_path):
  damage_and_use(workdir, tmp_path, range(SAMPLE), QUICK)


@pytest.mark.fuzz
@pytest.mark.parametrize("n", range(PARTS))
def test_many_damaged_workdirs_are_used_or_refused(n, compiled):
  call_in_process(part, n * ALL // PARTS, (n + 1) * ALL // PARTS, str(compiled), cache=compiled)
