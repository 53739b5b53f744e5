"""Hostile values at every key of many recipes, by flag and by recipe file: one line, or a run that
is ready to step."""

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
_PLACES = ("cache", "data_dir")  # where the user says that files are to be written
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
  value = {}
  for _ in range(levels):
    value = {"a": value}
  return value


def mixture(config) -> None:
  """Makes a config's task a mixture of two of itself."""
  one = config.task.to_dict()
  config.task = {
    "name": "mixture",
    "parts": {"first": one, "second": one},
    "rates": {"first": 1, "second": 2},
  }


@pytest.fixture(scope="module")
def known(tmp_path_factory):
  """What gives the values of a resolved recipe by flat key, and the keys of its dicts."""
  found = {}

  def of(base: str) -> tuple[dict[str, object], list[str]]:
    if base not in found:
      config = recipes.load(base.removesuffix(_MIXTURE))
      if base.endswith(_MIXTURE):
        mixture(config)
      found[base] = _keys(resolve(config).to_dict())
    return found[base]

  return of


def _keys(tree: dict, prefix: str = "") -> tuple[dict[str, object], list[str]]:
  leaves = {}
  nodes = []
  for key, value in tree.items():
    if isinstance(value, dict):
      inner = _keys(value, f"{prefix}{key}.")
      leaves = leaves | inner[0]
      nodes = [*nodes, f"{prefix}{key}", *inner[1]]
    elif key not in _PLACES:
      leaves[f"{prefix}{key}"] = value
  return leaves, nodes


def mutations(random, leaves: dict[str, object], nodes: list[str]) -> list[tuple[str, object]]:
  """One or two keys with their new values: mostly values, of the key's own type or another,
  sometimes whole dicts, and names of new keys."""
  made = []
  for _ in range(random.choice((1, 1, 2))):
    value = deep(random.choice((40, 3000))) if random.random() < 0.02 else random.choice(HOSTILE)
    kind = random.random()
    if kind < 0.85:
      key = random.choice(list(leaves))
      alike = (
        [one for one in HOSTILE if type(one) is type(leaves[key])] if random.random() < 0.7 else []
      )
      made.append((key, random.choice(alike) if alike else value))
    elif kind < 0.92:
      made.append((random.choice(nodes), value))
    else:
      name = random.choice([one for one in HOSTILE if isinstance(one, str)])
      made.append(
        (
          f"{random.choice(nodes)}.{name}",
          random.choice([{}, {"name": "loss"}, {"until": 1}, value]),
        )
      )
  return made


def flags(changes) -> list[str]:
  def word(value) -> str:
    return value if isinstance(value, str) else json.dumps(value)

  try:
    return [f"--config.{key}={word(value)}" for key, value in changes]
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


def _written(value) -> str:
  try:
    return repr(value)
  except RecursionError:
    return "deep(3000)"


def run(
  sandbox: Sandbox, base: str, changes, by_file: bool, case: str, seconds: float | None = None
):
  """Trains up to the first thing that is compiled; returns how that ended."""
  said = ", ".join(f"{key[:60]}={_written(value)[:60]}" for key, value in changes)
  told = f"{case}, {base.removeprefix(f'{REPO}/')}{' (file)' if by_file else ''}: {said}"

  def call(workdir):
    recipe = base.removesuffix(_MIXTURE)
    more = flags(changes)
    if by_file or base.endswith(_MIXTURE):
      values = "[" + ", ".join(f"({key!r}, {_written(value)})" for key, value in changes) + "]"
      depth = max(key.count(".") for key, _ in changes) if changes else 0
      text = _RECIPE.format(
        base=recipe, mixed=base.endswith(_MIXTURE), changes=values, depth=depth or -1
      )
      (workdir / "recipe.py").write_text(text)
      recipe = str(workdir / "recipe.py")
      more = []
    try:
      return train.main([f"--config={recipe}", f"--workdir={workdir / 'run'}", *more])
    except Ready:
      return 0

  return sandbox.run(told, call, seconds)


class Ready(Exception):
  """Raised where a run would initialise its state, after all checks."""


@pytest.fixture
def stopping(monkeypatch):
  def ready(*_, **__):
    raise Ready

  monkeypatch.setattr(restoring, "restore", ready)


@pytest.fixture
def sandbox(tmp_path, stopping, monkeypatch):
  made = Sandbox(tmp_path)
  (tmp_path / "tmp").mkdir()
  monkeypatch.chdir(tmp_path / "tmp")  # recipes keep prepared examples in data/
  return made


def fuzz(sandbox: Sandbox, known, bases: list[str], cases: range) -> None:
  for number in cases:
    random = generator(SEED, number)
    base = bases[number % len(bases)]
    changes = mutations(random, *known(base))
    run(sandbox, base, changes, random.random() < 0.35, f"seed {SEED}, case {number}")


def test_a_sample(sandbox, known):
  fuzz(sandbox, known, SMALL, range(SAMPLE))
  sandbox.check(least=SAMPLE)
  assert {outcome.end for outcome in sandbox.outcomes} == {"success", "refusal"}


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(4))
def test_every_recipe(part, sandbox, known):
  bases = [*BASES, *(f"{base}{_MIXTURE}" for base in SMALL[:1]), *SMALL]
  size = CASES // 4
  # whose data take longer to prepare than a case may
  slow_recipes = [
    f"configs/{path}.py:debug" for path in ("deit/base", "deit/deit3", "finetune/encoder")
  ]
  slow_recipes += topics.cases("SLOW_RECIPES")
  for recipe in slow_recipes:
    base = f"{REPO}/{recipe}"
    assert run(sandbox, base, [], False, "prepares data", seconds=300).end == "success", (
      sandbox.outcomes
    )
  fuzz(sandbox, known, bases, range(part * size, (part + 1) * size))
  sandbox.check(least=size + len(slow_recipes))
