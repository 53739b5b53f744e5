"""Hostile values at any key of a recipe end in one line, or in a run that is ready to step."""

import json
import math
import os
import pathlib

import pytest

from t5x_like import recipes, train
from t5x_like.training import restoring
from t5x_like.training.resolve import resolve
from tests import topics
from tests.fuzz.harness import Sandbox, generator

pytestmark = pytest.mark.runs

SEED = int(os.environ.get("T5X_LIKE_FUZZ_SEED", 30))
CASES = int(os.environ.get("T5X_LIKE_FUZZ_CASES", 520))
SAMPLE = 25
REPO = pathlib.Path(__file__).resolve().parents[2]
_RECIPES = sorted(path.relative_to(REPO).as_posix() for path in (REPO / "configs").glob("*/*.py"))
BASES = [f"{REPO}/{path}:debug" for path in _RECIPES]
SMALL = [f"{REPO}/tests/recipes/nano{kind}.py" for kind in ("", "_decoder", "_encoder")]
_MIXTURE = "MIXTURE"
_FOLDER_KEYS = ("cache", "data_dir")  # a user may have files written anywhere
HOSTILE = [
  None, True, False, 0, -0.0, -1, 1, 2, 3, 7, 0.5, 1e-308,
  1e308, -1e308, 1e20, 2**31 - 1, 2**31, 2**53 + 1, 2**62,
  4611686018427387904, 2**63 - 1, 2**63, -(2**63), 2**70,
  10**400, math.nan, math.inf, -math.inf, "", " ", ".", "..",
  "/", "../../x", "/etc/passwd", "a.b", "a/b", "$x^{$",
  "$\\frac$", "naïve", "🙂", "\ud800", "a\nb", "a\0b", "x" * 5000,
  "auto", "None", "nan", "0", "-1", "{}", "{", "%s", "{x}",
  "os:system", "subprocess:getoutput", [], [0], [-1], [None],
  [1, "a"], [[]], [2**70], ["a\nb"], {}, {"name": None},
  {"name": "x"}, {"name": ".."}, {"a": {"b": {"c": []}}},
  {"": 1}, {"a.b": 1}, {"name": "loss", "max_examples": 0},
  [0.5] * 3, "True", "1e999", -7, 12, 64, 100_000,
  16_777_216, 16_777_217, 0.0, 1.0, -0.5, 2.5, 1e-30, 1e30,
]  # fmt: skip


def deep(levels: int):
  tree = {}
  for _ in range(levels):
    tree = {"a": tree}
  return tree


def mixture(config) -> None:
  """Replace a config's task by a mixture of two of it."""
  part = config.task.to_dict()
  config.task = {
    "name": "mixture",
    "parts": {"first": part, "second": part},
    "rates": {"first": 1, "second": 2},
  }


@pytest.fixture(scope="module")
def keys_of_recipe(tmp_path_factory):
  """Return a function to the values of a resolved recipe by flat key, and the keys of its dicts."""
  keys_by_base = {}

  def of(base: str) -> tuple[dict[str, object], list[str]]:
    if base not in keys_by_base:
      config = recipes.load(base.removesuffix(_MIXTURE))
      if base.endswith(_MIXTURE):
        mixture(config)
      keys_by_base[base] = _keys(resolve(config).to_dict())
    return keys_by_base[base]

  return of


def _keys(tree: dict, prefix: str = "") -> tuple[dict[str, object], list[str]]:
  leaves = {}
  nodes = []
  for key, value in tree.items():
    if isinstance(value, dict):
      inner = _keys(value, f"{prefix}{key}.")
      leaves = leaves | inner[0]
      nodes = [*nodes, f"{prefix}{key}", *inner[1]]
    elif key not in _FOLDER_KEYS:
      leaves[f"{prefix}{key}"] = value
  return leaves, nodes


def mutations(random, leaves: dict[str, object], nodes: list[str]) -> list[tuple[str, object]]:
  """Return one or two keys with new values.

  Most replace a value by one of any type, some replace a dict or add a key.
  """
  changes = []
  for _ in range(random.choice((1, 1, 2))):
    value = deep(random.choice((40, 3000))) if random.random() < 0.02 else random.choice(HOSTILE)
    kind = random.random()
    if kind < 0.85:
      key = random.choice(list(leaves))
      values_of_type = []
      if random.random() < 0.7:
        values_of_type = [hostile for hostile in HOSTILE if type(hostile) is type(leaves[key])]
      changes.append((key, random.choice(values_of_type) if values_of_type else value))
    elif kind < 0.92:
      changes.append((random.choice(nodes), value))
    else:
      name = random.choice([hostile for hostile in HOSTILE if isinstance(hostile, str)])
      key = f"{random.choice(nodes)}.{name}"
      changes.append((key, random.choice([{}, {"name": "loss"}, {"until": 1}, value])))
  return changes


