"""Enforce the architecture: imports go only to lower layers, and unsafe code is refused."""

import ast
import pathlib
import subprocess
import sys

import pytest

REPO = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = "t5x_like"
# The base, which every package may import.
BASE = (
  "config",
  "errors",
  "files",
  "metrics",
  "quiet_tensorflow",
  "redaction",
  "resolution",
  "segmentation",
  "slots",
  "terminal_text",
  "trust",
)
LAYERS = {
  **dict.fromkeys((*BASE, "nn", "parallel"), 0),
  "vocabularies": 0.1,
  "store": 0.2,
  "corpora": 0.25,
  "data": 0.3,
  "runtime": 0.4,
  "architectures": 0.5,
  "decoding": 0.7,
  **dict.fromkeys(("models", "objectives", "rows"), 1),
  "tunings": 1.1,
  "abstract_model": 1.2,
  **dict.fromkeys(("checkpoints", "evals", "interop", "laptop"), 2),
  "saved_model": 2.2,
  **dict.fromkeys(("recipes", "report"), 2.5),
  **dict.fromkeys(("training", "inference"), 3),
  "contrib": 3.1,
  "benchmarks": 3.2,
  **dict.fromkeys(("library", "listing"), 3.4),
  "planning": 3.5,
  "command_line": 3.5,  # shared by the commands
  **dict.fromkeys(("train", "evaluate", "predict", "chat", "plan"), 4),
  **dict.fromkeys(("runs", "__main__"), 5),
}
# A plug-in that needs more than its package. Only a recipe's name imports it.
LAYERS |= {"evals.questions": 3.1}
CONTRIB = REPO / PACKAGE / "contrib"
ROOTS = (PACKAGE, "tools", "launch", "configs")
SOURCES = {
  path: ast.parse(path.read_text())
  for root in ROOTS
  for path in sorted((REPO / root).rglob("*.py"))
}
PACKAGE_SOURCES = {
  path: tree for path, tree in SOURCES.items() if path.is_relative_to(REPO / PACKAGE)
}


# The packages that topics extend, by the name of the folder that extends them, such as "tasks".
LAYER_OF_FOLDER = {
  path.parent.name: path.relative_to(REPO / PACKAGE).parts[0]
  for path in PACKAGE_SOURCES
  if path.name == "__init__.py" and not path.is_relative_to(CONTRIB)
}


