"""Recipes: how a file in `configs/` and the `--config.…` flags become one checked `ConfigDict`.

A recipe is a Python file with `get_config(arg)`; it starts from `defaults()` and fills in its table. Top-level keys
are those of `defaults()` and no others. A *slot* (`model`, `task`, `optimizer`, …) is a dict whose `name` picks an
object and whose other keys are its arguments; see `t5x_like.slots`.
"""

import hashlib
import importlib.util
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from t5x_like import slots
from t5x_like.errors import UserError, did_you_mean, one_line


def defaults() -> ConfigDict:
  """Every key a recipe has, with the value it has when the recipe is silent."""
  config = ConfigDict()
  config.model = {}  # name: a module of models/; the rest are arguments of its Model
  config.task = {}  # name: a module of data/tasks/; the rest are arguments of its task()
  config.phases = {}  # other arguments of the task up to a step; see training/phases.py
  config.train_split = "train"
  config.eval_split = "validation"
  config.objective = {"name": "encoder_decoder"}
  config.batch_size = 128  # examples in one step, over all devices and all accumulation steps
  config.accumulation_steps = 1
  config.total_steps = 1000
  config.seed = 0
  config.optimizer = {"name": "adafactor"}
  config.schedule = {"name": "rsqrt"}
  config.clip_norm = 0.0  # global gradient norm; 0 does not clip
  config.mesh = {"data": -1}  # length of each mesh axis, -1 for "what is left"
  config.rules = {}  # changes to parallel.rules.DEFAULT
  config.evals = {"loss": {}}  # modules of evals/ and their arguments
  config.eval_every = 1000
  config.log_every = 1
  config.checkpoint = {"every": 1000, "keep_last": 3}
  config.peak_flops = 0.0  # per device, for the MFU; 0 looks the device up
  return config


def load(path: str, overrides: Sequence[str] = ()) -> ConfigDict:
  """Reads a recipe and applies `key=value` overrides.

  Args:
    path: `configs/t5/small.py`, or with an argument for `get_config`, `configs/t5/small.py:debug`.
    overrides: such as `model.dropout=0.1`, left to right. Values are JSON, or else plain strings. Another `name` for a
      slot (`optimizer.name=adamw`) leaves the arguments of the old one behind.
  Raises:
    UserError: no such recipe, a recipe that fails, a key that does not exist, or a value of the wrong type.
  """
  file, _, arg = path.partition(":")
  if not pathlib.Path(file).is_file() or not file.endswith(".py"):
    near = sorted(p.as_posix() for p in pathlib.Path("configs").rglob("*.py") if p.name != "__init__.py")
    raise UserError(
      f"--config={path}: no recipe {file!r}{did_you_mean(file, near)}; recipes are Python files, such as"
      f" {', '.join(near[:3])}"
    )
  spec = importlib.util.spec_from_file_location(f"recipe_{pathlib.Path(file).stem}", file)
  recipe = importlib.util.module_from_spec(spec)
  root = str(pathlib.Path.cwd())
  if root not in sys.path:
    sys.path.insert(0, root)
  try:
    spec.loader.exec_module(recipe)
    config = recipe.get_config(arg) if arg else recipe.get_config()
  except UserError:
    raise
  except Exception as error:
    raise UserError(f"{file}: the recipe failed: {type(error).__name__}: {one_line(error)}") from error
  return _checked(config, overrides, file)


def restored(saved: dict[str, Any], overrides: Sequence[str], origin) -> ConfigDict:
  """The config a run saved (other keys are left out), with overrides applied.

  Raises:
    UserError: a key is missing, or as `load`.
  """
  known = defaults()
  missing = [key for key in known if key not in saved]
  if missing:
    raise UserError(f"{origin}: key {missing[0]!r} is missing; it was written by another version or is damaged")
  return _checked(ConfigDict({key: saved[key] for key in known}), overrides, origin)


def _checked(config: ConfigDict, overrides: Sequence[str], origin) -> ConfigDict:
  known = defaults()
  if not isinstance(config, ConfigDict) or not set(known) <= set(config):
    raise UserError(f"{origin}: get_config gives a {type(config).__name__}, expected all of config.defaults(), changed")
  for key in config:
    if key not in known:
      raise UserError(f"{origin}: unknown key {key!r}{did_you_mean(key, known)}")
  names_first = sorted(overrides, key=lambda override: not override.partition("=")[0].endswith(".name"))
  for override in names_first:
    _override(config, override)
  for key, default in known.items():
    slots.typed(f"config.{key}", config[key], dict if isinstance(default, ConfigDict) else type(default))
  return config


def _override(config: ConfigDict, override: str) -> None:
  key, equals, text = override.partition("=")
  if not equals:
    raise UserError(f"--config.{key}: found no value, expected --config.{key}=VALUE")
  *path, last = key.split(".")
  node, where = config, "config"
  for part in path:
    if isinstance(node, ConfigDict) and node is not config and part not in node:
      with node.unlocked():
        node[part] = {}  # whoever takes the slot's arguments refuses what it does not know
    if not isinstance(node, ConfigDict) or part not in node:
      raise UserError(f"--config.{key}: {where} has no key {part!r}{_near(part, node)}")
    node, where = node[part], f"{where}.{part}"
  if not isinstance(node, ConfigDict):
    raise UserError(f"--config.{key}: {where} is {node!r}, which has no keys")
  if last not in node and node is config:
    raise UserError(f"--config.{key}: {where} has no key {last!r}{_near(last, node)}")
  value = _value(text)
  if last in node and isinstance(node[last], ConfigDict) and not isinstance(value, dict):
    raise UserError(f"--config.{key}: found {text!r}, expected one of its keys, --config.{key}.KEY=VALUE")
  old = node.get(last)
  if isinstance(old, str) and old != "auto" and not isinstance(value, (dict, list)):
    value = text  # a number or truth value where a word stands is a word
  with node.unlocked(), node.ignore_type():
    if last == "name" and len(path) == 1 and value != old:  # the arguments of what was there before mean nothing to it
      for argument in [k for k in node if k != "name"]:
        del node[argument]
    node[last] = float(value) if isinstance(old, float) and type(value) is int else value


def _near(word: str, node) -> str:
  return did_you_mean(word, node.keys()) if isinstance(node, ConfigDict) else ""


def _value(text: str) -> Any:
  words = {"True": True, "False": False, "None": None}
  if text in words:
    return words[text]
  try:
    return json.loads(text)
  except ValueError:
    return text


def words(arg: str, known: Sequence[str]) -> list[str]:
  """The words of a recipe's argument (`configs/t5/small.py:v1_0,debug`), each one of `known`.

  Raises:
    UserError: naming the one that is not.
  """
  found = [word.strip() for word in arg.split(",") if word.strip()]
  for word in found:
    if word not in known:
      raise UserError(
        f"recipe argument {word!r}: unknown{did_you_mean(word, known)}; the recipe takes {', '.join(known)}"
      )
  return found


def to_json(config: ConfigDict) -> str:
  return json.dumps(config.to_dict(), indent=2, sort_keys=True)


def digest(config: ConfigDict) -> str:
  """A hash of the whole config: 16 hexadecimal digits."""
  return hashlib.sha256(to_json(config).encode()).hexdigest()[:16]


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
  """`{"model": {"name": "t5"}}` -> `{"model.name": "t5"}`."""
  out = {}
  for key, value in tree.items():
    if isinstance(value, dict):
      out.update(flat(value, f"{prefix}{key}."))
    else:
      out[f"{prefix}{key}"] = value
  return out
