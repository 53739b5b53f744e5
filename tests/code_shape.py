"""Measure the size, the names and the imports of the package."""

import ast
import io
import pathlib
import tokenize

PACKAGE = "t5x_like"
REPO = pathlib.Path(__file__).resolve().parents[1]

# The modules from which a T5 pretraining run starts; the rest of its core follows from their
# imports.
RUN_MODULES = (
  "train",
  "models.t5",
  "data.tasks.span_corruption",
  "objectives.encoder_decoder",
  "evals.loss",
  "evals.span_infilling",
)
VAGUE_NAMES = frozenset(
  "found one made given own held kept taken told asked wanted seen more other others known what "
  "along beside inside left rest least most mine theirs ours their usual thing word whole shown "
  "there here past got had new_one it this that these those stuff something ".split()
)
TOKEN_KINDS = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
# Of Python 3.12 and later, where a formatted string has tokens within.
FORMATTED_START = getattr(tokenize, "FSTRING_START", None)
FORMATTED_END = getattr(tokenize, "FSTRING_END", None)


def package_files(repo: pathlib.Path = REPO) -> dict[str, pathlib.Path]:
  """Return the files of the package by module name."""
  files = {}
  for file in sorted((repo / PACKAGE).rglob("*.py")):
    parts = file.relative_to(repo).with_suffix("").parts
    if parts[-1] == "__init__":
      parts = parts[:-1]
    files[".".join(parts)] = file
  return files


def count_tokens(text: str) -> int:
  """Count names, operators, numbers and strings, formatted ones as one; comments do not count."""
  count = 0
  depth = 0
  for token in tokenize.generate_tokens(io.StringIO(text).readline):
    if token.type == FORMATTED_START:
      count += depth == 0
      depth += 1
    elif token.type == FORMATTED_END:
      depth -= 1
    elif depth == 0:
      count += token.type in TOKEN_KINDS
  return count


def vague_percent(trees: list[ast.Module]) -> float:
  """Return the percentage of bound names that say nothing about the object."""
  bound = 0
  vague = 0
  for tree in trees:
    for node in ast.walk(tree):
      if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        name = node.id
      elif isinstance(node, ast.arg):
        name = node.arg
      else:
        continue
      bound += 1
      vague += name in VAGUE_NAMES
  return 100 * vague / bound


class _ImportVisitor(ast.NodeVisitor):
  """Collect what a module imports: by statements, and by literal names given to `slots.module` or
  `import_module`."""

  def __init__(self, package: str):
    self.package = package
    self.aliases: dict[str, str] = {}
    self.statements: set[str] = set()
    self.calls: list[ast.Call] = []

  def visit_Import(self, node: ast.Import):
    for item in node.names:
      self.statements.add(item.name)
      top = item.name.split(".")[0]
      self.aliases[item.asname or top] = item.name if item.asname else top

  def visit_ImportFrom(self, node: ast.ImportFrom):
    base = node.module or ""
    if node.level:
      parents = self.package.split(".")
      parents = parents[: len(parents) - node.level + 1]
      base = ".".join([*parents, base]) if base else ".".join(parents)
    self.statements.add(base)
    for item in node.names:
      self.statements.add(f"{base}.{item.name}")
      self.aliases[item.asname or item.name] = f"{base}.{item.name}"

  def visit_Call(self, node: ast.Call):
    self.calls.append(node)
    self.generic_visit(node)

  def spelled(self) -> set[str]:
    """Return the modules whose names are literal arguments of a call that imports."""
    names = set()
    for call in self.calls:
      function = (
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
      )
      literal = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
      if not isinstance(literal, str):
        continue
      if function == "import_module":
        names.add(literal)
      elif function == "module" and len(call.args) == 2:
        names.add(f"{self._package_of(call.args[1])}.{literal}")
    return names

  def _package_of(self, node: ast.expr) -> str:
    """Return the dotted name of the package that the second argument of `slots.module` stands
    for."""
    if isinstance(node, ast.Constant):
      return str(node.value)
    head, _, tail = ast.unparse(node).partition(".")
    head = self.aliases.get(head, head)
    return f"{head}.{tail}" if tail else head


def import_graph(files: dict[str, pathlib.Path]) -> dict[str, set[str]]:
  """Return the modules of the package that each module imports, by statements or by literal
  names."""
  graph = {}
  for module, file in files.items():
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    visitor = _ImportVisitor(package)
    visitor.visit(ast.parse(file.read_text()))
    names = visitor.statements | visitor.spelled()
    graph[module] = {name for name in names if name in files and name != module}
  return graph


def reachable_modules(graph: dict[str, set[str]], start: list[str]) -> set[str]:
  """Return the modules that `start` can import, with the packages that they lie in."""
  reached: set[str] = set()
  pending = list(start)
  while pending:
    module = pending.pop()
    if module in reached:
      continue
    reached.add(module)
    parts = module.split(".")
    pending += [".".join(parts[:i]) for i in range(1, len(parts))]
    pending += graph[module]
  return reached


def import_circles(graph: dict[str, set[str]]) -> list[set[str]]:
  """Return the groups of modules that import one another."""

  def descendants(start: str) -> set[str]:
    reached: set[str] = set()
    pending = [start]
    while pending:
      new = graph[pending.pop()] - reached
      reached |= new
      pending += new
    return reached

  below = {module: descendants(module) for module in graph}
  groups = set()
  for module in graph:
    if module in below[module]:
      groups.add(frozenset(imported for imported in below[module] if module in below[imported]))
  return [set(group) for group in groups]


def measure(repo: pathlib.Path = REPO) -> dict[str, float]:
  """Return the figures of the package that `test_core.py` bounds."""
  files = package_files(repo)
  texts = {module: file.read_text() for module, file in files.items()}
  trees = [ast.parse(text) for text in texts.values()]
  graph = import_graph(files)
  core = reachable_modules(graph, [f"{PACKAGE}.{module}" for module in RUN_MODULES])
  tokens = sum(count_tokens(text) for text in texts.values())
  lines = sum(text.count("\n") for text in texts.values())
  return {
    "tokens": tokens,
    "tokens a line": round(tokens / lines, 2),
    "vague names in percent": round(vague_percent(trees), 2),
    "core modules": len(core),
    "circles": len(import_circles(graph)),
  }
