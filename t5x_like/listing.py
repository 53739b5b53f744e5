"""List the names and keys that a recipe can use, for `--help`, `--list` and the key reference.

Names come from the folders, and arguments from the signatures.
"""

import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable
from typing import Any

import t5x_like.models
from t5x_like import config as config_lib
from t5x_like import recipes, slots
from t5x_like.architectures.design import Design
from t5x_like.checkpoints.emergency import EmergencyOptions
from t5x_like.data.task import TASKS
from t5x_like.errors import UserError, did_you_mean
from t5x_like.evals import EVALUATORS
from t5x_like.slots import Slot
from t5x_like.training import resolve

_SUPPLIED = ("rngs", "context", "split")  # arguments that the program supplies
SLOTS = {
  "model": Slot(t5x_like.models, "Model"),
  "task": TASKS,
  **resolve.SLOTS,
  "evals.NAME": EVALUATORS,
  "trackers.NAME": resolve.TRACKERS,
}
_RECORDS = {
  "model.design": Design,
  "phases.NAME": config_lib.Phase,
  "init": config_lib.Init,
  "teacher": config_lib.Teacher,
  "selection": config_lib.Selection,
  "checkpoint": config_lib.Checkpoint,
  "checkpoint.emergency": EmergencyOptions,
}
_SLOT_OF_KIND = {
  "models": "model",
  "tasks": "task",
  "objectives": "objective",
  "evaluators": "evals.NAME",
  "trackers": "trackers.NAME",
  "optimizers": "optimizer",
  "schedules": "schedule",
}
_HELP_WIDTH = 118
KINDS = ("recipes", *_SLOT_OF_KIND, "keys")


@dataclasses.dataclass(frozen=True)
class Key:
  """A key of a recipe.

  Attributes:
    name: dotted, such as `schedule.learning_rate`; `NAME` is a name that the recipe chooses.
    kind: a description of the values that it takes.
    default: the default in Python's syntax; None if the key is required.
    about: its comment or description in the source, or the empty string.
    owners: the names of the slot's objects that take it; empty if all do.
  """

  name: str
  kind: str
  default: str | None
  about: str = ""
  owners: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Group:
  """The keys of one object or record.

  Attributes:
    section: the first parts of its keys' names, such as `schedule`; empty for the top level.
    name: the `name` that selects the object; empty for a record.
    about: the first sentence of its docstring.
    keys: the keys of the section.
  """

  section: str
  name: str
  about: str
  keys: tuple[Key, ...]


def groups() -> list[Group]:
  """Return the keys of the top level, of each record, and of each object that a slot can name."""
  top = tuple(key for key in keys() if "." not in key.name)
  result = [Group("", "", first_sentence(config_lib.Recipe), top)]
  for section, slot in SLOTS.items():
    for record in slot.records:
      result.append(_record_group(section, record))
    for name in slot.names():
      slot_object = slot.find(section, name)
      described = inspect.getmodule(slot_object) if slot.member else slot_object
      section_keys = tuple(_argument_keys(section, slot_object, (name,)))
      result.append(Group(section, name, first_sentence(described), section_keys))
  for section, record in _RECORDS.items():
    result.append(_record_group(section, record))
  return result


def _record_group(section: str, record: type) -> Group:
  return Group(section, "", first_sentence(record), tuple(_argument_keys(section, record)))


def first_sentence(described: Any) -> str:
  """Return the first sentence of an object's docstring."""
  paragraph = (inspect.getdoc(described) or "").partition("\n\n")[0]
  return re.split(r"(?<=[.])\s+(?=[A-Z`])", " ".join(paragraph.split()))[0]


def keys() -> list[Key]:
  """Return every key of a recipe, section by section."""
  result = []
  comments = _comments(config_lib.Recipe)
  hints = typing.get_type_hints(config_lib.Recipe, include_extras=True)
  for field in dataclasses.fields(config_lib.Recipe):
    sections = [name for name in (*SLOTS, *_RECORDS) if name.partition(".")[0] == field.name]
    has_default = field.default is not dataclasses.MISSING
    if has_default or not sections:
      default = field.default if has_default else field.default_factory()
      description = slots.describe_type(hints[field.name])
      comment = comments.get(field.name, "")
      result.append(Key(field.name, description, repr(default), comment))
    for section in sections:
      if section in _RECORDS:
        result += _argument_keys(section, _RECORDS[section])
      else:
        result += _slot_keys(section)
  return result


def _argument_keys(section: str, function: Callable, owners: tuple[str, ...] = ()) -> list[Key]:
  """Return the keys of a section that are the arguments of a function, class or record."""
  descriptions = _argument_descriptions(function)
  result = []
  for name, argument in slots.read_arguments(function).items():
    if name in _SUPPLIED:
      continue
    default = None if argument.default is slots.REQUIRED else repr(argument.default)
    kind = slots.describe_type(argument.declared_type)
    result.append(Key(f"{section}.{name}", kind, default, descriptions.get(name, ""), owners))
  return result


def _slot_keys(section: str) -> list[Key]:
  """Return the keys of a slot: its name, its records' fields and all its objects' arguments."""
  slot = SLOTS[section]
  choices = slot.names()
  name_key = f"{section}.name"
  result = {name_key: Key(name_key, "one of " + ", ".join(choices), None)}
  for record in slot.records:
    result |= {key.name: key for key in _argument_keys(section, record)}
  arguments: dict[str, Key] = {}
  for choice in choices:
    for key in _argument_keys(section, slot.find(section, choice), (choice,)):
      first = arguments.get(key.name)
      if first:
        key = dataclasses.replace(first, owners=(*first.owners, choice))
      arguments[key.name] = key
  for name, key in arguments.items():
    if len(key.owners) == len(choices):
      key = dataclasses.replace(key, owners=())
    result.setdefault(name, key)
  return list(result.values())


