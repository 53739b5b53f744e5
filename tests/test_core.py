"""The size of what a T5 pretraining run can import, which may only fall.

Every import counts, at the top of a file or inside a function; what is found by its name in a registry does not, unless
it is listed in `START`. Lower a limit whenever a change makes room below it.
"""

import ast
import pathlib

import pytest

REPO = pathlib.Path(__file__).resolve().parents[1]
START = (
  "train",
  "models.t5",
  "data.tasks.span_corruption",
  "objectives.encoder_decoder",
  "evals.loss",
  "evals.span_infilling",
)
LIMITS = {"core modules": 110, "core lines": 13_642, "circles": 0, "package lines": 71_508}
AIMS = {"core modules": 110, "core lines": 14_000, "circles": 0, "package lines": 43_000}


def modules() -> dict[str, pathlib.Path]:
  """Return the files of the package by module name."""
  files = sorted((REPO / "t5x_like").rglob("*.py"))
  return {".".join(file.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def imports(name: str, file: pathlib.Path, known: set[str]) -> set[str]:
  """Return the modules of the package that a file imports, packages on the way aside."""
  package, found = name if file.name == "__init__.py" else name.rpartition(".")[0], set()
  for node in ast.walk(ast.parse(file.read_text())):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      up = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
      base = ".".join([*up, *([node.module] if node.module else [])])
      found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
  return (found & known) - {name}


def reached(graph: dict[str, set[str]]) -> set[str]:
  """Return the modules that a run can import, with the packages that they lie in."""
  seen, todo = set(), [f"t5x_like.{name}" for name in START]
  while todo:
    if (name := todo.pop()) not in seen:
      seen.add(name)
      parts = name.split(".")
      todo += [*graph[name], *(".".join(parts[:i]) for i in range(1, len(parts)))]
  return seen


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
  """Return the groups of several modules that reach one another."""

  def behind(start: str) -> set[str]:
    seen, todo = set(), [start]
    while todo:
      new = graph[todo.pop()] - seen
      seen |= new
      todo += new
    return seen

  after = {name: behind(name) for name in graph}
  groups = {frozenset(other for other in after[name] if name in after[other]) for name in graph if name in after[name]}
  return [set(group) for group in groups]


@pytest.fixture(scope="module")
def figures():
  files = modules()
  graph = {name: imports(name, file, set(files)) for name, file in files.items()}
  lines = {name: len(file.read_text().splitlines()) for name, file in files.items()}
  core = reached(graph)
  return {
    "core modules": len(core),
    "core lines": sum(lines[name] for name in core),
    "circles": len(circles(graph)),
    "package lines": sum(lines.values()),
  }


@pytest.mark.parametrize("what", LIMITS)
def test_the_core_does_not_grow(figures, what):
  assert figures[what] <= LIMITS[what], f"{what}: {figures[what]}, at most {LIMITS[what]}; the aim is {AIMS[what]}"


def test_circles_are_found():
  graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
  assert circles(graph) == [{"b", "c"}]
