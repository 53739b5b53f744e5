"""The documentation: every link and anchor leads somewhere, every page is on the site, and the site
builds."""

import pathlib
import re
import subprocess
import sys

import pytest

from tools import write_reference

REPO = pathlib.Path(__file__).resolve().parents[1]
DOCS = REPO / "docs"
GENERATED = {DOCS / "reference" / name for name in write_reference.PAGES}
WRITTEN = sorted(set(DOCS.rglob("*.md")) - GENERATED)
PAGES = [REPO / "README.md", REPO / "CONTRIBUTING.md", *WRITTEN]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*([^)\s]+)\s*\)")


def anchors(path: pathlib.Path) -> set[str]:
  """Return the anchors of a page's headings, as Python-Markdown and GitHub make them of plain
  titles."""
  found: set[str] = set()
  for title in re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE):
    plain = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)).strip().lower()
    found.add(re.sub(r"[-\s]+", "-", plain))
  return found


def links(path: pathlib.Path) -> list[tuple[str, str]]:
  """Return (file, anchor) of each link to this project; the file of a link within the page is
  empty."""
  targets = LINK.findall(FENCE.sub("", path.read_text()))
  return [link.partition("#")[::2] for link in targets if not re.match(r"[a-z]+:", link)]


def broken(page: pathlib.Path) -> list[str]:
  wrong = []
  for file, anchor in links(page):
    target = (page.parent / file).resolve() if file else page
    if target in GENERATED:
      continue
    if not target.exists():
      wrong.append(f"{page.relative_to(page.parents[1])}: {file} does not exist")
    elif anchor and target.suffix == ".md" and anchor not in anchors(target):
      wrong.append(f"{page.relative_to(page.parents[1])}: {file}#{anchor} is no heading")
  return wrong


def test_every_link_leads_somewhere():
  assert not [line for page in PAGES for line in broken(page)]
  assert sum(len(links(page)) for page in PAGES) > 100


def test_a_broken_link_and_a_broken_anchor_are_found(tmp_path):
  page = tmp_path / "page.md"
  page.write_text(
    "# A title\n\n[good](#a-title) [gone](gone.md)\n[wrong](page.md#b-title) "
    "[out](https://x.org/y)\n"
  )
  assert len(broken(page)) == 2


def test_every_page_is_in_the_navigation_once():
  named = re.findall(r": ([\w/-]+\.md)$", (REPO / "mkdocs.yml").read_text(), re.MULTILINE)
  assert sorted(named) == sorted(str(path.relative_to(DOCS)) for path in [*WRITTEN, *GENERATED])


def test_pages_link_to_nothing_outside_docs():
  """The site holds docs/ alone."""
  outside = [
    f"{page.name}: {file}"
    for page in WRITTEN
    for file, _ in links(page)
    if file and not (page.parent / file).resolve().is_relative_to(DOCS)
  ]
  assert not outside


@pytest.mark.site
def test_the_site_builds_strictly(tmp_path):
  pytest.importorskip("mkdocs")
  command = [
    sys.executable,
    "-m",
    "mkdocs",
    "build",
    "--strict",
    "--site-dir",
    str(tmp_path / "site"),
  ]
  done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=600)
  assert done.returncode == 0, done.stderr[-3000:]
  assert "noise_density" in (tmp_path / "site/reference/config-keys/index.html").read_text()
  assert "class" in (tmp_path / "site/reference/api/training/index.html").read_text()