def _comments(record: type) -> dict[str, str]:
  """Return the comments of a dataclass's fields: after a field, or in the lines above it."""
  comments = {}
  above = []
  for line in inspect.getsource(record).splitlines():
    comment = re.fullmatch(r"\s+# (.*)", line)
    if comment:
      above.append(comment[1])
      continue
    field = re.match(r"\s+(\w+): [^#]*(?:  # (.*))?$", line)
    if field:
      comments[field[1]] = field[2] or " ".join(above)
    above = []
  return comments


def _argument_descriptions(function: Callable) -> dict[str, str]:
  """Return the arguments' descriptions in docstrings of a function, or of a class and its bases."""
  documented = [function]
  if inspect.isclass(function):
    documented = []
    for base in function.__mro__[:-1]:
      documented.append(base)
      if "__init__" in vars(base):
        documented.append(vars(base)["__init__"])
  descriptions: dict[str, str] = {}
  for layer in documented:
    descriptions = _parse_descriptions(inspect.cleandoc(layer.__doc__ or "")) | descriptions
  return descriptions


def _parse_descriptions(doc: str) -> dict[str, str]:
  """Return the descriptions under "Attributes:" or "Args:" of a docstring, by name.

  Several names, separated by commas, may share a description.
  """
  descriptions: dict[str, str] = {}
  _, _, section = re.sub(r"\n(Args|Attributes):\n", "\n\0", doc, count=1).partition("\0")
  names: list[str] = []
  for line in section.splitlines():
    if line and not line.startswith(" "):
      break
    entry = re.match(r"  (\w[\w, ]*): (.*)", line)
    if entry:
      names = entry[1].split(", ")
      descriptions |= dict.fromkeys(names, entry[2])
    elif line.strip():
      for name in names:
        descriptions[name] += f" {line.strip()}"
  return descriptions


def format_list(kind: str) -> str:
  """Return the list for `--list KIND`, a name a line; raise UserError for an unknown kind."""
  if kind not in KINDS:
    raise UserError(f"--list={kind}: expected one of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
  if kind == "keys":
    return "\n".join(_key_line(key) for key in keys())
  if kind == "recipes":
    described = {name: recipes.load_module(name) for name in recipes.names()}
  else:
    slot = SLOTS[_SLOT_OF_KIND[kind]]
    described = {name: slot.find(kind, name) for name in slot.names()}
    if slot.member:
      described = {name: inspect.getmodule(found) for name, found in described.items()}
  return "\n".join(_name_lines(described))


def overview() -> str:
  """Return the names that a recipe can choose from, for the end of `--help`."""
  names_by_kind = {"recipes": recipes.names()}
  for kind in ("models", "tasks", "objectives", "evaluators"):
    names_by_kind[kind] = SLOTS[_SLOT_OF_KIND[kind]].names()
  names_by_kind["keys"] = [field.name for field in dataclasses.fields(config_lib.Recipe)]
  paragraphs = []
  for kind, names in names_by_kind.items():
    text = f"{kind}: {', '.join(names)}"
    paragraphs.append(textwrap.fill(text, _HELP_WIDTH, subsequent_indent="  "))
  return "\n".join([*paragraphs, f"--list KIND describes one of {', '.join(KINDS)}."])


def suggest_flag(flag: str) -> str:
  """Return a suggestion for a flag that lacks its section or first word, or the empty string.

  `--learning_rate=0.1` gets `" (did you mean --config.schedule.learning_rate=0.1?)"`, and
  `--steps=9` is offered `--config.total_steps=9`.
  """
  if not flag.startswith("--"):
    return ""
  name, equals, value = flag.lstrip("-").partition("=")
  name = name.removeprefix("config.").replace("-", "_")
  last_parts = {key.name: key.name.rpartition(".")[2] for key in keys()}
  candidates = [key for key, last in last_parts.items() if name in (key, last)]
  candidates += [key for key in last_parts if "." not in key and key.endswith(f"_{name}")]
  if not candidates:
    suggestion = did_you_mean(name, [*last_parts.values(), *last_parts])
    nearest = suggestion.partition("'")[2].partition("'")[0]
    candidates = [key for key, last in last_parts.items() if nearest and nearest in (key, last)]
  if not candidates:
    return ""
  # Keys with few parts and without `NAME` come first.
  candidates.sort(key=lambda key: (".NAME." in key, key.count(".")))
  candidates = [key for key in candidates if ".NAME." not in key] or candidates
  flags = [f"--config.{key}{equals}{value}" for key in candidates[:2]]
  return f" (did you mean {' or '.join(flags)}?)"


def _name_lines(described: dict[str, types.ModuleType | Callable]) -> list[str]:
  """Return a line for each name: the name and the first line of its object's docstring."""
  width = max(len(name) for name in described)
  lines = []
  for name, documented in described.items():
    summary = (inspect.getdoc(documented) or "").partition("\n")[0]
    lines.append(f"{name:<{width}}  {summary}".rstrip())
  return lines


def _key_line(key: Key) -> str:
  default = "" if key.default is None else f" = {key.default}"
  owners = f" [{', '.join(key.owners)}]" if key.owners else ""
  description = f"  {key.about}" if key.about else ""
  return f"{key.name}{default}  ({key.kind}){owners}{description}"
