"""Read docstrings of installed packages from their source files by `ast`.

Nothing is imported or executed.

`scan` yields them in a fixed order (package as given, then path, then position), so the same
installed files give the same result. Child processes of this module do the parsing: each takes
every n-th file and writes one line of JSON per file. The parent reads the lines in turn, so it
holds only a few files at any time.
"""

import ast
import gc
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from t5x_like.errors import UserError

STANDARD_LIBRARY = "stdlib"
MIN_CHARACTERS = 80
MIN_LETTERS = 0.6  # share of the characters other than white space

# Folders whose files are left out.
_NOT_PROSE = frozenset(
  {"test", "tests", "site-packages", "dist-packages", "__pycache__", "_vendor"}
)
_LETTERS = re.compile(r"[^\W\d_]+")
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")  # NUL and lone surrogates
_DOCUMENTED_NODES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Docstring(NamedTuple):
  """A docstring without indentation, and its origin.

  `qualname` is empty for a module.
  """

  text: str
  package: str
  module: str
  qualname: str


def source_files(packages: Sequence[str]) -> list[tuple[str, str, str]]:
  """List (package, module, path) of every Python file of the installed packages, in order.

  Raises:
    UserError: none of the packages is installed as source files.
  """
  files = []
  for package in packages:
    for root, prefix in _roots(package):
      folder = root
      paths = sorted(root.rglob("*.py"))
      if root.is_file():
        folder = root.parent
        paths = [root]
      for path in paths:
        parts = path.relative_to(folder).with_suffix("").parts
        if parts[-1] == "__init__":
          parts = parts[:-1]
        module = ".".join((*prefix, *parts))
        if not _NOT_PROSE.intersection(parts) and module:
          files.append((package, module, str(path)))
  if not files:
    raise UserError(
      f"docstrings: found no Python source files of {', '.join(packages) or 'no packages'}, "
      "expected at least one installed package"
    )
  return files


def scan(packages: Sequence[str], processes: int = 2) -> Iterator[tuple[int, int, list[Docstring]]]:
  """Yield (number of files done, number of files, docstrings of the next file), file after file.

  Args:
    packages: top-level names of packages or modules, or `stdlib`; packages that are not installed
      are ignored.
    processes: number of child processes that parse; it does not affect the result.

  Raises:
    UserError: no package is installed, or a child process died.
  """
  files = source_files(packages)
  root = str(Path(__file__).resolve().parents[3])
  search_path = [root, os.environ.get("PYTHONPATH")]
  environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search_path))}
  command = [sys.executable, "-m", __name__]
  pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
  children = [subprocess.Popen(command, env=environment, **pipes) for _ in range(processes)]
  try:
    for k, child in enumerate(children):
      with child.stdin:
        json.dump([path for _, _, path in files[k::processes]], child.stdin)
    for number in range(len(files)):
      package, module, path = files[number]
      line = children[number % processes].stdout.readline()
      if not line.endswith("\n"):
        code = children[number % processes].wait()
        raise UserError(
          f"docstrings: the process parsing {path} ended with code {code}, expected the "
          "docstrings of that file; check that there is enough memory"
        )
      docstrings = [Docstring(text, package, module, name) for text, name in json.loads(line)]
      yield number + 1, len(files), docstrings
  finally:
    for child in children:
      child.kill()
      child.stdout.close()
      child.wait()


def parse(source: bytes) -> list[tuple[str, str]]:
  """Return (text, qualname) of each docstring that `is_prose`; none if a file is invalid Python."""
  if b'"""' not in source and b"'''" not in source:
    return []
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # about the parsed code, such as invalid escapes
      tree = ast.parse(source)
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return []
  return [(text, name) for text, name in _docstrings(tree, "") if is_prose(text)]


def is_prose(text: str) -> bool:
  """Return whether a text is long enough, is mostly letters and has no NUL or lone surrogate."""
  if len(text) < MIN_CHARACTERS or _NOT_TEXT.search(text):
    return False
  visible = sum(map(len, text.split()))
  letters = sum(map(len, _LETTERS.findall(text)))
  return letters >= MIN_LETTERS * visible


def _docstrings(node: ast.AST, outer: str) -> Iterator[tuple[str, str]]:
  """Yield (text, qualname) of the docstrings of a node and of all nodes inside it.

  Args:
    node: a module, class, function or other node.
    outer: the qualname of the class or function around it; empty for none.
  """
  if isinstance(node, _DOCUMENTED_NODES):
    name = getattr(node, "name", "")
    outer = f"{outer}.{name}" if outer else name
    text = ast.get_docstring(node, clean=False)
    if text is not None:
      yield inspect.cleandoc(text).strip(), outer
  for child in ast.iter_child_nodes(node):
    if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
      yield from _docstrings(child, outer)


def _roots(package: str) -> list[tuple[Path, tuple[str, ...]]]:
  """Locate a top-level package without importing it.

  The result is pairs of a directory or single file, and the module's prefix.
  """
  if package == STANDARD_LIBRARY:
    return [(Path(sysconfig.get_path("stdlib")), ())]
  try:
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
  except (ImportError, ValueError):
    return []
  if spec is None:
    return []
  if spec.submodule_search_locations:
    return [(Path(location), (package,)) for location in sorted(spec.submodule_search_locations)]
  return [(Path(spec.origin), ())] if str(spec.origin).endswith(".py") else []


def _child() -> None:
  """Parse the files that stdin lists, in a child process; print each one's docstrings on a line."""
  gc.disable()  # syntax trees have no cycles; collecting would take two thirds of the time
  for path in json.load(sys.stdin):
    try:
      source = Path(path).read_bytes()
    except OSError:
      source = b""
    print(json.dumps(parse(source)))


if __name__ == "__main__":
  _child()
