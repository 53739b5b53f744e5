"""Enforce the architecture: imports go only to lower layers, and unsafe code is refused."""

import ast
import pathlib
import subprocess
import sys

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
  "certificate": 2.6,  # what a run records; `verification` is listed below
  **dict.fromkeys(("training", "inference"), 3),
  "contrib": 3.1,
  "benchmarks": 3.2,
  **dict.fromkeys(("library", "listing"), 3.4),
  "planning": 3.5,
  "command_line": 3.5,  # shared by the commands
  **dict.fromkeys(("train", "evaluate", "predict", "chat", "plan", "certify"), 4),
  **dict.fromkeys(("runs", "__main__"), 5),
}
# A plug-in that needs more than its package. Only a recipe's name imports it.
LAYERS |= {"evals.questions": 3.1}
# A certificate is recorded by training, and verified with the whole of training.
LAYERS |= {"certificate.verification": 3.3}
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


def importing(sources, is_violation):
  """Return a message for each import for which `is_violation(file, imported module)` is true."""
  messages = []
  for path, tree in sources.items():
    for line, module in imports(path, tree):
      if is_violation(path, module):
        messages.append(f"{location(path, line)} imports {module}")
  return messages


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
  def is_violation(path, module):
    importer = importer_of(path)
    if importer == "__init__" or subpackage(module) in (None, "contrib", "__version__"):
      return False
    return not may_import(importer, module.removeprefix(f"{PACKAGE}."))

  assert not importing(PACKAGE_SOURCES, is_violation)


def test_a_topic_is_imported_by_itself_alone():
  def is_violation(path, module):
    importer = ".".join(path.relative_to(REPO).with_suffix("").parts)
    return topic_of(module) not in (None, topic_of(importer))

  assert not importing(SOURCES, is_violation)


def test_plug_ins_import_no_siblings():
  """A task, objective or evaluator is one file; shared code is in a private module or above."""

  def is_violation(path, module):
    if path.parent.name not in ("tasks", "objectives", "evals") or path.stem.startswith("_"):
      return False
    siblings = {sibling.stem for sibling in path.parent.glob("[!_]*.py")} - {path.stem}
    package = ".".join(path.parent.relative_to(REPO).parts)
    inner = module.removeprefix(f"{package}.")
    return inner != module and inner.split(".")[0] in siblings

  assert not importing(PACKAGE_SOURCES, is_violation)


def test_the_package_imports_no_tools_launchers_tests_or_recipes():
  outside = ("tools", "launch", "tests", "configs")
  assert not importing(PACKAGE_SOURCES, lambda path, module: module.split(".")[0] in outside)


def test_tensorflow_is_imported_by_one_module_under_data_and_corpora_and_in_tools():
  def is_violation(path, module):
    if not module.startswith(("tensorflow", "keras")) or path.is_relative_to(REPO / "tools"):
      return False
    layers = ("quiet_tensorflow", "data", "corpora")
    return path not in PACKAGE_SOURCES or layer_of(path) not in layers

  assert not importing(SOURCES, is_violation)


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


def unsafe_calls(path, tree):
  """Return a message for each call in a file that may execute what it reads."""
  messages = []
  for node in ast.walk(tree):
    if not isinstance(node, ast.Call):
      continue
    function = ast.unparse(node.func)
    if function in UNSAFE_CALLS:
      messages.append(f"{location(path, node.lineno)} calls {function}")
    for keyword in node.keywords:
      is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
      if keyword.arg in ("allow_pickle", "shell", "trust_remote_code") and not is_false:
        messages.append(f"{location(path, node.lineno)} sets {keyword.arg}")
    if function.endswith("import_module") and path.relative_to(REPO).as_posix() not in IMPORTERS:
      messages.append(f"{location(path, node.lineno)} imports a module by name")
  return messages


def test_no_input_can_execute_code():
  assert not importing(SOURCES, lambda path, module: module.split(".")[0] in UNSAFE_MODULES)
  for path, tree in SOURCES.items():
    assert not unsafe_calls(path, tree)


def test_no_catch_all_modules_and_no_unfinished_code():
  names = {path.name for path in SOURCES}
  assert not names & {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
  for path, tree in SOURCES.items():
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert "NotImplementedError" not in named, path


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


DATA_SYSTEM = {
  "tensorflow",
  "tensorflow_datasets",
  "ml_collections",
  "sentencepiece",
  "tensorboardX",
  "matplotlib",
}


def test_models_and_the_step_import_without_the_data_system():
  packages = ("nn", "architectures", "decoding", "parallel", "models", "objectives")
  modules = [f"{PACKAGE}.training.{name}" for name in ("step", "state", "optimizer", "schedule")]
  for path in PACKAGE_SOURCES:
    if layer_of(path) in packages:
      module = ".".join(path.relative_to(REPO).with_suffix("").parts)
      modules.append(module.removesuffix(".__init__"))
  program = BLOCKED.format(blocked=DATA_SYSTEM, modules=modules)
  process = subprocess.run(
    [sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=600
  )
  assert process.returncode == 0, process.stderr[-1500:]
  assert f"imported {len(modules)}" in process.stdout


def test_no_two_tests_share_a_file_name():
  """Test files outside packages share one name space; pytest drops the second file of a name."""
  files = (REPO / "tests").rglob("test_*.py")
  names = [path.name for path in files if not (path.parent / "__init__.py").exists()]
  assert not {name for name in names if names.count(name) > 1}
