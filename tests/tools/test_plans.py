"""The stored plans agree with their page and with the recipes, and survive failed compilations."""

import json
import pathlib
import re

import pytest

from tools import plans

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def test_the_page_shows_every_stored_plan():
  stored = json.loads(plans.STORED_PLANS.read_text())
  assert list(stored) == [name for name in plans.PLANS if name in stored]
  page = plans.page(stored)
  for name, plan in stored.items():
    assert f"| {name} |" in page
    assert f"{plan['seconds']['step']:.2f}, {100 * plan['mfu']:.0f} %" in page


# In a recipe's docstring: "planned on v5e 4x4: 1.2 s a step, 45 % MFU (docs/plans.json)".
PLANNED = re.compile(
  r"planned on (\w+ [\dx]+)\b[^:]*: ([\d.]+) s a step, (\d+) % MFU \(docs/plans\.json\)"
)


def find_plans(recipe: str, topology: str) -> list[str]:
  """Return the names of the plans of a recipe (`llama/8b.py`) on a topology (`v5e:4x4`)."""
  return [
    name
    for name, plan in plans.PLANS.items()
    if recipe in plan.config and plan.topology == topology
  ]


def is_close(plan: dict, seconds: float, mfu_percent: float) -> bool:
  """Return whether step time and MFU differ by less than a tenth from those of a stored plan."""
  same_time = abs(seconds / plan["seconds"]["step"] - 1) < 0.1
  same_mfu = abs(mfu_percent / (100 * plan["mfu"]) - 1) < 0.1
  return same_time and same_mfu


def test_figures_in_recipes_are_close_to_a_stored_plan():
  stored = json.loads((DOCS / "plans.json").read_text())
  num_checked = 0
  for file in sorted((DOCS.parent / "configs").glob("*/*.py")):
    text = " ".join(file.read_text().split())
    for topology, seconds, mfu_percent in PLANNED.findall(text):
      names = find_plans(f"{file.parent.name}/{file.name}", topology.replace(" ", ":"))
      stored_plans = [stored[name] for name in names if name in stored]
      assert any(is_close(plan, float(seconds), int(mfu_percent)) for plan in stored_plans), (
        f"{file}: {seconds} s and {mfu_percent} % on {topology}; stored {names}"
      )
      num_checked += 1
  assert num_checked >= 10


def test_a_failed_compilation_leaves_the_stored_plan(monkeypatch, tmp_path, capsys):
  name = "deit s 16, v5e 2x4"
  stored_plan = json.loads(plans.STORED_PLANS.read_text())[name]
  copy = tmp_path / "plans.json"
  copy.write_text(json.dumps({name: stored_plan}))
  failure = {"fits": False, "verdict": "was not done"}
  monkeypatch.setattr(plans, "STORED_PLANS", copy)
  monkeypatch.setattr(plans.child, "plan", lambda request, timeout: failure)
  assert plans.main(["--only=deit"]) == plans.EXIT_DOES_NOT_FIT
  assert "not stored" in capsys.readouterr().out
  assert json.loads(copy.read_text()) == {name: stored_plan}
  # --accept stores the failure instead
  assert plans.main(["--only=deit", "--accept"]) == plans.EXIT_DOES_NOT_FIT
  assert "was not done" in plans.page(json.loads(copy.read_text()))


@pytest.mark.parametrize(
  "flag, message", [("--only=(", "not a regular expression"), ("--only=elmo", "matches none of")]
)
def test_names_that_match_nothing_are_refused_in_one_line(flag, message, capsys):
  assert plans.main([flag]) == 2
  assert message in capsys.readouterr().err
