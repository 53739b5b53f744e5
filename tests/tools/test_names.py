"""Every tool is found by its name in the layout of the wheel, without a directory `tools`."""

import os
import pathlib
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = """
import importlib, importlib.machinery, importlib.util, pathlib, pkgutil, sys

folder = pathlib.Path(sys.argv[1])
sys.path[:] = [entry for entry in sys.path if not (pathlib.Path(entry or ".") / "tools").is_dir()]
for finder in list(sys.meta_path):  # an editable installation knows the folder by other names too
  if "editable" in repr(finder):
    sys.meta_path.remove(finder)


class Installed:  # finds t5x_like and, inside of it, tools and configs: the wheel's layout
  @staticmethod
  def find_spec(name, path=None, target=None):
    places = {"t5x_like": "t5x_like", "t5x_like.tools": "tools", "t5x_like.configs": "configs"}
    if name not in places:
      return None
    place = folder / places[name]
    file = place / "__init__.py"
    if file.is_file():
      locations = [str(place)]
      return importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=locations
      )
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(place)]
    return spec


sys.meta_path.insert(0, Installed)
from t5x_like.__main__ import tools

assert importlib.util.find_spec("tools") is None
for name, module in tools().items():
  assert module.startswith("t5x_like.tools."), module
  try:
    package = importlib.import_module(module)
    for _, part, _ in pkgutil.iter_modules(getattr(package, "__path__", [])):
      importlib.import_module(f"{module}.{part}")
  except ImportError as error:
    missing = (error.name or "").split(".")[0]
    assert missing not in ("tools", "configs", "t5x_like", ""), (module, error)
  print(name)
"""


def test_every_tool_is_imported_under_its_installed_name(tmp_path):
  env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
  command = [sys.executable, "-c", PROGRAM, REPO]
  process = subprocess.run(
    command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500
  )
  assert process.returncode == 0, process.stderr[-2000:]
  files = {path.stem for path in (REPO / "tools").glob("[!_]*.py")}
  packages = {path.parent.name for path in (REPO / "tools").glob("*/__main__.py")}
  assert set(process.stdout.split()) == files | packages
