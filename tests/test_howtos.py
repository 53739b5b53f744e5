"""The files and commands that the how-tos show work as they are written."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

REPO = pathlib.Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {
  path.stem: BLOCK.findall(path.read_text()) for path in sorted((REPO / "docs").rglob("*.md"))
}
FOLLOWED = [
  name for name, blocks in PAGES.items() if any(language == "console" for language, _, _ in blocks)
]
EXTENSIONS = [name for name in FOLLOWED if name.startswith("add-")]


def files(name):
  """Return the files that a page shows: path -> content."""
  return {path: text for language, path, text in PAGES[name] if language == "python" and path}


PATH = re.compile(r"`((?:t5x_like|configs|tools|launch|tests|docs)/[\w/.-]+\.\w+)`")


def test_every_file_that_the_docs_name_exists():
  described_paths = {path for name in PAGES for path in files(name)}
  missing = []
  for page in [REPO / "README.md", *(REPO / "docs").rglob("*.md")]:
    text = page.read_text()
    missing += [
      f"{page.name}: {path}"
      for path in PATH.findall(text)
      if not (REPO / path).exists() and path not in described_paths
    ]
  assert not missing, missing


def test_there_is_a_page_for_each_thing_that_can_be_added():
  topics = {"recipe", "model", "task", "objective", "evaluator", "optimizer", "source", "guard"}
  topics.add("position-or-a-core")
  assert topics <= {name.removeprefix("add-a-").removeprefix("add-an-") for name in EXTENSIONS}


@pytest.mark.parametrize("name", EXTENSIONS)
def test_an_addition_touches_one_folder(name):
  """A family's Hugging Face names are a second addition, in `interop`."""
  for path in files(name):
    assert not (REPO / path).exists(), f"{path} exists already, so the page adds nothing"
  folders = {
    pathlib.Path(path).parts[1]
    for path in files(name)
    if path.startswith(("t5x_like/", "configs/"))
  }
  assert len(folders - {"interop"}) == 1, folders


@pytest.mark.howto
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_page_followed_to_the_letter(name, tmp_path):
  for folder in ("t5x_like", "configs", "tools", "tests"):
    shutil.copytree(REPO / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
  shutil.copy(REPO / "pyproject.toml", tmp_path)
  path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
  for language, target, text in PAGES[name]:
    if language == "python" and target:
      (tmp_path / target).parent.mkdir(parents=True, exist_ok=True)
      (tmp_path / target).write_text(text)
    elif language == "console":
      commands = text.replace("\\\n", " ").splitlines()
      for command in (line.removeprefix("$ ") for line in commands if line.startswith("$ ")):
        done = subprocess.run(
          ["bash", "-c", command],
          cwd=tmp_path,
          env=os.environ | {"PATH": path},
          capture_output=True,
          text=True,
          timeout=600,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
