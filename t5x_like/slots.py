"""Slots: turn a name with arguments, as written in a recipe, into a checked object.

A slot's value is a name, or `{"name": …}` with arguments. Names come from a registry: the public
modules of a package, each defining the requested member, or the keys of a table. A package that
only some recipes need is given by its dotted name and imported when a recipe names something in it.
Arguments and their types are the fields of a frozen dataclass, which a `Slot` requires by its
`base`, or the parameters of a layer's constructor or of a function. There is no second list.

The topics of `t5x_like/contrib` extend these packages: a folder of a topic that is named like the
last part of a package adds its public modules, so `contrib/retrieval/tasks/open_qa.py` is the task
`open_qa` among those of `t5x_like.data.tasks`.

  OPTIMIZERS.make("config.optimizer", {"name": "lion", "b1": 0.95})
  slots.make("config.schedule", {"name": "cosine", "learning_rate": 1e-3, …}, SCHEDULES)
  slots.make(
    "config.model.design.core", "local", nn.cores, "make", rngs=rngs, dims=dims, causal=True
  )
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
from typing import Annotated, Any, NamedTuple

from t5x_like import trust
from t5x_like.errors import UserError, did_you_mean

Registry = types.ModuleType | str | Mapping[str, Callable]


class Condition(NamedTuple):
  """A condition on a value beyond its type.

  It annotates the type: `Annotated[float, Condition("a number above 0", lambda x: x > 0)]`.

  Attributes:
    description: the values that meet it, for error messages.
    holds: whether a value of the type meets it.
  """

  description: str
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

_PACKAGE = __name__.partition(".")[0]
_CONTRIB = pathlib.Path(__file__).parent / "contrib"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_MAX_NAME_LENGTH = 64
_NO_TEXT = re.compile(r"[\0\ud800-\udfff]")  # NUL and lone surrogates
_RENAMED_KEYS = "renamed_keys"  # the attribute that `rename_keys` sets
_MAX_DEPTH = 32  # levels of nested dicts and lists
REQUIRED = inspect.Parameter.empty  # the default of an argument that has none


class Argument(NamedTuple):
  """The declared type of an argument and its default, or `REQUIRED`."""

  declared_type: Any
  default: Any


def check_name(where: str, name: Any) -> None:
  """Check the name of an evaluator, a phase or a part of a mixture, which a recipe chooses.

  It becomes the name of metrics and files, and a part of `--config.KEY`, so it has no dots, slashes
  or spaces.

  Raises:
    UserError: it has characters other than letters, digits, _ and -, begins with _ or -, or is too
      long.
  """
  if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _MAX_NAME_LENGTH:
    raise UserError(
      f"{where}: found the name {format_value(name)}, expected at most {_MAX_NAME_LENGTH} letters, "
      "digits, _ and -, and a letter or digit first; rename it"
    )


def names(registry: Registry) -> list[str]:
  """Return the sorted names in a registry, without modules whose names begin with an underscore."""
  if isinstance(registry, Mapping):
    return sorted(registry)
  return sorted(_module_paths(registry))


def _module_paths(registry: types.ModuleType | str) -> dict[str, str]:
  """Return the dotted paths of a registry's public modules, the topics' included, by name.

  Raises:
    UserError: two modules have the same name.
  """
  package = importlib.import_module(registry) if isinstance(registry, str) else registry
  packages = {package.__name__: package.__path__}
  root, _, folder_name = package.__name__.rpartition(".")
  if root.split(".")[0] == _PACKAGE:
    for folder in sorted(_CONTRIB.glob(f"*/{folder_name}")):
      topic = folder.parent.name
      packages[f"{_PACKAGE}.contrib.{topic}.{folder_name}"] = [str(folder)]
  paths = {}
  for package_name, folders in packages.items():
    for folder in folders:
      for file in pathlib.Path(folder).glob("[!_]*.py"):
        path = f"{package_name}.{file.stem}"
        first_path = paths.setdefault(file.stem, path)
        if path != first_path:
          raise UserError(
            f"{package.__name__}: found {file.stem!r} twice, as {first_path} and {path}, expected "
            "one module of a name; rename one"
          )
  return paths


def name_and_arguments(where: str, value: Any) -> tuple[str | None, dict[str, Any]]:
  """Split `"rope"` or `{"name": "rope", "theta": 1e4}` into (name or None, arguments).

  Raises:
    UserError: the value is neither a string nor a dict.
  """
  if isinstance(value, str):
    return value, {}
  if isinstance(value, Mapping) or hasattr(value, "to_dict"):
    arguments = dict(to_plain(value))
    return arguments.pop("name", None), arguments
  raise UserError(
    f"{where}: found {format_value(value)}, expected a name, or a name and its arguments: "
    "{'name': …}"
  )


def find(where: str, name: str | None, registry: Registry, member: str = "") -> Callable:
  """Return the object of a given name.

  Args:
    where: the key, for error messages, such as `config.task`.
    name: a name in the registry, or `module:function`, imported by `t5x_like.trust`.
    member: the attribute to take from a package's module, such as `Objective`.
  Raises:
    UserError: there is no such name (suggests the nearest), or `trust.import_function` refuses.
  """
  if isinstance(name, str) and ":" in name:
    return trust.import_function(where, name)
  if name is not None and not isinstance(name, str):
    raise UserError(
      f"{where}: found {format_value(name)}, expected one of {', '.join(names(registry))}"
    )
  entries = registry if isinstance(registry, Mapping) else _module_paths(registry)
  if name not in entries:
    candidates = sorted(entries)
    spelling = "no name" if name is None else format_value(name)
    raise UserError(
      f"{where}: found {spelling}, expected one of {', '.join(candidates)}"
      f"{did_you_mean(str(name), candidates)}"
    )
  if isinstance(registry, Mapping):
    return registry[name]
  return getattr(importlib.import_module(entries[name]), member)


def module(name: str | None, package: types.ModuleType | str) -> types.ModuleType:
  """Import and return the module of this name from a registry package.

  Raises:
    LookupError: the package has no such public module. For a name from the user, call `find`, which
      raises UserError.
  """
  paths = _module_paths(package)
  if name not in paths:
    root = package if isinstance(package, str) else package.__name__
    hint = did_you_mean(str(name), sorted(paths))
    raise LookupError(f"{root} has no module {name!r}{hint}")
  return importlib.import_module(paths[name])


def rename_keys(**new_keys: str) -> Callable[[Callable], Callable]:
  """Return a decorator that names the successors of a function's or class's former arguments.

  `fill` refuses a former argument with the name of its successor.
  """

  def decorate(function: Callable) -> Callable:
    setattr(function, _RENAMED_KEYS, new_keys)
    return function

  return decorate


def fill(
  where: str,
  values: Any,
  function: Callable,
  supplied: Sequence[str] = (),
  records: Sequence[Callable] = (),
) -> dict[str, Any]:
  """Return arguments for a function, checked against its signature and completed with its defaults.

  Args:
    where: the arguments' key, for error messages.
    values: the arguments from the recipe and flags.
    function: a dataclass, another class or a function.
    supplied: arguments that the program supplies; they are not valid keys.
    records: further dataclasses or functions whose arguments are keys of the same dict.
  Raises:
    UserError: a key is unknown or missing, a value has the wrong type, or two functions declare the
      same argument.
  """
  arguments = _merge_signatures(where, (*records, function))
  keys = [key for key in arguments if key not in supplied]
  expected = f"it takes {', '.join(keys)}" if keys else "it takes no arguments"
  values = to_plain(values)
  if not isinstance(values, Mapping):
    raise UserError(f"{where}: found {format_value(values)}, expected keys and values; {expected}")
  for key in values:
    if key not in keys:
      full_key = f"{where}.{format_value(key, '')}"
      new_key = getattr(function, _RENAMED_KEYS, {}).get(key)
      if new_key is not None:
        raise UserError(f"{full_key}: this key is now {new_key!r}; rename it")
      raise UserError(f"{full_key}: unknown key{did_you_mean(key, keys)}; {expected}")
  filled = {}
  for key in keys:
    argument = arguments[key]
    if key not in values and argument.default is REQUIRED:
      raise UserError(f"{where}.{key}: missing; {expected}")
    value = values.get(key, argument.default)
    filled[key] = coerce(f"{where}.{key}", value, argument.declared_type)
  return filled


def _merge_signatures(where: str, functions: Sequence[Callable]) -> dict[str, Argument]:
  """Return the arguments of all functions by name; refuse a repeated name."""
  merged: dict[str, Argument] = {}
  for function in functions:
    arguments = read_arguments(function)
    for key in merged.keys() & arguments.keys():
      raise UserError(
        f"{where}: {function.__module__}:{function.__qualname__} declares the argument {key!r}, "
        "which is a key here already; give the argument another name"
      )
    merged |= arguments
  return merged


def make(where: str, value: Any, registry: Registry, member: str = "", **supplied: Any) -> Any:
  """Make the object in a slot: call the named function or class with the slot's arguments.

  Args:
    where: the slot's key, for error messages.
    value: a name, or {"name": …} with arguments.
    registry, member: see `find`.
    **supplied: arguments from the program; only those that the function has are passed.
  Raises:
    UserError: as `find` and `fill`.
  """
  return Slot(registry, member).make(where, value, **supplied)


class Slot(NamedTuple):
  """A key that names a dataclass of arguments, another class or a function.

  Attributes:
    registry, member: the registry of its names, as in `find`.
    supplied, records: the arguments that are no keys, and further keys, as in `fill`.
    base: the class from which the named classes are derived; None for functions and any class.
    guide: the page that describes how to add one.
  """

  registry: Registry
  member: str = ""
  supplied: Sequence[str] = ()
  records: Sequence[Callable] = ()
  base: type | None = None
  guide: str = ""

  def names(self) -> list[str]:
    """Return the sorted names in the registry."""
    return names(self.registry)

  def find(self, where: str, name: Any) -> Callable:
    """Return the function or class of a name.

    Raises:
      UserError: as `find`, or it is not derived from `base` or lacks one of its methods.
    """
    candidate = find(where, name, self.registry, self.member)
    if self.base is None:
      return candidate
    base_name = f"{self.base.__module__}.{self.base.__qualname__}"
    if not inspect.isclass(candidate) or not issubclass(candidate, self.base):
      raise UserError(
        f"{where}: found {name!r}, expected a frozen dataclass derived from {base_name}, whose "
        f"fields are its arguments; see {self.guide}"
      )
    missing_methods = sorted(getattr(candidate, "__abstractmethods__", ()))
    if missing_methods:
      raise UserError(
        f"{where}: {name!r} lacks the method {missing_methods[0]!r} of {base_name}; define it"
      )
    return candidate

  def complete(self, where: str, value: Any, default_name: str | None = None) -> dict[str, Any]:
    """Return a value's name, or the default one, and all its arguments, checked.

    Raises:
      UserError: as `Slot.find` and `fill`.
    """
    name, arguments = name_and_arguments(where, value)
    name = name or default_name
    function = self.find(f"{where}.name", name)
    return {"name": name} | fill(where, arguments, function, self.supplied, self.records)

  def make(self, where: str, value: Any, **supplied: Any) -> Any:
    """Call the named function or class with the slot's arguments; see `make`."""
    name, arguments = name_and_arguments(where, value)
    function = self.find(where, name)
    names_of_arguments = read_arguments(function)
    supplied = {key: value for key, value in supplied.items() if key in names_of_arguments}
    filled = fill(where, arguments, function, supplied=tuple(supplied))
    return function(**supplied, **filled)


