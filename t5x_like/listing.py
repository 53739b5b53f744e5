"""The names in a recipe, for `--help`, `--list` and the key reference: recipes, models, tasks, …
and keys.

Names come from the folders, and arguments from the signatures: nothing is listed here a second
time.
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
import t5x_like.objectives
from t5x_like import config as config_lib
from t5x_like import evals, recipes, slots
from t5x_like.architectures.design import Design
from t5x_like.checkpoints.emergency import EmergencyOptions
from t5x_like.data import tasks
from t5x_like.errors import UserError, did_you_mean
from t5x_like.training import tunings
from t5x_like.training.guard import GUARDS
from t5x_like.training.optimizer import OPTIMIZERS
from t5x_like.training.schedule import SCHEDULES

_GIVEN = ("rngs", "schedule", "context", "split")  # arguments that the program supplies
# The slots of a recipe: the objects that each can name, and the records whose keys it has besides.
_SLOTS: dict[str, tuple[slots.Registry, str, tuple[type, ...]]] = {
  "model": (t5x_like.models, "Model", ()),
  "task": (tasks, "task", (config_lib.Corpus,)),
  "objective": (t5x_like.objectives, "Objective", ()),
  "optimizer": (OPTIMIZERS, "", (config_lib.OptimizerMemory,)),
  "schedule": (SCHEDULES, "", ()),
  "guard": (GUARDS, "", ()),
  "tuning": (tunings, "make", ()),
  "evals.NAME": (evals, "Evaluator", (config_lib.Instance,)),
  "trackers.NAME": ("t5x_like.report.trackers", "Tracker", ()),
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
_LISTED = {
  "models": "model",
  "tasks": "task",
  "objectives": "objective",
  "evaluators": "evals.NAME",
  "trackers": "trackers.NAME",
  "optimizers": "optimizer",
  "schedules": "schedule",
}
KINDS = ("recipes", *_LISTED, "keys")


@dataclasses.dataclass(frozen=True)
class Key:
  """A key of a recipe.

  Attributes:
    name: dotted, such as `schedule.learning_rate`; `NAME` stands for a name that the recipe
      chooses.
    kind: the values that it takes, in words.
    default: as a recipe writes it; None if there is none, so that it must be given.
    about: its comment in the source, or the empty string.
    of: the names of the slot's objects that take it; empty if all do.
  """

  name: str
  kind: str
  default: str | None
  about: str = ""
  of: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Group:
  """The keys of one object or record.

  Attributes:
    section: as in `Key.name`; empty for the top level.
    name: the `name` that selects the object; empty for a record.
    about: the first sentence of its docstring.
    keys: their names begin with the section.
  """

  section: str
  name: str
  about: str
  keys: tuple[Key, ...]


def groups() -> list[Group]:
  """Return the keys of the top level, of each record, and of each object that a slot can name."""
  top = tuple(key for key in keys() if "." not in key.name)
  found = [Group("", "", first_sentence(config_lib.Recipe), top)]
  for section in [*_SLOTS, *_RECORDS]:
    registry, member, records = _SLOTS.get(section, ({}, "", (_RECORDS.get(section),)))
    found += [
      Group(section, "", first_sentence(record), tuple(_record(section, record)))
      for record in records
    ]
    for name in slots.names(registry):
      one = slots.find(section, name, registry, member)
      about = first_sentence(inspect.getmodule(one) if member else one)
      found.append(Group(section, name, about, tuple(_record(section, one, (name,)))))
  return found


def first_sentence(thing: Any) -> str:
  """Return the first sentence of a docstring."""
  text = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
  return re.split(r"(?<=[.])\s+(?=[A-Z`])", text)[0]


def keys() -> list[Key]:
  """Return every key of a recipe, by its section."""
  found = []
  comments = _comments(config_lib.Recipe)
  hints = typing.get_type_hints(config_lib.Recipe, include_extras=True)
  sections = [*_SLOTS, *_RECORDS]
  for field in dataclasses.fields(config_lib.Recipe):
    inside = [section for section in sections if section.partition(".")[0] == field.name]
    if field.default is not dataclasses.MISSING or not inside:
      default = (
        field.default if field.default is not dataclasses.MISSING else field.default_factory()
      )
      found.append(
        Key(
          field.name,
          slots.describe_type(hints[field.name]),
          repr(default),
          comments.get(field.name, ""),
        )
      )
    for section in inside:
      found += _record(section, _RECORDS[section]) if section in _RECORDS else _slot(section)
  return found


def _record(section: str, record: Callable, of: tuple[str, ...] = ()) -> list[Key]:
  hints = typing.get_type_hints(
    record.__init__ if inspect.isclass(record) else record, include_extras=True
  )
  usual = slots.defaults(record)
  about = _described_arguments(record)
  return [
    Key(
      f"{section}.{name}",
      slots.describe_type(hints.get(name, Any)),
      repr(usual[name]) if name in usual else None,
      about.get(name, ""),
      of,
    )
    for name in slots.argument_names(record)
    if name not in _GIVEN
  ]


def _slot(section: str) -> list[Key]:
  """Return the keys of a slot: its name, those of its records, and the arguments of all objects
  that it can name."""
  registry, member, records = _SLOTS[section]
  choices = slots.names(registry)
  found = {f"{section}.name": Key(f"{section}.name", "one of " + ", ".join(choices), None)}
  for record in records:
    found |= {key.name: key for key in _record(section, record)}
  shared: dict[str, Key] = {}
  for choice in choices:
    for key in _record(section, slots.find(section, choice, registry, member), (choice,)):
      before = shared.get(key.name)
      shared[key.name] = dataclasses.replace(
        before or key, of=(before.of if before else ()) + (choice,)
      )
  for key in shared.values():
    found.setdefault(
      key.name, dataclasses.replace(key, of=() if len(key.of) == len(choices) else key.of)
    )
  return list(found.values())


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


def _described_arguments(function: Callable) -> dict[str, str]:
  """Return the descriptions under "Args:" or "Attributes:" of a function or, for a class, of its
  bases as well."""
  layers = [function]
  if inspect.isclass(function):
    layers = [
      part for base in function.__mro__[:-1] for part in (base, vars(base).get("__init__")) if part
    ]
  found: dict[str, str] = {}
  for layer in layers:
    found = _attributes(inspect.cleandoc(layer.__doc__ or "")) | found
    if inspect.isroutine(layer) and not dataclasses.is_dataclass(function):
      kinds = typing.get_type_hints(layer).values()
      # **options of a record
      for kind in (kind for kind in kinds if typing.get_origin(kind) is typing.Unpack):
        found = _described_arguments(typing.get_args(kind)[0]) | found
  return found


def _attributes(doc: str) -> dict[str, str]:
  """Return the descriptions under "Attributes:" or "Args:" of a docstring, by name; several names
  may share one."""
  found: dict[str, str] = {}
  _, _, section = re.sub(r"\n(Args|Attributes):\n", "\n\0", doc, count=1).partition("\0")
  names: list[str] = []
  for line in section.splitlines():
    if line and not line.startswith(" "):
      break
    if match := re.match(r"  (\w[\w, ]*): (.*)", line):
      names = match[1].split(", ")
      found |= dict.fromkeys(names, match[2])
    elif line.strip():
      found |= {name: f"{found[name]} {line.strip()}" for name in names}
  return found


def format_list(kind: str) -> str:
  """Return the list for `--list KIND`, a name a line; raise UserError for an unknown kind."""
  if kind not in KINDS:
    raise UserError(f"--list={kind}: expected one of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
  if kind == "recipes":
    return "\n".join(_described({name: recipes.load_module(name) for name in recipes.names()}))
  if kind == "keys":
    return "\n".join(map(_line, keys()))
  registry, member, _ = _SLOTS[_LISTED[kind]]
  named = {name: slots.find(kind, name, registry, member) for name in slots.names(registry)}
  return "\n".join(
    _described({name: inspect.getmodule(one) if member else one for name, one in named.items()})
  )


def overview() -> str:
  """Return the names that a recipe can choose from, for the end of `--help`."""
  shown = {"recipes": recipes.names()}
  shown |= {
    kind: slots.names(_SLOTS[_LISTED[kind]][0])
    for kind in ("models", "tasks", "objectives", "evaluators")
  }
  shown["keys"] = [field.name for field in dataclasses.fields(config_lib.Recipe)]
  wrapped = (
    textwrap.fill(f"{kind}: {', '.join(names)}", 118, subsequent_indent="  ")
    for kind, names in shown.items()
  )
  return "\n".join([*wrapped, f"--list KIND describes one of {', '.join(KINDS)}."])


def suggest_flag(word: str) -> str:
  """Return `" (did you mean --config.schedule.learning_rate=0.1?)"` for a flag that lacks its
  section, or nothing."""
  name, equals, value = word.lstrip("-").partition("=")
  names = {key.name: key.name.rpartition(".")[2] for key in keys()}
  name = name.removeprefix("config.").replace("-", "_")
  found = [key for key, last in names.items() if name in (key, last)]
  if not found:
    near = did_you_mean(name, [*names.values(), *names]).partition("'")[2].partition("'")[0]
    found = [key for key, last in names.items() if near and near in (key, last)]
  if not word.startswith("--") or not found:
    return ""
  found = sorted(found, key=lambda key: (".NAME." in key, key.count(".")))
  found = [key for key in found if ".NAME." not in key] or found
  return (
    f" (did you mean --config.{' or --config.'.join(key + equals + value for key in found[:2])}?)"
  )


def _described(named: dict[str, types.ModuleType | Callable]) -> list[str]:
  width = max(map(len, named))
  return [
    f"{name:<{width}}  {(inspect.getdoc(one) or '').partition(chr(10))[0]}".rstrip()
    for name, one in named.items()
  ]


def _line(key: Key) -> str:
  default = "" if key.default is None else f" = {key.default}"
  of = f" [{', '.join(key.of)}]" if key.of else ""
  return f"{key.name}{default}  ({key.kind}){of}{'  ' + key.about if key.about else ''}"
