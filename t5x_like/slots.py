"""Slots: turn a name with arguments, as written in a recipe, into a checked object.

A slot's value is a name, or `{"name": …}` with arguments. Names come from a registry: the public
modules of a package, each defining the requested member, or the keys of a table. A package that
only some recipes need is given by its dotted name and imported when a recipe names something in it.
The arguments and their types come from the signature. Neither is listed a second time.

  slots.make("config.schedule", {"name": "cosine", "learning_rate": 1e-3, …}, SCHEDULES)
  slots.make("config.model.design.core", "local", nn.cores, "make", rngs=rngs, dims=dims,
  causal=True)
"""

import dataclasses
import importlib
import inspect
import json
import math
import pathlib
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Unpack

from t5x_like import trust
from t5x_like.errors import UserError, did_you_mean

Registry = types.ModuleType | str | Mapping[str, Callable]


class Condition(NamedTuple):
  """A condition on a value beyond its type: `Annotated[float, Condition("a number above 0", lambda
  x: x > 0)]`."""

  describe_type: str
  holds: Callable[[Any], bool]


_INT32 = 2**31
_INT64 = 2**63
MAX_LENGTH = 2**24  # positions of a row: far beyond any model, and small enough for arithmetic
PositiveInt = Annotated[
  int, Condition("a whole number above 0 and below 2**31", lambda n: 0 < n < _INT32)
]
NonNegativeInt = Annotated[
  int, Condition("a whole number, at least 0 and below 2**31", lambda n: 0 <= n < _INT32)
]
Length = Annotated[
  int, Condition(f"a whole number from 1 to {MAX_LENGTH:,}", lambda n: 0 < n <= MAX_LENGTH)
]
NonNegativeFloat = Annotated[float, Condition("a number, at least 0", lambda x: x >= 0)]
Seconds = Annotated[
  float, Condition("0, or a number of seconds from 1 to 1e9", lambda x: x == 0 or 1 <= x <= 1e9)
]
PositiveFloat = Annotated[float, Condition("a number above 0", lambda x: x > 0)]
Rate = Annotated[float, Condition("a number, at least 0 and less than 1", lambda x: 0 <= x < 1)]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_LONGEST_NAME = 64
_NO_TEXT = re.compile(r"[\0\ud800-\udfff]")  # NUL and lone surrogates
_DEEPEST = 32  # levels of nested dicts and lists


def check_name(where: str, name: Any) -> None:
  """Check a name chosen by a recipe: of an evaluator, a phase or a part of a mixture.

  It becomes the name of metrics and files, and a part of `--config.KEY`, so it has no dots, slashes
  or spaces.

  Raises:
    UserError: it has characters other than letters, digits, _ and -, begins with _ or -, or is too
      long.
  """
  if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
    raise UserError(
      f"{where}: found the name {format_value(name)}, expected at most {_LONGEST_NAME} letters, digits, "
      "_ and -, and a letter or digit first; rename it"
    )


def names(registry: Registry) -> list[str]:
  """Return the names in a registry, sorted; modules whose names begin with an underscore are
  private."""
  if isinstance(registry, Mapping):
    return sorted(registry)
  package = importlib.import_module(registry) if isinstance(registry, str) else registry
  folders = map(pathlib.Path, package.__path__)
  return sorted(
    p.stem for folder in folders for p in folder.glob("*.py") if not p.stem.startswith("_")
  )


def name_and_arguments(where: str, value: Any) -> tuple[str | None, dict[str, Any]]:
  """Split `"rope"` or `{"name": "rope", "theta": 1e4}` into (name, arguments); a missing name is
  None.

  Raises:
    UserError: the value is neither a string nor a dict.
  """
  if isinstance(value, str):
    return value, {}
  if isinstance(value, Mapping) or hasattr(value, "to_dict"):
    arguments = dict(to_plain(value))
    return arguments.pop("name", None), arguments
  raise UserError(
    f"{where}: found {format_value(value)}, expected a name, or a name and its arguments: {{'name': …}}"
  )


