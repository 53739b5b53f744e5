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
  stated = 0
  pattern = r"planned on (\w+ [\dx]+)\b[^:]*: ([\d.]+) s a step, (\d+) % MFU \(docs/plans\.json\)"
  for file in sorted((DOCS.parent / "configs").glob("*/*.py")):
    recipe = f"{file.parent.name}/{file.name}"
    for topology, seconds, share in re.findall(pattern, " ".join(file.read_text().split())):
      plans_of_recipe = []
      for name, plan in plans.PLANS.items():
        if recipe in plan.config and plan.topology == topology.replace(" ", ":"):
          plans_of_recipe.append(name)
      is_close = False
      for name in plans_of_recipe:
        if name in stored:
          step_seconds = stored[name]["seconds"]["step"]
          mfu_percent = 100 * stored[name]["mfu"]
          same_time = abs(float(seconds) / step_seconds - 1) < 0.1
          is_close |= same_time and abs(int(share) / mfu_percent - 1) < 0.1
      assert is_close, f"{file}: {seconds} s and {share} % on {topology}; stored {plans_of_recipe}"
      stated += 1
  assert stated >= 10


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
