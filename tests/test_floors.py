"""The architecture, enforced: imports go only to lower floors, and what must not be there is
not."""

import ast
import pathlib
import subprocess
import sys

import pytest

REPO = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = "t5x_like"
# The ground, which every room may import.
GROUND = (
  "config",
  "errors",
  "files",
  "metrics",
  "redaction",
  "resolution",
  "segmentation",
  "slots",
  "terminal_text",
  "trust",
)
FLOORS = {
  **dict.fromkeys((*GROUND, "nn", "parallel"), 0),
  "vocabularies": 0.1,
  "store": 0.2,
  "rewards": 0.2,
  **dict.fromkeys(("corpora", "data"), 0.3),
  "runtime": 0.4,
  "architectures": 0.5,
  "decoding": 0.7,
  **dict.fromkeys(("models", "objectives", "rows"), 1),
  "retrieval": 1.5,
  "faiss_retrieval": 1.6,
  **dict.fromkeys(("checkpoints", "evals", "interop", "laptop"), 2),
  **dict.fromkeys(("recipes", "report"), 2.5),
  **dict.fromkeys(("training", "inference"), 3),
  "benchmarks": 3.2,
  **dict.fromkeys(("library", "listing"), 3.4),
  "planning": 3.5,
  "command_line": 3.5,  # what the doors share
  **dict.fromkeys(("train", "evaluate", "predict", "chat", "plan"), 4),
  **dict.fromkeys(("runs", "__main__"), 5),
}
TOGETHER = {"corpora", "data"}  # not yet apart
ROOTS = (PACKAGE, "tools", "launch", "configs")
SOURCES = {
  path: ast.parse(path.read_text())
  for root in ROOTS
  for path in sorted((REPO / root).rglob("*.py"))
}
PACKAGE_SOURCES = {
  path: tree for path, tree in SOURCES.items() if path.is_relative_to(REPO / PACKAGE)
}


def imports(path, tree):
  """(line, dotted module) of every import, wherever in the file; relative ones resolved."""
  here = list(path.relative_to(REPO).with_suffix("").parts)
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from ((node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      base = ".".join(here[: -node.level]) if node.level else ""
      module = ".".join(filter(None, (base, node.module)))
      yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def room(module):
  """`t5x_like.nn.dims` -> `nn`; None outside of the package."""
  parts = module.split(".")
  return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else None


def where(path, line):
  return f"{path.relative_to(REPO)}:{line}"


def test_every_room_has_a_floor():
  rooms = {
    path.relative_to(REPO / PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE_SOURCES
  }
  assert rooms - {"__init__"} <= set(FLOORS)


def test_imports_go_only_to_lower_floors():
  wrong = []
  for path, tree in PACKAGE_SOURCES.items():
    own = path.relative_to(REPO / PACKAGE).parts[0].removesuffix(".py")
    for line, module in imports(path, tree):
      other = room(module)
      if own == "__init__" or other in (None, own, "__version__"):
        continue
      allowed = (
        FLOORS[other] < FLOORS[own]
        or (FLOORS[own] == 0 and other in GROUND)
        or {own, other} <= TOGETHER
      )
      if own in ("nn", "architectures", "decoding") and module.startswith(f"{PACKAGE}.parallel"):
        allowed = module.startswith(f"{PACKAGE}.parallel.constrain")
      if not allowed:
        wrong.append(f"{where(path, line)} imports {module}")
  assert not wrong, "\n".join(wrong)


def test_plug_ins_import_no_siblings():
  """A task, objective or evaluator is one file; what several share is in a private module or in the
  package itself."""
  wrong = []
  for path, tree in PACKAGE_SOURCES.items():
    folder = path.relative_to(REPO / PACKAGE).parent.as_posix()
    if folder in ("data/tasks", "objectives", "evals") and not path.stem.startswith("_"):
      siblings = {p.stem for p in path.parent.glob("[!_]*.py")} - {path.stem}
      prefix = f"{PACKAGE}.{folder.replace('/', '.')}."
      found = [
        (n, m)
        for n, m in imports(path, tree)
        if m.startswith(prefix) and m.removeprefix(prefix).split(".")[0] in siblings
      ]
      wrong += [f"{where(path, line)} imports {module}" for line, module in found]
  assert not wrong, "\n".join(wrong)


def test_the_package_imports_none_of_what_is_built_on_it():
  wrong = [
    f"{where(path, line)} imports {module}"
    for path, tree in PACKAGE_SOURCES.items()
    for line, module in imports(path, tree)
    if module.split(".")[0] in ("tools", "launch", "tests", "configs")
  ]
  assert not wrong, "\n".join(wrong)


def test_tensorflow_is_imported_only_under_data_and_corpora_and_in_tools():
  wrong = [
    f"{where(path, line)} imports {module}"
    for path, tree in SOURCES.items()
    for line, module in imports(path, tree)
    if module.split(".")[0].startswith(("tensorflow", "keras"))
    if not any(
      path.is_relative_to(REPO / room)
      for room in ("tools", f"{PACKAGE}/data", f"{PACKAGE}/corpora")
    )
  ]
  assert not wrong, "\n".join(wrong)


UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "joblib.load", "torch.load", "yaml.load"}
# Who imports a module by name: names in a list of the program's own files, and those that `trust`
# admits.
OF_OWN_LISTS = {
  "t5x_like/__init__.py",
  "t5x_like/slots.py",
  "t5x_like/interop/hf.py",
  "tools/benchmark/__main__.py",
}
IMPORTERS = OF_OWN_LISTS | {"t5x_like/trust.py"}


def test_nothing_that_is_read_can_execute_code():
  wrong = []
  for path, tree in SOURCES.items():
    wrong += [
      f"{where(path, n)} imports {m}"
      for n, m in imports(path, tree)
      if m.split(".")[0] in UNSAFE_MODULES
    ]
    for node in ast.walk(tree):
      if not isinstance(node, ast.Call):
        continue
      if ast.unparse(node.func) in UNSAFE_CALLS:
        wrong.append(f"{where(path, node.lineno)} calls {ast.unparse(node.func)}")
      for keyword in node.keywords:
        off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg in ("allow_pickle", "shell", "trust_remote_code") and not off:
          wrong.append(f"{where(path, node.lineno)} sets {keyword.arg}")
      by_name = ast.unparse(node.func).endswith("import_module")
      if by_name and path.relative_to(REPO).as_posix() not in IMPORTERS:
        wrong.append(f"{where(path, node.lineno)} imports a module by name")
  assert not wrong, "\n".join(wrong)


def test_no_room_for_leftovers():
  names = {path.name for path in SOURCES}
  assert not names & {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
  unfinished = [
    where(path, node.lineno)
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
  rooms = ("nn", "architectures", "decoding", "parallel", "models", "objectives")
  modules = [
    ".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE_SOURCES
    if path.relative_to(REPO / PACKAGE).parts[0] in rooms
  ]
  modules += [f"{PACKAGE}.training.{name}" for name in ("step", "state", "optimizer", "schedule")]
  program = BLOCKED.format(blocked=set(blocked), modules=modules)
  done = subprocess.run(
    [sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=600
  )
  assert done.returncode == 0, done.stderr[-1500:]
  assert f"imported {len(modules)}" in done.stdout


def test_no_two_tests_share_a_file_name():
  """Files outside of packages are modules of one name space; pytest drops the second of a name from
  a run."""
  names = [
    path.name
    for path in (REPO / "tests").rglob("test_*.py")
    if not (path.parent / "__init__.py").exists()
  ]
  assert not {name for name in names if names.count(name) > 1}
