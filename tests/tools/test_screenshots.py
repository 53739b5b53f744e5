"""The terminal's picture shows the quickstart's results as they are in its log."""

import pathlib
import re
import xml.etree.ElementTree as ElementTree

from PIL import Image

from refusals import refuses
from tools import screenshots

FIGURES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "figures"
NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_the_terminal_shows_the_results_of_the_log(tmp_path):
  log = tmp_path / "log"
  log.write_text("=== 1/5 tokens\n\n=== done in 9 s\n\n  a <extra_id_0> & more\n\n")
  assert screenshots.main([f"--log={log}", f"--output={tmp_path}/figures"]) == 0
  tree = ElementTree.parse(tmp_path / "figures" / "terminal.svg")
  texts = [element.text for element in tree.iter(f"{NAMESPACE}text")]
  assert texts == ["=== done in 9 s", "  a <extra_id_0> & more"]


def test_a_log_without_results_and_long_lines_are_refused(tmp_path):
  log = tmp_path / "log"
  log.write_text("=== 1/5 tokens\n")
  with refuses("found no line that begins with '=== done'"):
    screenshots.read_results(log)
  with refuses("line 1: found 81 characters, expected at most 80"):
    screenshots.draw_terminal(["x" * 81])


def test_committed_pictures_are_small_and_shown():
  pages = [FIGURES.parents[1] / "README.md", *FIGURES.parent.rglob("*.md")]
  text = "\n".join(page.read_text() for page in pages)
  pictures = [path for path in FIGURES.iterdir() if path.suffix in (".png", ".svg")]
  assert sum(path.stat().st_size for path in pictures) < 700_000
  for path in pictures:
    assert path.stat().st_size < 150_000, path
    assert re.search(rf"!\[[^]]+\]\([^)]*figures/{re.escape(path.name)}\)", text), path
    if path.suffix == ".png":
      with Image.open(path) as image:
        assert image.format == "PNG"