def flags(changes) -> list[str]:
  def spell(value) -> str:
    return value if isinstance(value, str) else json.dumps(value)

  try:
    return [f"--config.{key}={spell(value)}" for key, value in changes]
  except RecursionError:
    return [f"--config.{key}={'[' * 3000}" for key, _ in changes]


_RECIPE = """
from math import inf, nan
from t5x_like import recipes
from tests.fuzz.test_config import deep, mixture
def get_config():
  config = recipes.load({base!r})
  if {mixed}:
    mixture(config)
  for key, value in {changes}:
    *path, last = key.split(".", {depth})
    node = config
    for part in path:
      node = node[part]
    with node.unlocked(), node.ignore_type():
      node[last] = value
  return config
"""


def _repr(value) -> str:
  try:
    return repr(value)
  except RecursionError:
    return "deep(3000)"


def run(
  sandbox: Sandbox, base: str, changes, by_file: bool, case: str, seconds: float | None = None
):
  """Train up to the initialisation of the state; return how that ended."""
  changes_text = ", ".join(f"{key[:60]}={_repr(value)[:60]}" for key, value in changes)
  case_text = (
    f"{case}, {base.removeprefix(f'{REPO}/')}{' (file)' if by_file else ''}: {changes_text}"
  )

  def call(workdir):
    recipe = base.removesuffix(_MIXTURE)
    config_flags = flags(changes)
    if by_file or base.endswith(_MIXTURE):
      values = "[" + ", ".join(f"({key!r}, {_repr(value)})" for key, value in changes) + "]"
      depth = max(key.count(".") for key, _ in changes) if changes else 0
      text = _RECIPE.format(
        base=recipe, mixed=base.endswith(_MIXTURE), changes=values, depth=depth or -1
      )
      (workdir / "recipe.py").write_text(text)
      recipe = str(workdir / "recipe.py")
      config_flags = []
    try:
      return train.main([f"--config={recipe}", f"--workdir={workdir / 'run'}", *config_flags])
    except Ready:
      return 0

  return sandbox.run(case_text, call, seconds)


class Ready(Exception):
  """Raised where a run would initialise its state, after all checks."""


@pytest.fixture
def stop_when_ready(monkeypatch):
  def raise_ready(*_, **__):
    raise Ready

  monkeypatch.setattr(restoring, "restore", raise_ready)


@pytest.fixture
def sandbox(tmp_path, stop_when_ready, monkeypatch):
  sandbox_of_recipes = Sandbox(tmp_path)
  (tmp_path / "tmp").mkdir()
  monkeypatch.chdir(tmp_path / "tmp")  # recipes keep prepared examples in data/
  return sandbox_of_recipes


def fuzz(sandbox: Sandbox, keys_of_recipe, bases: list[str], cases: range) -> None:
  for number in cases:
    random = generator(SEED, number)
    base = bases[number % len(bases)]
    changes = mutations(random, *keys_of_recipe(base))
    run(sandbox, base, changes, random.random() < 0.35, f"seed {SEED}, case {number}")


def test_hostile_values_in_small_recipes_end_in_one_line_or_a_run(sandbox, keys_of_recipe):
  fuzz(sandbox, keys_of_recipe, SMALL, range(SAMPLE))
  sandbox.check(min_cases=SAMPLE)
  assert {outcome.end for outcome in sandbox.outcomes} == {"success", "refusal"}


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(4))
def test_hostile_values_in_every_recipe_end_in_one_line_or_a_run(part, sandbox, keys_of_recipe):
  bases = [*BASES, *(f"{base}{_MIXTURE}" for base in SMALL[:1]), *SMALL]
  size = CASES // 4
  # The data of these recipes take longer to prepare than a case may.
  slow_recipes = [
    "configs/deit/base.py:debug",
    "configs/deit/deit3.py:debug",
    "configs/finetune/encoder.py:debug",
    *topics.cases("SLOW_RECIPES"),
  ]
  for recipe in slow_recipes:
    outcome = run(sandbox, f"{REPO}/{recipe}", [], False, "prepares data", seconds=300)
    assert outcome.end == "success", sandbox.outcomes
  fuzz(sandbox, keys_of_recipe, bases, range(part * size, (part + 1) * size))
  sandbox.check(min_cases=size + len(slow_recipes))
