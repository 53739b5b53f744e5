"""Load recipes: a file in `configs/`, its argument and flags become one checked `ConfigDict`.

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
from t5x_like import trust
from t5x_like.errors import UserError, did_you_mean, one_line

FORMS = ("tiny", "debug")  # laptop forms, made by `t5x_like.laptop`
_PACKAGE = pathlib.Path(__file__).parent
# In a wheel the recipes are inside the package, in a clone next to it.
CONFIGS = next(
  folder / "configs" for folder in (_PACKAGE, _PACKAGE.parent) if (folder / "configs").is_dir()
)


def load(path: str, overrides: Sequence[str] = ()) -> ConfigDict:
  """Read a recipe and apply `key=value` overrides.

  Functions that the recipe names may be imported, see `t5x_like.trust`.

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
  with _report_failures(file):
    parameters = _parse_argument(file, argument, argument_choices(recipe.get_config))
    laptop_form = parameters.pop("laptop", None)
    config = recipe.get_config(**parameters)
    config_lib.check_keys(config, file)
    if laptop_form:
      from t5x_like import laptop  # imports all models and tasks

      laptop.shrink(config, laptop_form, getattr(recipe, "LAPTOP", {}))
  config = config_lib.apply_overrides(config, overrides, file)
  if laptop_form and not any(override.startswith("evals") for override in overrides):
    laptop.drop_span_infilling(config)
  trust.admit(config)
  return config


@contextlib.contextmanager
def _report_failures(file: str) -> Iterator[None]:
  """Turn any exception of a recipe into a UserError.

  `SystemExit` too, with whose exit code a run that never started might seem finished.
  """
  try:
    yield
  except UserError:
    raise
  except (Exception, SystemExit) as error:
    raise UserError(
      f"{file}: the recipe failed: {type(error).__name__}: {one_line(error)}"
    ) from error


def argument_choices(get_config: Callable[..., ConfigDict]) -> dict[str, tuple[str, Any]]:
  """Return the options that a recipe takes after the colon, with the parameter and value each sets.

  An example is `{"large": ("size", "large"), "v1_0": ("v1_0", True), "tiny": ("laptop", "tiny")}`.
  """
  choices = {}
  hints = typing.get_type_hints(get_config)
  for name in inspect.signature(get_config).parameters:
    if hints.get(name) is bool:
      choices[name] = name, True
    elif typing.get_origin(hints.get(name)) is typing.Literal:
      choices.update({str(value): (name, value) for value in typing.get_args(hints[name])})
  return choices | {form: ("laptop", form) for form in FORMS}


def _parse_argument(
  file: str, argument: str, choices: dict[str, tuple[str, Any]]
) -> dict[str, Any]:
  """Return the parameters that an argument such as `large,debug` sets."""
  parameters = {}
  for option in argument.split(","):
    option = option.strip()
    if not option:
      continue
    if option not in choices:
      near = did_you_mean(option, choices)
      raise UserError(
        f"recipe argument {option!r}: unknown{near}; {file} takes {', '.join(choices)}"
      )
    parameter, value = choices[option]
    if parameter in parameters:
      raise UserError(
        f"recipe argument {option!r}: found {parameters[parameter]!r} before it, expected one "
        "of the two"
      )
    parameters[parameter] = value
  return parameters


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
  path = pathlib.Path(file)
  if not path.is_file() and path.parts[:1] == ("configs",):
    path = CONFIGS.parent / path
  if not path.is_file() or path.suffix != ".py":
    recipe_names = names()
    raise UserError(
      f"--config={file}: no such recipe{did_you_mean(file, recipe_names)}; recipes are Python "
      f"files, such as {', '.join(recipe_names[:3])}"
    )
  _find_recipes()
  spec = importlib.util.spec_from_file_location(f"recipe_{path.stem}", path)
  recipe = importlib.util.module_from_spec(spec)
  with _report_failures(file):
    spec.loader.exec_module(recipe)
  return recipe


def names() -> list[str]:
  """Return the recipes of the current directory and this project, such as `configs/t5/base.py`."""
  recipe_names = set()
  for folder in (pathlib.Path("configs"), CONFIGS):
    for path in folder.rglob("*.py"):
      if path.name != "__init__.py":
        recipe_names.add(f"configs/{path.relative_to(folder).as_posix()}")
  return sorted(recipe_names)


def _find_recipes() -> None:
  """Let `import configs.…` find the recipes of the current directory first, then this project's."""
  root = str(pathlib.Path.cwd())
  if root not in sys.path:
    sys.path.insert(0, root)
  package = sys.modules.setdefault("configs", types.ModuleType("configs"))
  package.__path__ = [f"{root}/configs", str(CONFIGS)]
