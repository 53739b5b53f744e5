"""Training and evaluating on a damaged token store end in a one-line error or in right losses."""

import functools
import json
import pathlib
import random
import tempfile

import jax
import pytest

from t5x_like import evaluate, train
from tests import stores
from tests.fuzz.harness import Sandbox, call_in_process, fuzz_seed, generator
from tests.fuzz.mutations import copy_folder, hash_files, list_files, mutate_folder
from tests.fuzz.test_stores import sign
from tests.runs import losses

SEED = fuzz_seed(13)
NUM_CASES = 80
PARTS = 2
FLAGS = ("--config=tests/recipes/nano.py", "--config.total_steps=2", "--config.eval_every=2")
FLAGS += ('--config.evals.loss={"max_examples": 16}',)


class TrainedStore:
  """A store of two splits, a run that was trained on it, and the losses of commands on it."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder / "store"
    self._run = folder / "run"
    for split in ("train", "validation"):
      stores.write(self.folder / split, stores.random_documents(60, 200), shard_tokens=1_500)
    assert train.main([*FLAGS, f"--workdir={self._run}", f"--config.task.store={self.folder}"]) == 0
    self._expected = {
      name: self._results(name, self.folder, folder / name) for name in ("train", "evaluate")
    }
    assert all(code == 0 for code, _ in self._expected.values())

  def damage_and_call(
    self, rng: random.Random, changes: list[str], case_folder: pathlib.Path
  ) -> int:
    """Damage a copy of the store and call a command, which must not change the other files."""
    store = copy_folder(self.folder, case_folder / "store")
    name = rng.choice(("train", "evaluate"))
    before = hash_files(store)
    verify = rng.choice(("auto", "auto", "size"))
    split = "validation" if name == "evaluate" else rng.choice(("train", "train", "validation"))
    files = [file for file in list_files(store) if file.startswith(split)]
    if rng.random() < 0.7:
      files = [file for file in files if file.endswith((".json", ".npy"))]
    changes += [name, verify, mutate_folder(rng, store, files, sign)]
    intact = hash_files(store).items() & before.items()
    code, losses = self._results(name, store, case_folder / "run", f"--config.task.verify={verify}")
    assert intact <= hash_files(store).items(), "an intact file was changed"
    # A changed manifest may change the order of the documents.
    if not code and verify == "auto" and "manifest.json" not in changes[-1]:
      assert losses == self._expected[name][1], "wrong bits"
    return code

  def _results(self, name: str, store: pathlib.Path, case_folder: pathlib.Path, *flags: str):
    """Call a command; return its exit code and the losses that it wrote."""
    flags += (f"--config.task.store={store}",)
    if name == "train":
      code = train.main([*FLAGS, f"--workdir={case_folder}", *flags])
      return code, losses(case_folder) if not code else None
    code = evaluate.main([f"--workdir={copy_folder(self._run, case_folder)}", *flags])
    rows = [
      json.loads(file.read_text())["metrics"]
      for file in sorted(case_folder.glob("evaluations/*.json"))
    ]
    return code, [row["loss"] for row in rows]


def run_cases_in_process(first: int, last: int, cache: str) -> None:
  """Run the cases from `first` to before `last`, in a process of its own."""
  for name, value in {"min_compile_time_secs": 0.05, "min_entry_size_bytes": 0}.items():
    jax.config.update(f"jax_persistent_cache_{name}", value)
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    trained_store = TrainedStore(root)
    sandbox = Sandbox(
      root / "sandbox", seconds=300, memory=2**30, allowed_folder=pathlib.Path(cache)
    )
    for number in range(first, last):
      case = [f"seed {SEED}, case {number}:"]
      call = functools.partial(trained_store.damage_and_call, generator(SEED, number), case)
      sandbox.run(case, call)
      print(*sandbox.outcomes[-1], flush=True)
    sandbox.check(min_cases=last - first)


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(PARTS))
def test_commands_use_or_refuse_a_damaged_store(part, compiled):
  first = part * NUM_CASES // PARTS
  last = (part + 1) * NUM_CASES // PARTS
  call_in_process(run_cases_in_process, first, last, str(compiled), cache=compiled)