def resolve_variant(model_class: type, model: Any) -> Any:
  """Return the variant of a `config.model`.

  Args:
    model_class: the family's `Model`, whose `VARIANTS` is its table.
    model: the `config.model`, whose `variant` is a name in the table or a dict of all fields.
  """
  table = getattr(model_class, "VARIANTS", {})
  variant = to_plain(model.variant)
  if isinstance(variant, str):
    return find("config.model.variant", variant, table)
  variant_type = getattr(model_class, "VARIANT", None) or type(next(iter(table.values())))
  return coerce("config.model.variant", variant, variant_type)


def argument_names(function: Callable) -> list[str]:
  """Return the names of the arguments of a function or class."""
  return list(read_arguments(function))


def defaults(function: Callable) -> dict[str, Any]:
  """Return the default values of the arguments of a function or class, by name."""
  values = {}
  for name, argument in read_arguments(function).items():
    if argument.default is not REQUIRED:
      values[name] = argument.default
  return values


def replace_fields(where: str, record: Any, changes: Any) -> Any:
  """Return a copy of a dataclass with some fields changed; raise UserError as `fill`."""
  changes = to_plain(changes)
  values = {**vars(record), **changes} if isinstance(changes, Mapping) else changes
  return type(record)(**fill(where, values, type(record)))


