"""The gate before every import by name: the functions, spelled `module:function`, that may be imported.

Importing a module runs it, so a name is imported only if the user gave exactly that name in this command: in the recipe
of `--config`, in a `--config.…` flag, or in another flag. Only `Parser.parse`, `recipes.load` and, for lists of suites,
`evaluate` admit them. A name read from a file (the `config.json` of a run, of its teacher, or of the run that it starts
from) is refused unless the command has `--trust`.

A program that uses t5x_like as a library, such as a notebook, must admit the names it needs:

    t5x_like.trust.admit("my_tasks:echo")

Every command in the same process starts with no names admitted.
"""

import importlib
import json
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t5x_like.errors import UserError, one_line

FLAG = "--trust"
# Functions of this package that defaults and recipes name in this form, and so saved configs too.
OWN = frozenset(
  f"t5x_like.{name}"
  for name in ("data.preprocessors.sentences:punctuation", "models.electra:Discriminator", "models.gpt:Reader")
)
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_GIVEN = re.compile(rf"(?:(?:seqio|salient):)?({_NAME.pattern})(?:@.*)?", re.DOTALL)  # alone, or as a source
_admitted: set[str] = set()
_everything = False
_files: dict[str, str] = {}  # the file of each name that was read, for messages


def begin(given: Any, everything: bool = False) -> None:
  """Start a command: admit the names in its flags, and forget the previous command's.

  Args:
    given: the values of flags: strings, lists, dictionaries.
    everything: whether the command has `--trust`, which admits every name.
  """
  global _everything
  _admitted.clear()
  _files.clear()
  _everything = everything
  admit(given)


def admit(given: Any) -> None:
  """Admit the names in a value given by the user: a name, or a list or dictionary with names anywhere in it."""
  _admitted.update(_names(given))


def everything() -> bool:
  """Return whether this command has `--trust`."""
  return _everything


def was_read(path: str, content: Any) -> None:
  """Record the file that contains these names, so that a refusal can mention it."""
  _files.update(dict.fromkeys(_names(content), path))


def function(where: str, name: str) -> Callable:
  """Import the function `module:function` from the installed packages or the current directory.

  Args:
    where: the key, for messages, such as `config.task.name`.
  Raises:
    UserError: the name is not admitted, or the module cannot be imported or lacks the function.
  """
  if name not in OWN and name not in _admitted and not _everything:
    raise _refused(where, name)
  module, _, attribute = name.partition(":")
  here = str(pathlib.Path.cwd())
  if here not in sys.path:
    sys.path.insert(0, here)
  try:
    return getattr(importlib.import_module(module), attribute)
  except Exception as error:
    raise UserError(f"{where}: {name!r} cannot be used: {type(error).__name__}: {one_line(error)}") from error


def _refused(where: str, name: str) -> UserError:
  if not _NAME.fullmatch(name):
    return UserError(f"{where}: found {name!r}, expected a function, module:function")
  origin = f"{_files[name]}: " if name in _files else ""
  flag = f" (--{where}={name})" if re.fullmatch(r"config(\.\w+)+", where) else ""
  return UserError(
    f"{origin}{where}: found {name!r}, which this command does not name, so it is not imported; give that name in the"
    f" recipe or a flag{flag}, or add {FLAG} to import what saved files name (in a program:"
    f" t5x_like.trust.admit({name!r}))"
  )


def _names(value: Any) -> Iterator[str]:
  """Yield the names in a value; a string may also be JSON."""
  value = value.to_dict() if hasattr(value, "to_dict") else value
  if isinstance(value, str):
    if found := _GIVEN.fullmatch(value):
      yield found[1]
    elif value[:1] in ("[", "{"):
      try:
        yield from _names(json.loads(value))
      except (ValueError, RecursionError):
        return
  elif isinstance(value, Mapping):
    for item in (*value.keys(), *value.values()):
      yield from _names(item)
  elif isinstance(value, list | tuple | set | frozenset):
    for item in value:
      yield from _names(item)
