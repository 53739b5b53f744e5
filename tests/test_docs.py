"""Check the documentation: links, anchors and commands, the navigation, and a strict build."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from t5x_like import recipes
from t5x_like.errors import UserError
from tools import write_reference

REPO = pathlib.Path(__file__).resolve().parents[1]
DOCS = REPO / "docs"
GENERATED = {DOCS / "reference" / name for name in write_reference.PAGES}
WRITTEN = sorted(set(DOCS.rglob("*.md")) - GENERATED)
PAGES = [REPO / "README.md", REPO / "CONTRIBUTING.md", *WRITTEN]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
TRAIN = re.compile(r"python -m t5x_like\.train (.*--config=configs/.*)")
LINK = re.compile(r"\]\(\s*([^)\s]+)\s*\)")


def anchors(path: pathlib.Path) -> set[str]:
  """Return the anchors of a page's headings, as Python-Markdown and GitHub make them."""
  names: set[str] = set()
  for title in re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE):
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)  # of a link only its text
    words = re.sub(r"[^\w\s-]", "", text).strip().lower()
    names.add(re.sub(r"[-\s]+", "-", words))
  return names


def links(path: pathlib.Path) -> list[tuple[str, str]]:
  """Return (file, anchor) of each link to this project; the file is empty within the page."""
  targets = LINK.findall(FENCE.sub("", path.read_text()))
  return [link.partition("#")[::2] for link in targets if not re.match(r"[a-z]+:", link)]


def broken_links(page: pathlib.Path) -> list[str]:
  """Return a message for each link to a missing file or heading."""
  messages = []
  for file, anchor in links(page):
    target = (page.parent / file).resolve() if file else page
    if target in GENERATED:
      continue
    if not target.exists():
      messages.append(f"{page.relative_to(page.parents[1])}: {file} does not exist")
    elif anchor and target.suffix == ".md" and anchor not in anchors(target):
      messages.append(f"{page.relative_to(page.parents[1])}: {file}#{anchor} is not a heading")
  return messages


def test_every_link_and_anchor_exists():
  assert not [line for page in PAGES for line in broken_links(page)]
  assert sum(len(links(page)) for page in PAGES) > 100


def test_a_broken_link_and_a_broken_anchor_are_found(tmp_path):
  page = tmp_path / "page.md"
  page.write_text(
    "# A title\n\n[good](#a-title) [gone](gone.md)\n[wrong](page.md#b-title) "
    "[out](https://x.org/y)\n"
  )
  assert len(broken_links(page)) == 2


def test_every_page_is_in_the_navigation_once():
  linked_pages = re.findall(r": ([\w/-]+\.md)$", (REPO / "mkdocs.yml").read_text(), re.MULTILINE)
  assert sorted(linked_pages) == sorted(
    str(path.relative_to(DOCS)) for path in [*WRITTEN, *GENERATED]
  )


def test_pages_link_to_nothing_outside_docs():
  """The site holds docs/ alone."""
  outside = [
    f"{page.name}: {file}"
    for page in WRITTEN
    for file, _ in links(page)
    if file and not (page.parent / file).resolve().is_relative_to(DOCS)
  ]
  assert not outside


def train_commands(path: pathlib.Path) -> list[list[str]]:
  """Return the arguments of a page's `train` commands, without comments and placeholders."""
  commands = []
  for fence in FENCE.findall(path.read_text()):
    # Join lines that end in a backslash, and indented lines that begin with a quoted argument.
    joined = re.sub(r"\\\n\s*|\n\s{4,}(?=[\"'])", " ", fence)
    commands += [shlex.split(command, comments=True) for command in TRAIN.findall(joined)]
  return [
    command for command in commands if not re.search(r"=(POSITION|SEED)\b", " ".join(command))
  ]


def described_recipes(path: pathlib.Path) -> set[str]:
  """Return the recipes that a page tells readers to write; see `tests/test_howtos.py`."""
  return set(re.findall(r"^```python (configs/\S+)$", path.read_text(), re.MULTILINE))


def test_every_train_command_names_a_recipe_and_its_keys():
  checked = 0
  for page in PAGES:
    for command in train_commands(page):
      config = next(argument for argument in command if argument.startswith("--config="))
      recipe = config.removeprefix("--config=")
      if recipe.partition(":")[0] in described_recipes(page):
        continue
      # The workdirs of `init` and `teacher` do not exist here.
      overrides = [
        argument.removeprefix("--config.")
        for argument in command
        if argument.startswith("--config.")
        and not argument.startswith(("--config.init.", "--config.teacher."))
      ]
      try:
        recipes.load(recipe, overrides)
      except UserError as error:
        raise AssertionError(f"{page.name}: {' '.join(command)}") from error
      checked += 1
  assert checked > 80


@pytest.mark.site
def test_the_site_builds_strictly(tmp_path):
  pytest.importorskip("mkdocs")
  assert write_reference.main([]) == 0
  command = [
    sys.executable,
    "-m",
    "mkdocs",
    "build",
    "--strict",
    "--site-dir",
    str(tmp_path / "site"),
  ]
  build = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=600)
  assert build.returncode == 0, build.stderr[-3000:]
  assert "noise_density" in (tmp_path / "site/reference/config-keys/index.html").read_text()
  assert "class" in (tmp_path / "site/reference/api/training/index.html").read_text()