def imports(path, tree):
  """Yield (line, dotted module) of every import in a file, relative imports resolved."""
  parts = list(path.relative_to(REPO).with_suffix("").parts)
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from ((node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      base = ".".join(parts[: -node.level]) if node.level else ""
      module = ".".join(filter(None, (base, node.module)))
      yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def layer_of(path):
  """Return the name in `LAYERS` that bounds the imports of a file.

  A file in a folder of a topic is bound as the package that the folder extends.
  """
  parts = path.relative_to(REPO / PACKAGE).with_suffix("").parts
  if parts[0] == "contrib" and len(parts) > 3:
    return LAYER_OF_FOLDER.get(parts[2], "contrib")
  return parts[0]


def importer_of(path):
  """Return the dotted module of a file; in a topic's folder, the package that it extends."""
  parts = path.relative_to(REPO / PACKAGE).with_suffix("").parts
  package = layer_of(path)
  return ".".join(parts) if parts[0] == package else package


def topic_of(module):
  """Return the topic that a dotted module belongs to, or None."""
  parts = module.split(".")
  return parts[2] if parts[:2] == [PACKAGE, "contrib"] and len(parts) > 2 else None


def subpackage(module):
  """Return `nn` for `t5x_like.nn.dims`; None for modules outside the package."""
  parts = module.split(".")
  return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else None


def layer(module):
  """Return the layer of a dotted module below the package, or of the package that holds it."""
  while module not in LAYERS:
    module, _, _ = module.rpartition(".")
  return LAYERS[module]


def location(path, line):
  """Return the file and line for a message."""
  return f"{path.relative_to(REPO)}:{line}"


def test_every_package_has_a_layer():
  packages = {
    path.relative_to(REPO / PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE_SOURCES
  }
  assert packages - {"__init__"} <= set(LAYERS)


def may_import(importer, module):
  """Return whether a module may import another one; both are dotted names below the package."""
  importing_package = importer.split(".")[0]
  package = module.split(".")[0]
  if importing_package in ("nn", "architectures", "decoding") and package == "parallel":
    return module.startswith("parallel.constrain")
  if package == importing_package:
    return layer(module) <= layer(importer)
  if layer(importer) == 0 and package in BASE:
    return True
  return layer(module) < layer(importer)


def test_imports_go_only_to_lower_layers():
  violations = []
  for path, tree in PACKAGE_SOURCES.items():
    importer = importer_of(path)
    if importer == "__init__":
      continue
    for line, module in imports(path, tree):
      if subpackage(module) in (None, "contrib", "__version__"):
        continue
      if not may_import(importer, module.removeprefix(f"{PACKAGE}.")):
        violations.append(f"{location(path, line)} imports {module}")
  assert not violations, "\n".join(violations)


def test_a_topic_is_imported_by_itself_alone():
  violations = []
  for path, tree in SOURCES.items():
    dotted_path = ".".join(path.relative_to(REPO).with_suffix("").parts)
    for line, module in imports(path, tree):
      imported = topic_of(module)
      if imported and imported != topic_of(dotted_path):
        violations.append(f"{location(path, line)} imports {module}")
  assert not violations, "\n".join(violations)


def test_plug_ins_import_no_siblings():
  """A task, objective or evaluator is one file; shared code is in a private module or above."""
  violations = []
  for path, tree in PACKAGE_SOURCES.items():
    folder = path.relative_to(REPO / PACKAGE).parent.as_posix()
    if path.parent.name in ("tasks", "objectives", "evals") and not path.stem.startswith("_"):
      siblings = {p.stem for p in path.parent.glob("[!_]*.py")} - {path.stem}
      prefix = f"{PACKAGE}.{folder.replace('/', '.')}."
      for line, module in imports(path, tree):
        if module.startswith(prefix) and module.removeprefix(prefix).split(".")[0] in siblings:
          violations.append(f"{location(path, line)} imports {module}")
  assert not violations, "\n".join(violations)


def test_the_package_imports_no_tools_launchers_tests_or_recipes():
  violations = [
    f"{location(path, line)} imports {module}"
    for path, tree in PACKAGE_SOURCES.items()
    for line, module in imports(path, tree)
    if module.split(".")[0] in ("tools", "launch", "tests", "configs")
  ]
  assert not violations, "\n".join(violations)


def test_tensorflow_is_imported_by_one_module_under_data_and_corpora_and_in_tools():
  violations = [
    f"{location(path, line)} imports {module}"
    for path, tree in SOURCES.items()
    for line, module in imports(path, tree)
    if module.split(".")[0].startswith(("tensorflow", "keras"))
    if not path.is_relative_to(REPO / "tools")
    if not (path in PACKAGE_SOURCES and layer_of(path) in ("quiet_tensorflow", "data", "corpora"))
  ]
  assert not violations, "\n".join(violations)


UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "joblib.load", "torch.load", "yaml.load"}
# Files that may import a module by name: from a fixed list of our modules, or a name that
# `trust` admits.
FIXED_LIST_IMPORTERS = {
  "t5x_like/__init__.py",
  "t5x_like/slots.py",
  "tools/benchmark/__main__.py",
}
IMPORTERS = FIXED_LIST_IMPORTERS | {"t5x_like/trust.py"}


def test_no_input_can_execute_code():
  violations = []
  for path, tree in SOURCES.items():
    for line, module in imports(path, tree):
      if module.split(".")[0] in UNSAFE_MODULES:
        violations.append(f"{location(path, line)} imports {module}")
    for node in ast.walk(tree):
      if not isinstance(node, ast.Call):
        continue
      if ast.unparse(node.func) in UNSAFE_CALLS:
        violations.append(f"{location(path, node.lineno)} calls {ast.unparse(node.func)}")
      for keyword in node.keywords:
        is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg in ("allow_pickle", "shell", "trust_remote_code") and not is_false:
          violations.append(f"{location(path, node.lineno)} sets {keyword.arg}")
      by_name = ast.unparse(node.func).endswith("import_module")
      if by_name and path.relative_to(REPO).as_posix() not in IMPORTERS:
        violations.append(f"{location(path, node.lineno)} imports a module by name")
  assert not violations, "\n".join(violations)


def test_no_catch_all_modules_and_no_unfinished_code():
  names = {path.name for path in SOURCES}
  assert not names & {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
  unfinished = [
    location(path, node.lineno)
    for path, tree in SOURCES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.Name) and node.id == "NotImplementedError"
  ]
  assert not unfinished, unfinished


BLOCKED = """
import sys

class Blocked:
  def find_spec(self, name, path=None, target=None):
    if name.split(".")[0] in {blocked!r}:
      raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocked())
import importlib
for name in {modules!r}:
  importlib.import_module(name)
print("imported", len({modules!r}))
"""


@pytest.mark.parametrize(
  "blocked",
  [
    (
      "tensorflow",
      "tensorflow_datasets",
      "ml_collections",
      "sentencepiece",
      "tensorboardX",
      "matplotlib",
    )
  ],
)
def test_models_and_the_step_import_without_the_data_system(blocked):
  packages = ("nn", "architectures", "decoding", "parallel", "models", "objectives")
  modules = [
    ".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE_SOURCES
    if layer_of(path) in packages
  ]
  modules += [f"{PACKAGE}.training.{name}" for name in ("step", "state", "optimizer", "schedule")]
  program = BLOCKED.format(blocked=set(blocked), modules=modules)
  process = subprocess.run(
    [sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=600
  )
  assert process.returncode == 0, process.stderr[-1500:]
  assert f"imported {len(modules)}" in process.stdout


def test_no_two_tests_share_a_file_name():
  """Test files outside packages share one name space; pytest drops the second file of a name."""
  names = [
    path.name
    for path in (REPO / "tests").rglob("test_*.py")
    if not (path.parent / "__init__.py").exists()
  ]
  assert not {name for name in names if names.count(name) > 1}
