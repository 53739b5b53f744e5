"""The order in which `nn` says that it is to be read is that of its imports."""

import ast
import pathlib

from t5x_like import nn


def test_every_module_imports_only_from_those_before_it():
  root = pathlib.Path(nn.__file__).parent
  lines = [line for line in nn.__doc__.splitlines() if line.startswith("  ")]
  order = [word.strip("/") for line in lines for word in line.strip().split("  ")[0].split()]
  modules = {path.relative_to(root).parts[0].removesuffix(".py") for path in root.rglob("*.py")} - {"__init__"}
  assert sorted(order) == sorted(modules)
  wrong = []
  for path in root.rglob("*.py"):
    own = path.relative_to(root).parts[0].removesuffix(".py")
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.ImportFrom) and node.module.startswith("t5x_like.nn"):
        parts = node.module.split(".")
        for other in [parts[2]] if len(parts) > 2 else [alias.name for alias in node.names]:
          if other != own and order.index(other) > order.index(own):
            wrong.append(f"{path.relative_to(root)} imports {other}")
  assert not wrong, wrong