def find(where: str, name: str | None, registry: Registry, member: str = "") -> Callable:
  """Return the object of a given name.

  Args:
    where: the key, for messages, such as `config.task`.
    name: a name in the registry; if the registry is a package, also `module:function`, imported by
      `t5x_like.trust`.
    member: the attribute to take from a package's module, such as `Objective`.
  Raises:
    UserError: there is no such name (suggests the nearest), or `trust.import_function` refuses.
  """
  if isinstance(name, str) and ":" in name and not isinstance(registry, Mapping):
    return trust.import_function(where, name)
  if name is not None and not isinstance(name, str):
    raise UserError(
      f"{where}: found {format_value(name)}, expected one of {', '.join(names(registry))}"
    )
  known = names(registry)
  if name not in known:
    found = "no name" if name is None else format_value(name)
    raise UserError(
      f"{where}: found {found}, expected one of {', '.join(known)}{did_you_mean(str(name), known)}"
    )
  if isinstance(registry, Mapping):
    return registry[name]
  package = registry if isinstance(registry, str) else registry.__name__
  return getattr(importlib.import_module(f"{package}.{name}"), member)


def module(name: str | None, package: types.ModuleType | str) -> types.ModuleType:
  """Import and return the module of this name from a registry package.

  Raises:
    LookupError: the package has no such public module. Look a user's name up by `names` or `find`.
  """
  modules = names(package)
  root = package if isinstance(package, str) else package.__name__
  if name not in modules:
    raise LookupError(f"{root} has no module {name!r}{did_you_mean(str(name), modules)}")
  return importlib.import_module(f"{root}.{name}")


def fill(
  where: str,
  values: Any,
  function: Callable,
  given: Sequence[str] = (),
  also: Sequence[Callable] = (),
) -> dict[str, Any]:
  """Return arguments for a function, checked against its signature and completed with its defaults.

  Args:
    where: the arguments' key, for messages.
    values: the arguments from the recipe and flags.
    function: a function, class or dataclass.
    given: parameters supplied by the program; they are not valid keys.
    also: further functions whose arguments share this key.
  Raises:
    UserError: a key is unknown or missing, a value has the wrong type, or two functions declare the
      same argument.
  """
  parameters = {}
  kinds = {}
  for one in (*also, function):
    more, their_kinds = _signature(one)
    for key in parameters.keys() & more.keys():
      raise UserError(
        f"{where}: {one.__module__}:{one.__qualname__} declares the argument {key!r}, which is a "
        "key here already; give the argument another name"
      )
    parameters = parameters | more
    kinds = kinds | their_kinds
  keys = [key for key in parameters if key not in given]
  takes = f"it takes {', '.join(keys)}" if keys else "it takes no arguments"
  values = to_plain(values)
  if not isinstance(values, Mapping):
    raise UserError(f"{where}: found {format_value(values)}, expected keys and values; {takes}")
  for key in values:
    if key not in keys:
      raise UserError(
        f"{where}.{format_value(key, '')}: unknown key{did_you_mean(key, keys)}; {takes}"
      )
  filled = {}
  for key in keys:
    default = parameters[key].default
    if key not in values and default is inspect.Parameter.empty:
      raise UserError(f"{where}.{key}: missing; {takes}")
    filled[key] = coerce(f"{where}.{key}", values.get(key, default), kinds.get(key, Any))
  return filled


def make(where: str, value: Any, registry: Registry, member: str = "", **supplied: Any) -> Any:
  """Make the object in a slot: call the named function or class with the slot's arguments.

  Args:
    where: the slot's key, for messages.
    value: a name, or {"name": …} with arguments.
    registry, member: see `find`.
    **supplied: arguments from the program; only parameters in the function's signature are passed.
  Raises:
    UserError: as `find` and `fill`.
  """
  name, arguments = name_and_arguments(where, value)
  function = find(where, name, registry, member)
  parameters, _ = _signature(function)
  supplied = {key: thing for key, thing in supplied.items() if key in parameters}
  return function(**supplied, **fill(where, arguments, function, given=tuple(supplied)))


