"""Topics can be deleted: without its folder, tests and recipes, the rest of the project works."""

import ast
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests import topics

REPO = pathlib.Path(__file__).resolve().parents[1]
COPIED = ("t5x_like", "configs", "tests", "tools", "launch", "docs")
TESTS_OF_PAGES = ("test_docs.py", "test_howtos.py", "test_reproduce.py")
NOT_COPIED = shutil.ignore_patterns("__pycache__")

# Imports every module, lists every name and key, and resolves every recipe.
PROGRAM = """
import importlib, pathlib
from t5x_like import listing, recipes, train
from t5x_like.training.resolve import resolve

for path in sorted(pathlib.Path("t5x_like").rglob("*.py")):
  if path.stem != "__main__":
    importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
for kind in listing.KINDS:
  assert listing.format_list(kind)
for name in recipes.names():
  resolve(recipes.load(name))
print(len(recipes.names()), "recipes resolved by", pathlib.Path(recipes.__file__).parents[1])
train.main(["--help"])
"""


def copy_without(names: list[str], folder: pathlib.Path) -> None:
  """Copy the project without some topics, their tests and their recipes."""
  for name in COPIED:
    shutil.copytree(REPO / name, folder / name, ignore=NOT_COPIED)
  for path in REPO.iterdir():
    if path.is_file():
      shutil.copy(path, folder)
  for name in names:
    shutil.rmtree(folder / "t5x_like" / "contrib" / name)
    shutil.rmtree(folder / "tests" / "contrib" / name)
    for recipe in topics.module(name).RECIPES:
      (folder / "configs" / recipe).unlink()
    for golden in getattr(topics.module(name), "PARITY", ()):
      (folder / "tests" / "golden" / f"{golden}.npz").unlink()


def run_in(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=3600
  )


def test_every_topic_has_tests():
  folders = (REPO / "t5x_like" / "contrib").glob("*/__init__.py")
  incomplete = {path.parent.name for path in folders} ^ set(topics.TOPICS)
  expected = "t5x_like/contrib/TOPIC/__init__.py and tests/contrib/TOPIC/cases.py"
  assert not incomplete, f"expected {expected} of each of {sorted(incomplete)}"


def test_tests_of_the_core_import_no_topic():
  """So that they run without it."""
  importing = set()
  for path in (REPO / "tests").rglob("*.py"):
    if path.is_relative_to(REPO / "tests" / "contrib"):
      continue
    for node in ast.walk(ast.parse(path.read_text())):
      modules = []
      if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        modules = [f"{node.module}.{alias.name}" for alias in node.names]
      if any(module.startswith(("t5x_like.contrib", "tests.contrib")) for module in modules):
        importing.add(path.relative_to(REPO).as_posix())
  assert not importing


def test_the_core_works_without_any_topic(tmp_path):
  copy_without(topics.TOPICS, tmp_path)
  process = run_in(tmp_path, "-c", PROGRAM)
  assert process.returncode == 0, process.stderr[-2000:]
  assert f"recipes resolved by {tmp_path.resolve()}" in process.stdout


@pytest.mark.more
@pytest.mark.parametrize("topic", topics.TOPICS)
def test_the_tests_of_the_core_pass_without_a_topic(topic, tmp_path):
  """All that `make test` runs but the tests of pages, which name recipes of every topic."""
  copy_without([topic], tmp_path)
  left_out = re.search(r'"-m", "(not [\w ]+)"', (REPO / "pyproject.toml").read_text())[1]
  ignored = [f"--ignore=tests/{name}" for name in TESTS_OF_PAGES]
  marks = f"not runs and {left_out}"
  process = run_in(tmp_path, "-m", "pytest", "-q", "-x", "-m", marks, *ignored)
  assert process.returncode == 0, process.stdout[-4000:]
