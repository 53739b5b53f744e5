"""A hostile value at any key of a recipe ends in a one-line error or in a run ready to train."""

import json
import math
import os
import pathlib

import pytest

from t5x_like import recipes, train
from t5x_like.training import restoring
from t5x_like.training.resolve import resolve
from tests import topics
from tests.fuzz.harness import Sandbox, fuzz_seed, generator

pytestmark = pytest.mark.runs

SEED = fuzz_seed(30)
NUM_CASES = int(os.environ.get("T5X_LIKE_FUZZ_CASES", 520))
NUM_SAMPLE_CASES = 25
REPO = pathlib.Path(__file__).resolve().parents[2]
_RECIPES = sorted(path.relative_to(REPO).as_posix() for path in (REPO / "configs").glob("*/*.py"))
BASES = [f"{REPO}/{path}:debug" for path in _RECIPES]
SMALL = [f"{REPO}/tests/recipes/nano{kind}.py" for kind in ("", "_decoder", "_encoder")]
_MIXTURE = "MIXTURE"  # a suffix of recipes: train on a mixture of the recipe's task with itself
_FOLDER_KEYS = ("cache", "data_dir")  # not changed: a user may choose any folder for these
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


def nest_dicts(levels: int):
  """Return a dict inside `levels` dicts."""
  tree = {}
  for _ in range(levels):
    tree = {"a": tree}
  return tree


def use_mixture(config) -> None:
  """Replace a config's task by a mixture of the task with itself."""
  part = config.task.to_dict()
  config.task = {
    "name": "mixture",
    "parts": {"first": part, "second": part},
    "rates": {"first": 1, "second": 2},
  }


@pytest.fixture(scope="module")
def keys_of_recipe(tmp_path_factory):
  """Return a function from a recipe to its values by flat key, and the keys of its dicts."""
  keys_by_base = {}

  def resolve_keys(base: str) -> tuple[dict[str, object], list[str]]:
    if base not in keys_by_base:
      config = recipes.load(base.removesuffix(_MIXTURE))
      if base.endswith(_MIXTURE):
        use_mixture(config)
      keys_by_base[base] = _flatten(resolve(config).to_dict())
    return keys_by_base[base]

  return resolve_keys


def _flatten(tree: dict, prefix: str = "") -> tuple[dict[str, object], list[str]]:
  """Return the leaves of a config by flat key, and the flat keys of its dicts."""
  leaves = {}
  nodes = []
  for key, value in tree.items():
    if isinstance(value, dict):
      inner = _flatten(value, f"{prefix}{key}.")
      leaves = leaves | inner[0]
      nodes = [*nodes, f"{prefix}{key}", *inner[1]]
    elif key not in _FOLDER_KEYS:
      leaves[f"{prefix}{key}"] = value
  return leaves, nodes


def draw_changes(random, leaves: dict[str, object], nodes: list[str]) -> list[tuple[str, object]]:
  """Return one or two keys with new values.

  Most changes replace a leaf; some replace a dict or add a key.
  """
  changes = []
  for _ in range(random.choice((1, 1, 2))):
    value = (
      nest_dicts(random.choice((40, 3000))) if random.random() < 0.02 else random.choice(HOSTILE)
    )
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


def format_flags(changes) -> list[str]:
  """Return the command-line flags of some changes."""

  def spell(value) -> str:
    return value if isinstance(value, str) else json.dumps(value)

  try:
    return [f"--config.{key}={spell(value)}" for key, value in changes]
  except RecursionError:
    return [f"--config.{key}={'[' * 3000}" for key, _ in changes]


_RECIPE = """
from math import inf, nan
from t5x_like import recipes
from tests.fuzz.test_config import nest_dicts, use_mixture
def get_config():
  config = recipes.load({base!r})
  if {mixed}:
    use_mixture(config)
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
    return "nest_dicts(3000)"


def train_until_ready(
  sandbox: Sandbox, base: str, changes, by_file: bool, case: str, seconds: float | None = None
):
  """Call the train command, which `stop_when_ready` ends before the first step.

  Args:
    changes: keys and their new values.
    by_file: whether a recipe file, rather than flags, sets the values.
  """
  changes_text = ", ".join(f"{key[:60]}={_repr(value)[:60]}" for key, value in changes)
  case_text = (
    f"{case}, {base.removeprefix(f'{REPO}/')}{' (file)' if by_file else ''}: {changes_text}"
  )

  def call(workdir):
    recipe = base.removesuffix(_MIXTURE)
    config_flags = format_flags(changes)
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
  new_sandbox = Sandbox(tmp_path)
  (tmp_path / "tmp").mkdir()
  monkeypatch.chdir(tmp_path / "tmp")  # recipes write prepared examples into data/
  return new_sandbox


def run_cases(sandbox: Sandbox, keys_of_recipe, bases: list[str], cases: range) -> None:
  for number in cases:
    random = generator(SEED, number)
    base = bases[number % len(bases)]
    changes = draw_changes(random, *keys_of_recipe(base))
    train_until_ready(sandbox, base, changes, random.random() < 0.35, f"seed {SEED}, case {number}")


def test_hostile_values_in_small_recipes_end_in_one_line_or_a_run(sandbox, keys_of_recipe):
  run_cases(sandbox, keys_of_recipe, SMALL, range(NUM_SAMPLE_CASES))
  sandbox.check(min_cases=NUM_SAMPLE_CASES)
  assert {outcome.end for outcome in sandbox.outcomes} == {"success", "refusal"}


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(4))
def test_hostile_values_in_every_recipe_end_in_one_line_or_a_run(part, sandbox, keys_of_recipe):
  bases = [*BASES, *(f"{base}{_MIXTURE}" for base in SMALL[:1]), *SMALL]
  size = NUM_CASES // 4
  # Preparing the data of these recipes takes longer than the time limit of a case.
  slow_recipes = [
    "configs/deit/base.py:debug",
    "configs/deit/deit3.py:debug",
    "configs/finetune/encoder.py:debug",
    *topics.cases("SLOW_RECIPES"),
  ]
  for recipe in slow_recipes:
    outcome = train_until_ready(
      sandbox, f"{REPO}/{recipe}", [], False, "prepares data", seconds=300
    )
    assert outcome.end == "success", sandbox.outcomes
  run_cases(sandbox, keys_of_recipe, bases, range(part * size, (part + 1) * size))
  sandbox.check(min_cases=size + len(slow_recipes))
