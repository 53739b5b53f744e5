"""Recipes: how a file in `configs/`, its argument and the `--config.…` flags become one checked
`ConfigDict`.

A recipe is a Python file with `get_config()`, which starts from `config.defaults()` and fills in
its paper's table. The function's signature defines the recipe's arguments after the colon: one
value of each `Literal` parameter (`size: Literal["base", "large"] = "base"`) and the name of each
`bool`. Every recipe also takes one of the laptop forms `tiny` and `debug`; see `t5x_like.laptop`.
"""

import contextlib
import importlib.util
import inspect
import pathlib
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like import slots, trust
from t5x_like.errors import UserError, did_you_mean, one_line

FORMS = ("tiny", "debug")  # laptop forms, made by `t5x_like.laptop`
_PACKAGE = pathlib.Path(__file__).parent
# In a wheel the recipes lie inside the package, in a clone beside it.
CONFIGS = next(
  folder / "configs" for folder in (_PACKAGE, _PACKAGE.parent) if (folder / "configs").is_dir()
)


def load(path: str, overrides: Sequence[str] = ()) -> ConfigDict:
  """Read a recipe and apply `key=value` overrides; functions that it names may be imported, see
  `t5x_like.trust`.

  Args:
    path: `configs/t5/base.py`, or with an argument `configs/t5/base.py:large` or
      `configs/t5/base.py:v1_0,debug`.
    overrides: such as `model.dropout=0.1`, left to right. Values are JSON, or else plain strings. A
      new `name` for a slot (`optimizer.name=adamw`) discards the arguments of the old name.
  Raises:
    UserError: the recipe does not exist, fails, or does not take an argument; a key does not exist;
      or a value has the wrong type.
  """
  file, _, argument = path.partition(":")
  recipe = load_module(file)
  with _failing(file):
    chosen = _chosen(file, argument, argument_choices(recipe.get_config))
    form = chosen.pop("laptop", None)
    config = recipe.get_config(**chosen)
    config_lib.check_keys(config, file)
    if form:
      slots.module("laptop", "t5x_like").shrink(config, form, getattr(recipe, "LAPTOP", {}))
  config = config_lib.apply_overrides(config, overrides, file)
  trust.admit(config)
  return config


@contextlib.contextmanager
def _failing(file: str) -> Iterator[None]:
  """Turn any exception of a recipe into a UserError. A `SystemExit` must not make an unstarted run
  look finished."""
  try:
    yield
  except UserError:
    raise
  except (Exception, SystemExit) as error:
    raise UserError(
      f"{file}: the recipe failed: {type(error).__name__}: {one_line(error)}"
    ) from error


def argument_choices(get_config: Callable[..., ConfigDict]) -> dict[str, tuple[str, Any]]:
  """Return the words that a recipe takes after the colon, each mapped to the parameter it sets and
  its value: `{"large": ("size", "large"), "v1_0": ("v1_0", True), "tiny": ("laptop", "tiny"), …}`.
  """
  words = {}
  kinds = typing.get_type_hints(get_config)
  for name in inspect.signature(get_config).parameters:
    if kinds.get(name) is bool:
      words[name] = name, True
    elif typing.get_origin(kinds.get(name)) is typing.Literal:
      words.update({str(value): (name, value) for value in typing.get_args(kinds[name])})
  return words | {form: ("laptop", form) for form in FORMS}


def _chosen(file: str, argument: str, choices: dict[str, tuple[str, Any]]) -> dict[str, Any]:
  """Return the parameters that an argument such as `large,debug` sets."""
  chosen = {}
  for word in filter(None, map(str.strip, argument.split(","))):
    if word not in choices:
      near = did_you_mean(word, choices)
      raise UserError(f"recipe argument {word!r}: unknown{near}; {file} takes {', '.join(choices)}")
    parameter, value = choices[word]
    if parameter in chosen:
      raise UserError(
        f"recipe argument {word!r}: found {chosen[parameter]!r} before it, expected one of the two"
      )
    chosen[parameter] = value
  return chosen


def load_module(file: str) -> types.ModuleType:
  """Import a recipe as a module.

  Recipes import one another as `configs.…`: from the current directory, and from this project's own
  recipes.

  Args:
    file: a path, or the name of one of the project's own recipes, such as `configs/t5/base.py`,
      from any directory.
  Raises:
    UserError: the file does not exist or cannot be imported.
  """
  found = pathlib.Path(file)
  if not found.is_file() and found.parts[:1] == ("configs",):
    found = CONFIGS.parent / found
  if not found.is_file() or found.suffix != ".py":
    near = names()
    raise UserError(
      f"--config={file}: no such recipe{did_you_mean(file, near)}; recipes are Python files, such "
      f"as {', '.join(near[:3])}"
    )
  _find_recipes()
  spec = importlib.util.spec_from_file_location(f"recipe_{found.stem}", found)
  loaded = importlib.util.module_from_spec(spec)
  with _failing(file):
    spec.loader.exec_module(loaded)
  return loaded


def names() -> list[str]:
  """Return the recipes in `configs/` of the current directory and of this project, such as
  `configs/t5/base.py`."""
  folders = {pathlib.Path("configs"), CONFIGS}
  return sorted(
    {
      f"configs/{path.relative_to(folder).as_posix()}"
      for folder in folders
      for path in folder.rglob("*.py")
      if path.name != "__init__.py"
    }
  )


def _find_recipes() -> None:
  """Let `import configs.…` find the recipes of the current directory first, then this project's."""
  root = str(pathlib.Path.cwd())
  if root not in sys.path:
    sys.path.insert(0, root)
  package = sys.modules.setdefault("configs", types.ModuleType("configs"))
  package.__path__ = [f"{root}/configs", str(CONFIGS)]
