"""The cases that the topics of `t5x_like/contrib` add to tests of the core.

A topic's are in `tests/contrib/<topic>/cases.py`, as dictionaries whose names the core's tests give
to `cases`; so a topic can be deleted with its tests, and its parts are tested as all others are.
"""

import importlib
import pathlib
import types

FOLDER = pathlib.Path(__file__).parent / "contrib"
TOPICS = sorted(path.parent.name for path in FOLDER.glob("*/cases.py"))


def module(topic: str) -> types.ModuleType:
  """Return the `cases.py` of a topic."""
  return importlib.import_module(f"tests.contrib.{topic}.cases")


def cases(name: str) -> dict:
  """Return the entries that all topics add to the cases of one name."""
  entries = {}
  for topic in TOPICS:
    entries |= getattr(module(topic), name, {})
  return entries
