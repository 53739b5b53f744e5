"""Rooms whose docstrings list their modules from the bottom up import in that order."""

import ast
import pathlib

import pytest

from t5x_like import architectures, decoding, files, nn


@pytest.mark.parametrize(
  "room", [nn, architectures, decoding, files], ids=lambda room: room.__name__
)
def test_every_module_imports_only_from_those_before_it(room):
  root = pathlib.Path(room.__file__).parent
  lines = [line for line in room.__doc__.splitlines() if line.startswith("  ")]
  order = [word.strip("/") for line in lines for word in line.strip().split("  ")[0].split()]
  modules = {path.relative_to(root).parts[0].removesuffix(".py") for path in root.rglob("*.py")} - {
    "__init__"
  }
  assert sorted(order) == sorted(modules)
  wrong = []
  for path in root.rglob("*.py"):
    own = path.relative_to(root).parts[0].removesuffix(".py")
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.ImportFrom) and (
        node.module == room.__name__ or node.module.startswith(f"{room.__name__}.")
      ):
        parts = node.module.removeprefix(room.__name__).split(".")
        for other in [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]:
          if other in order and other != own and order.index(other) > order.index(own):
            wrong.append(f"{path.relative_to(root)} imports {other}")
  assert not wrong, wrong
