"""The page of plans is the one that `tools.plans` makes of the stored ones, whose policies of remat
may be dicts."""

import json
import pathlib
import re

import pytest

from tools import plans

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_made_of_the_stored_plans():
  stored = json.loads((DOCS / "plans.json").read_text())
  assert list(stored) == [name for name in plans.PLANS if name in stored]
  text = (DOCS / "plans.md").read_text()
  assert plans.page(stored, text) == text
  assert any(isinstance(one.get("remat"), dict) for one in stored.values())


def test_words_of_the_page_end_at_the_stored_plans():
  """The figures in bold are the newest of their model."""
  stored = json.loads((DOCS / "plans.json").read_text()).values()
  figures = {
    (f"{one['seconds']['step']:.2f}", f"{100 * one['mfu']:.0f}")
    for one in stored
    if one.get("seconds")
  }
  told = re.findall(r"\*\*([\d.]+)\s+s\s+\((\d+)\s+%", (DOCS / "plans.md").read_text())
  assert len(told) >= 5 and not set(told) - figures


def test_recipes_tell_the_plans_that_are_stored():
  """By the recipe's file and the topology, within a tenth; a plan that is stored anew needs its
  line there anew."""
  stored = json.loads((DOCS / "plans.json").read_text())
  told = 0
  words = r"planned on (\w+ [\dx]+)\b[^:]*: ([\d.]+) s a step, (\d+) % MFU \(docs/plans\.md\)"
  for file in sorted((DOCS.parent / "configs").glob("*/*.py")):
    recipe = f"{file.parent.name}/{file.name}"
    for topology, seconds, share in re.findall(words, file.read_text()):
      asked = {
        n
        for n, one in plans.PLANS.items()
        if recipe in one.config and one.topology == topology.replace(" ", ":")
      }
      figures = [
        (stored[n]["seconds"]["step"], 100 * stored[n]["mfu"]) for n in asked & stored.keys()
      ]
      close = [
        s
        for s, mfu in figures
        if abs(float(seconds) / s - 1) < 0.1 and abs(int(share) / mfu - 1) < 0.1
      ]
      assert close, f"{file}: {seconds} s and {share} % on {topology}; stored {figures}"
      told += 1
  assert told >= 10


def test_a_compiler_that_fails_leaves_the_stored_plan(monkeypatch, tmp_path, capsys):
  name = "deit s 16, v5e 2x4"
  page = tmp_path / "plans.md"
  figures = json.loads((DOCS / "plans.json").read_text())[name]
  page.with_suffix(".json").write_text(json.dumps({name: figures}))
  monkeypatch.setattr(plans, "_PAGE", page)
  monkeypatch.setattr(
    plans.child, "plan", lambda request, timeout: {"fits": False, "verdict": "was not done"}
  )
  assert (
    plans.main(["--only=deit"]) == plans.EXIT_DOES_NOT_FIT
    and "not stored" in capsys.readouterr().out
  )
  assert json.loads(page.with_suffix(".json").read_text()) == {name: figures}
  assert (
    plans.main(["--only=deit", "--accept"]) == plans.EXIT_DOES_NOT_FIT
    and "was not done" in page.read_text()
  )


@pytest.mark.parametrize(
  "flag, words", [("--only=(", "no regular expression"), ("--only=elmo", "matches none of")]
)
def test_names_that_match_nothing_are_one_line(flag, words, capsys):
  assert plans.main([flag]) == 2 and words in capsys.readouterr().err
