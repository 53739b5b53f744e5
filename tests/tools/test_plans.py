"""The page of plans is the one that `tools.plans` makes of the stored ones, whose policies of remat may be dicts."""

import json
import pathlib

from tools import plans

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_made_of_the_stored_plans():
  stored = json.loads((DOCS / "plans.json").read_text())
  assert list(stored) == [name for name in plans.PLANS if name in stored]
  assert (DOCS / "plans.md").read_text() == plans.page(stored)
  assert any(isinstance(one.get("remat"), dict) for one in stored.values())
