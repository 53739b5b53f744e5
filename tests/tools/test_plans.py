"""The page shows the stored plans, which recipes state and failures do not change."""

import json
import pathlib
import re

import pytest

from tools import plans

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def test_the_page_shows_every_stored_plan():
  stored = json.loads(plans.STORED.read_text())
  assert list(stored) == [name for name in plans.PLANS if name in stored]
  page = plans.page(stored)
  for name, plan in stored.items():
    assert f"| {name} |" in page
    assert f"{plan['seconds']['step']:.2f}, {100 * plan['mfu']:.0f} %" in page


def test_recipes_state_the_stored_plans():
  """A recipe's figures differ by less than a tenth from a stored plan of its topology."""
  stored = json.loads((DOCS / "plans.json").read_text())
  told = 0
  pattern = r"planned on (\w+ [\dx]+)\b[^:]*: ([\d.]+) s a step, (\d+) % MFU \(docs/plans\.json\)"
  for file in sorted((DOCS.parent / "configs").glob("*/*.py")):
    recipe = f"{file.parent.name}/{file.name}"
    for topology, seconds, share in re.findall(pattern, " ".join(file.read_text().split())):
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
  figures = json.loads(plans.STORED.read_text())[name]
  copy = tmp_path / "plans.json"
  copy.write_text(json.dumps({name: figures}))
  monkeypatch.setattr(plans, "STORED", copy)
  monkeypatch.setattr(
    plans.child, "plan", lambda request, timeout: {"fits": False, "verdict": "was not done"}
  )
  assert plans.main(["--only=deit"]) == plans.EXIT_DOES_NOT_FIT
  assert "not stored" in capsys.readouterr().out
  assert json.loads(copy.read_text()) == {name: figures}
  assert plans.main(["--only=deit", "--accept"]) == plans.EXIT_DOES_NOT_FIT
  assert "was not done" in plans.page(json.loads(copy.read_text()))


@pytest.mark.parametrize(
  "flag, message", [("--only=(", "no regular expression"), ("--only=elmo", "matches none of")]
)
def test_names_that_match_nothing_are_refused_in_one_line(flag, message, capsys):
  assert plans.main([flag]) == 2
  assert message in capsys.readouterr().err
