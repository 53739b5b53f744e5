"""Damaged workdirs, resumed, evaluated, used, exported and reported: right bits, or one line. See `harness`."""

import contextlib
import functools
import io
import pathlib
import random

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from safetensors.numpy import load_file

from t5x_like import evaluate, predict, train
from t5x_like.errors import door
from t5x_like.report import page
from tests.fuzz.harness import Ground, generator
from tests.fuzz.mutations import copied, digests, files_of, folder_mutation
from tools import convert_hf

SEED, SAMPLE, ALL = 11, 15, 220
FLAGS = ("--config.total_steps=4", "--config.eval_every=4", "--config.checkpoint.every=2", "--config.evals.loss={}")
STEPS = (2, 4)
# Files that a run of each command may write; all others stay as they are.
WRITES = {
  "train": ("history.jsonl", "metrics.jsonl", "environment.json", "report.html", "lock", "events.", "config.json"),
  "evaluate": ("evaluations/",),
  "predict": (),
  "export": (),
  "report": ("report.html",),
}
QUICK = ("export", "export", "export", "report")  # nothing is compiled
DOORS = (*QUICK, *QUICK, "predict", "predict", "evaluate", "train", "train")


class Workdir:
  """A copy of a finished run, its evaluation, and its parameters as exported.

  Args:
    trained: the run.
    folder: a directory for all of this.
  """

  def __init__(self, trained: pathlib.Path, folder: pathlib.Path):
    self.folder, self._input = copied(trained, folder / "run"), folder / "lines.txt"
    self._input.write_text("Returns the <extra_id_0>.\n")
    (self.folder / "evaluations").mkdir(exist_ok=True)
    (self.folder / "evaluations" / "4_loss_test.json").write_text('{"step": 4, "metrics": {"loss": 6.5}}')
    (self.folder / "evaluations" / "4_loss_test.jsonl").write_text('{"input": "a"}\n')
    self.tensors = {step: self._exported(self.folder, folder / str(step), f"--step={step}") for step in STEPS}

  def damage(self, choice: random.Random, folder: pathlib.Path) -> str:
    files = [file for file in files_of(folder) if not file.startswith(("events.", "report.html"))]
    parts = [
      ["config.json"],
      ["history.jsonl", "metrics.jsonl"],
      ["environment.json", "lock", *(file for file in files if file.startswith("evaluations/"))],
      [file for file in files if file.startswith("vocabulary/")],
      [file for file in files if file.endswith("manifest/metadata")],
      [file for file in files if file.startswith(("checkpoints/", "best/"))],
    ]
    return folder_mutation(choice, folder, choice.choice(parts + parts[:1] + parts[-1:]))

  def use(self, name: str, inside: pathlib.Path, folder: pathlib.Path, whole: bool) -> int:
    """Call a command on a damaged workdir.

    Args:
      whole: whether config and vocabulary are sound, so that exported tensors are known.
    """
    if name == "train":
      return train.main(["--config=tests/recipes/nano.py", *FLAGS, f"--workdir={folder}"])
    if name == "evaluate":
      return evaluate.main([f"--workdir={folder}"])
    if name == "predict":
      output = inside / "out.jsonl"
      flags = (f"--input={self._input}", f"--output={output}", "--max_new_tokens=2")
      return predict.main([f"--workdir={folder}", *flags])
    if name == "report":
      return door(self._report)(folder)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
      code = convert_hf.main([f"--input={folder}", f"--output={inside / 'exported'}"])
    if not code and whole:
      step = next(step for step in STEPS if f"step {step} of" in said.getvalue())  # an older one is told
      tensors = load_file(inside / "exported" / "model.safetensors")
      assert tensors.keys() == self.tensors[step].keys(), "other tensors"
      assert all(x.tobytes() == self.tensors[step][key].tobytes() for key, x in tensors.items()), "wrong bits"
    return code

  @staticmethod
  def _report(folder: pathlib.Path) -> None:
    page.write_report(str(folder))

  @staticmethod
  def _exported(folder: pathlib.Path, output: pathlib.Path, *flags: str):
    assert convert_hf.main([f"--input={folder}", f"--output={output}", *flags]) == 0
    return load_file(output / "model.safetensors")


@pytest.fixture(scope="module")
def workdir(trained, tmp_path_factory) -> Workdir:
  return Workdir(trained, tmp_path_factory.mktemp("sound"))


@pytest.fixture
def kept_inside(tmp_path):
  """A compilation cache where the ground allows files."""
  before = jax.config.jax_compilation_cache_dir
  jax.config.update("jax_compilation_cache_dir", str(tmp_path / "ground" / "tmp"))
  compilation_cache.reset_cache()
  yield
  jax.config.update("jax_compilation_cache_dir", before)
  compilation_cache.reset_cache()


def tried(workdir: Workdir, tmp_path: pathlib.Path, cases: range, doors: tuple[str, ...]) -> None:
  ground = Ground(tmp_path / "ground", seconds=90, memory=2**30)
  for number in cases:
    told: list[str] = []
    choice = generator(SEED, number)
    outcome = ground.run(str(number), functools.partial(harmed_and_used, workdir, choice, doors, told))
    ground.outcomes[-1] = outcome._replace(case=f"seed {SEED}, case {number}: {' '.join(told)}")
  ground.check(least=len(cases))


def harmed_and_used(workdir: Workdir, choice: random.Random, doors, told: list[str], inside: pathlib.Path) -> int:
  """Damage a copy of a workdir and call a command on it; files that were not damaged stay as they are."""
  folder, name = copied(workdir.folder, inside / "run"), choice.choice(doors)
  before = digests(folder)
  told += [name, workdir.damage(choice, folder)]
  sound = {file: digest for file, digest in digests(folder).items() if before.get(file) == digest}
  harmed = [file for file in before if file not in sound]
  whole = not any(file.startswith(("config.json", "vocabulary/")) for file in harmed)
  code = workdir.use(name, inside, folder, whole)
  after = digests(folder)
  steps = [file.rpartition("/state/")[0] or file.rpartition("/manifest/")[0] for file in harmed if "/" in file]
  written = (*WRITES[name], *(("checkpoints/", "best/") if name == "train" and any(steps) else ()))
  changed = [file for file, digest in sound.items() if after.get(file) != digest and not file.startswith(written)]
  assert not changed, f"sound files changed: {changed[:5]}"
  return code


def test_some_damaged_workdirs(workdir, tmp_path):
  tried(workdir, tmp_path, range(SAMPLE), QUICK)


@pytest.mark.fuzz
def test_damaged_workdirs(workdir, tmp_path, kept_inside):
  tried(workdir, tmp_path, range(ALL), DOORS)