def read_arguments(function: Callable) -> dict[str, Argument]:
  """Return the arguments of a function or class, by name.

  If a class's constructor has `**options`, the arguments of the constructor that it overrides are
  included.
  """
  if dataclasses.is_dataclass(function):
    return _fields(function)
  layers = [function]
  if inspect.isclass(function):
    bases = function.__mro__[:-1]
    layers = [vars(base)["__init__"] for base in bases if "__init__" in vars(base)]
  arguments: dict[str, Argument] = {}
  for layer in layers:
    types_by_name = typing.get_type_hints(layer, include_extras=True)
    has_options = False
    layer_arguments = {}
    for name, parameter in inspect.signature(layer).parameters.items():
      if parameter.kind is parameter.VAR_KEYWORD:
        has_options = True
      elif name != "self":
        layer_arguments[name] = Argument(types_by_name.get(name, Any), parameter.default)
    arguments = layer_arguments | arguments
    if not has_options:
      break
  return arguments


def _fields(record: type) -> dict[str, Argument]:
  """Return the fields of a dataclass as arguments, its own fields before inherited ones."""
  types_by_name = typing.get_type_hints(record, include_extras=True)
  fields = {field.name: field for field in dataclasses.fields(record) if field.init}
  arguments: dict[str, Argument] = {}
  for base in record.__mro__:
    for name in inspect.get_annotations(base):
      if name not in fields or name in arguments:
        continue
      default = fields[name].default
      if fields[name].default_factory is not dataclasses.MISSING:
        default = fields[name].default_factory()
      elif default is dataclasses.MISSING:
        default = REQUIRED
      arguments[name] = Argument(types_by_name[name], default)
  return arguments