class Slot(NamedTuple):
  """A key that names a function or class; `registry` and `member` as in `find`, `given` and `also`
  as in `fill`."""

  registry: Registry
  member: str = ""
  given: Sequence[str] = ()
  also: Sequence[Callable] = ()

  def complete(self, where: str, value: Any, usual: str | None = None) -> dict[str, Any]:
    """Return a value's name, or the usual one, and all arguments, checked; raise UserError as
    `find` and `fill`."""
    name, arguments = name_and_arguments(where, value)
    function = find(f"{where}.name", name or usual, self.registry, self.member)
    return {"name": name or usual} | fill(where, arguments, function, self.given, self.also)


def resolve_variant(model_class: type, model: Any) -> Any:
  """Return the variant of a `config.model`: a name in the family's table, or a variant given by all
  its fields."""
  table = getattr(model_class, "VARIANTS", {})
  given = to_plain(model.variant)
  if isinstance(given, str):
    return find("config.model.variant", given, table)
  return coerce(
    "config.model.variant",
    given,
    getattr(model_class, "VARIANT", None) or type(next(iter(table.values()))),
  )


def argument_names(function: Callable) -> list[str]:
  """Return the names of a function's arguments, including the fields of the records that it
  unpacks."""
  return list(_signature(function)[0])


def defaults(function: Callable) -> dict[str, Any]:
  """Return the default values of a function's arguments, by name."""
  parameters, _ = _signature(function)
  return {
    name: one.default
    for name, one in parameters.items()
    if one.default is not inspect.Parameter.empty
  }


def replace_fields(where: str, record: Any, changes: Any) -> Any:
  """Return a copy of a dataclass with some fields changed; raise UserError as `fill`."""
  changes = to_plain(changes)
  values = {**vars(record), **changes} if isinstance(changes, Mapping) else changes
  return type(record)(**fill(where, values, type(record)))


def _signature(function: Callable) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
  """Return a function's parameters and their declared types, by name.

  `**options` stand for the parameters of another signature: `**options: Unpack[Record]` for the
  fields of a dataclass, and `**options` of a class's constructor for the parameters of the
  constructor it overrides.
  """
  layers = [function]
  if inspect.isclass(function):
    layers = [vars(base)["__init__"] for base in function.__mro__[:-1] if "__init__" in vars(base)]
  parameters: dict[str, inspect.Parameter] = {}
  kinds: dict[str, Any] = {}
  for layer in layers:
    own = dict(inspect.signature(layer).parameters)
    # The fields that a dataclass inherits name types of the module that declares them.
    hints = typing.get_type_hints(
      function if dataclasses.is_dataclass(function) else layer, include_extras=True
    )
    open_ended = [
      name for name, parameter in own.items() if parameter.kind is parameter.VAR_KEYWORD
    ]
    parameters = {name: own[name] for name in own if name not in ("self", *open_ended)} | parameters
    records = [
      typing.get_args(hints[name])[0]
      for name in open_ended
      if typing.get_origin(hints.get(name)) is Unpack
    ]
    for record in records:
      fields, their_kinds = _signature(record)
      parameters = parameters | {k: v for k, v in fields.items() if k not in parameters}
      hints = their_kinds | hints
    kinds = hints | kinds
    if not open_ended:
      break
  for field in dataclasses.fields(function) if dataclasses.is_dataclass(function) else ():
    if field.name in parameters and field.default_factory is not dataclasses.MISSING:
      parameters[field.name] = parameters[field.name].replace(default=field.default_factory())
  return parameters, kinds


def coerce(where: str, value: Any, kind: Any) -> Any:
  """Return the value if it has the declared type; convert lists to declared tuples and dicts to
  declared dataclasses.

  Raises:
    UserError: it has another type.
  """
  _check_inner(where, to_plain(value))
  if isinstance(value, list) and not fits(value, kind) and fits(tuple(value), kind):
    return tuple(value)
  records = [member for member in (kind, *typing.get_args(kind)) if inspect.isclass(member)]
  record = next(filter(dataclasses.is_dataclass, records), None)
  if record and isinstance(to_plain(value), Mapping):
    return record(**fill(where, value, record))
  if not fits(value, kind):
    raise UserError(
      f"{where}: found {format_value(value)} of type {type(value).__name__}, expected "
      f"{describe_type(kind)}{_unsound(to_plain(value))}"
    )
  return value


def _check_inner(where: str, value: Any, depth: int = 0) -> None:
  """Refuse values inside dicts and lists that no key accepts, naming their key, and nesting that is
  too deep."""
  if depth > _DEEPEST:
    raise UserError(
      f"{where[:120]}: found dicts or lists more than {_DEEPEST} deep, expected fewer; flatten them"
    )
  if isinstance(value, Mapping):
    for key, one in value.items():
      if not isinstance(key, str) or _unsound(key):
        raise UserError(f"{where}: found the key {format_value(key)}, expected text{_unsound(key)}")
      _check_inner(f"{where}.{format_value(key, '')}", one, depth + 1)
  elif isinstance(value, (list, tuple)):
    for number, one in enumerate(value):
      _check_inner(f"{where}[{number}]", one, depth + 1)
  elif depth and (why := _unsound(value)):
    raise UserError(
      f"{where}: found {format_value(value)} of type {type(value).__name__}, expected one{why.strip(',')}"
    )


def _unsound(value: Any) -> str:
  """Return why no key accepts a value, for messages, such as `", finite"`; the empty string if it
  is acceptable."""
  if isinstance(value, float) and not math.isfinite(value):
    return ", finite"
  if isinstance(value, int) and not -_INT64 <= value < _INT64:
    return " of at most 64 bits"
  if isinstance(value, str) and _NO_TEXT.search(value):
    return " that UTF-8 can hold, without NUL"
  return ""


def format_value(value: Any, quoted: str = "'") -> str:
  """Format a value for a message: short, on one line, and printable."""
  text = repr(value) if quoted else str(value)
  text = text if text.isprintable() else ascii(text)[1:-1]
  return text if len(text) <= 120 else f"{text[:100]}… ({len(text):,} characters)"


def fits(value: Any, kind: Any) -> bool:
  """Return whether a value has a declared type. Integers count as floats; Booleans are not numbers.

  Whatever is declared, numbers must be finite, integers fit 64 bits, and texts be encodable as
  UTF-8.
  """
  origin = typing.get_origin(kind)
  value = to_plain(value)
  if _unsound(value):
    return False
  if kind is Any:
    return True
  if origin in (typing.Union, types.UnionType):
    return any(fits(value, member) for member in typing.get_args(kind))
  if origin is typing.Literal:
    return value in typing.get_args(kind)
  if origin is Annotated:
    inner, condition = typing.get_args(kind)
    return fits(value, inner) and condition.holds(value)
  if origin is tuple and typing.get_args(kind)[1:] == (...,):
    return isinstance(value, tuple) and all(fits(item, typing.get_args(kind)[0]) for item in value)
  if kind in (int, float):
    return isinstance(value, (int, kind)) and not isinstance(value, bool)
  return isinstance(value, origin or kind)


def describe_type(kind: Any) -> str:
  """Describe a declared type in words: `int | None` is "int or None"."""
  if typing.get_origin(kind) in (typing.Union, types.UnionType):
    return " or ".join(describe_type(member) for member in typing.get_args(kind))
  if typing.get_origin(kind) is typing.Literal:
    return " or ".join(map(repr, typing.get_args(kind)))
  if typing.get_origin(kind) is Annotated:
    return typing.get_args(kind)[1].description
  if typing.get_origin(kind) is tuple and typing.get_args(kind)[1:] == (...,):
    return f"a list of {describe_type(typing.get_args(kind)[0])}"
  return "None" if kind is types.NoneType else getattr(kind, "__name__", str(kind))


def to_json(values: Any) -> dict[str, Any]:
  """Return values as a saved config has them: lists, no tuples."""
  return json.loads(json.dumps(to_plain(values)))


def to_plain(value: Any) -> Any:
  """Convert a `ConfigDict` to a dict; return anything else unchanged."""
  return value.to_dict() if hasattr(value, "to_dict") else value