def coerce(where: str, value: Any, declared_type: Any) -> Any:
  """Return the value as the declared type: lists become tuples, and dicts become dataclasses.

  Raises:
    UserError: it has another type.
  """
  _check_inner(where, to_plain(value))
  if isinstance(value, list) and not fits(value, declared_type):
    if fits(tuple(value), declared_type):
      return tuple(value)
  if isinstance(to_plain(value), Mapping):
    for member in (declared_type, *typing.get_args(declared_type)):
      if inspect.isclass(member) and dataclasses.is_dataclass(member):
        return member(**fill(where, value, member))
  if not fits(value, declared_type):
    raise UserError(
      f"{where}: found {format_value(value)} of type {type(value).__name__}, expected "
      f"{describe_type(declared_type)}{_broken_condition(to_plain(value))}"
    )
  return value


def _check_inner(where: str, value: Any, depth: int = 0) -> None:
  """Refuse values inside dicts and lists that no key accepts, and nesting that is too deep."""
  if depth > _MAX_DEPTH:
    raise UserError(
      f"{where[:120]}: found dicts or lists more than {_MAX_DEPTH} deep, expected fewer; flatten "
      "them"
    )
  if isinstance(value, Mapping):
    for key, inner in value.items():
      if not isinstance(key, str) or _broken_condition(key):
        raise UserError(
          f"{where}: found the key {format_value(key)}, expected text{_broken_condition(key)}"
        )
      _check_inner(f"{where}.{format_value(key, '')}", inner, depth + 1)
  elif isinstance(value, (list, tuple)):
    for number, inner in enumerate(value):
      _check_inner(f"{where}[{number}]", inner, depth + 1)
  elif depth and _broken_condition(value):
    raise UserError(
      f"{where}: found {format_value(value)} of type {type(value).__name__}, expected "
      f"one{_broken_condition(value).strip(',')}"
    )


def _broken_condition(value: Any) -> str:
  """Return the condition that a value breaks for any key, such as `", finite"`, or no text."""
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


def fits(value: Any, declared_type: Any) -> bool:
  """Return whether a value has a declared type. Integers count as floats; Booleans are not numbers.

  Whatever is declared, numbers must be finite, integers fit 64 bits, and texts be encodable as
  UTF-8.
  """
  origin = typing.get_origin(declared_type)
  value = to_plain(value)
  if _broken_condition(value):
    return False
  if declared_type is Any:
    return True
  if origin in (typing.Union, types.UnionType):
    return any(fits(value, member) for member in typing.get_args(declared_type))
  if origin is typing.Literal:
    return value in typing.get_args(declared_type)
  if origin is Annotated:
    inner, condition = typing.get_args(declared_type)
    return fits(value, inner) and condition.holds(value)
  if origin is tuple and typing.get_args(declared_type)[1:] == (...,):
    return isinstance(value, tuple) and all(
      fits(item, typing.get_args(declared_type)[0]) for item in value
    )
  if declared_type in (int, float):
    return isinstance(value, (int, declared_type)) and not isinstance(value, bool)
  return isinstance(value, origin or declared_type)


def describe_type(declared_type: Any) -> str:
  """Describe a declared type in words: `int | None` is "int or None"."""
  origin = typing.get_origin(declared_type)
  members = typing.get_args(declared_type)
  if origin in (typing.Union, types.UnionType):
    return " or ".join(describe_type(member) for member in members)
  if origin is typing.Literal:
    return " or ".join(repr(choice) for choice in members)
  if origin is Annotated:
    return members[1].description
  if origin is tuple and members[1:] == (...,):
    return f"a list of {describe_type(members[0])}"
  if declared_type is types.NoneType:
    return "None"
  return getattr(declared_type, "__name__", str(declared_type))


def to_json(values: Any) -> dict[str, Any]:
  """Convert values to the types of a saved config: dicts and lists, no tuples."""
  return json.loads(json.dumps(to_plain(values)))


def to_plain(value: Any) -> Any:
  """Convert a `ConfigDict` to a dict; return anything else unchanged."""
  return value.to_dict() if hasattr(value, "to_dict") else value
