"""Check functions and locations that a file from elsewhere names, before they are used.

**Functions.** Importing a module runs it, so the function `module:function` is imported only if the
user gave exactly that name in this command: in the recipe of `--config`, in a `--config.…` flag, or
in another flag. `Parser.parse`, `recipes.load` and, for lists of suites, `evaluate` admit those
names; nothing else does. A name read from a file (the `config.json` of a run, of its teacher, or of
the run that it starts from) is refused unless the command has `--trust`.

**Locations.** A path, address or source that was read from a file is opened only if one of these
holds:

1. The command names it too.
2. This user signed the file, so an earlier command of the user named it.
3. It is in the directory of that file.
4. The command has `--trust`.

A chain of addresses (`::`) and an address with a scheme outside `SCHEMES` need 1 or 2, since some
file systems of fsspec execute the content of files, start programs or log in to other machines.

A program that uses t5x_like as a library, such as a notebook, must admit the names it needs:

    t5x_like.trust.admit("my_tasks:echo")

When one process runs several commands, each starts with nothing admitted.
"""

import contextlib
import dataclasses
import hmac
import importlib
import json
import os
import pathlib
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t5x_like.errors import UserError, one_line

FLAG = "--trust"
SIGNATURE = "signature"  # the key of a signed file's content
_REMOTE_SCHEMES = ("gs", "gcs", "s3", "s3a", "http", "https", "az", "abfs", "abfss", "hf", "memory")
# Schemes of addresses that saved files and programs may name. Others need a flag or a recipe.
SCHEMES = (*_REMOTE_SCHEMES, "file", "local")
# Functions of this package that defaults and recipes name, and therefore saved configs too.
BUILT_IN_FUNCTIONS = frozenset(
  f"t5x_like.{name}"
  for name in (
    "data.preprocessors.sentences:punctuation",
    "models.electra:Discriminator",
    "models.gpt:Reader",
  )
)
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
# A function, alone or in a source such as `seqio:my_tasks:wmt@jsonl:pairs.jsonl`.
_ADMISSIBLE = re.compile(rf"(?:(?:seqio|salient):)?({_NAME.pattern})(?:@.*)?", re.DOTALL)
# Sources that generate their records and open no file, alone or inside a source that changes them.
_GENERATED = re.compile(
  r"((objects|cloze|salient|held_out:\d+@|t5:\w+):?)*"
  r"(builtin|digits|digit_scenes|sums(:\d+)?|facts(:\d+)?)"
)
_FILE_SOURCE = re.compile(r"[a-z0-9_]+:([^,=@:{}*?\[\]]+)")  # `format:path` of one file
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SECRET_BYTES = 32


@dataclasses.dataclass(frozen=True)
class Origin:
  """The file that contains a string.

  Attributes:
    file: its path, for error messages.
    directory: the directory that its strings may name.
  """

  file: str
  directory: str


@dataclasses.dataclass
class State:
  """The names that a command admits and the files that it has read; shared with its workers.

  Attributes:
    names: the functions that the user named, `module:function`.
    texts: all strings in flags and recipes.
    everything: whether the command has `--trust`.
    origins: the file that each string was read from, by string.
    signed: the paths of files that this user signed.
  """

  names: set[str] = dataclasses.field(default_factory=set)
  texts: set[str] = dataclasses.field(default_factory=set)
  everything: bool = False
  origins: dict[str, Origin] = dataclasses.field(default_factory=dict)
  signed: set[str] = dataclasses.field(default_factory=set)


_state = State()


def begin_command(values: Any, everything: bool = False) -> None:
  """Start a command: forget what the previous one admitted, and admit the names in its flags.

  Args:
    values: the values of flags: strings, lists, dictionaries.
    everything: whether the command has `--trust`, which admits every name.
  """
  set_state(State(everything=everything))
  admit(values)


def current_state() -> State:
  """Return the state of this command, for `set_state` in its worker processes."""
  return _state


def set_state(state: State) -> None:
  """Take over the state of a command, in its worker process."""
  global _state
  _state = state


def admit(values: Any) -> None:
  """Admit the functions and locations in a value given by the user.

  The value is a string, or a list or dictionary of strings.
  """
  for text in _texts(values):
    _state.texts.add(text)
    if match := _ADMISSIBLE.fullmatch(text):
      _state.names.add(match[1])


def admit_locations(values: Any) -> None:
  """Admit the locations in a value that a program passes to a function of the library.

  Functions in the value are not admitted; that takes `admit`.
  """
  _state.texts.update(_texts(values))


def allows_everything() -> bool:
  """Return whether this command has `--trust`."""
  return _state.everything


def record_file(path: str, content: Any, directory: str = "", signed: bool = False) -> None:
  """Record the strings of a file, whose locations are checked before they are opened.

  Args:
    path: the file, for messages.
    content: the strings, lists or dictionaries that it contains.
    directory: the directory that its strings may name; empty for none.
    signed: whether this user wrote the file (see `is_signed`). The locations in it are then
      admitted, since they were in a recipe or flag of the command that wrote it.
  """
  origin = Origin(path, str(directory))
  for text in _texts(content):
    _state.origins.setdefault(text, origin)
  if signed:
    _state.signed.add(path)
    admit_locations(content)


def check_links(directory: str, file: str) -> None:
  """Check that no symbolic link in a local directory, or below it, leads out of it.

  Links are not checked if this user signed `file` or the command has `--trust`.

  Args:
    directory: a path; an address has no links.
    file: the path of a signed file in the directory.

  Raises:
    UserError: a link leads out of the directory, so a command would read or write elsewhere.
  """
  if file in _state.signed or _state.everything or "://" in directory:
    return
  for folder, folders, files in os.walk(directory):
    for name in (*folders, *files):
      path = os.path.join(folder, name)
      if os.path.islink(path) and not is_inside(path, directory):
        target = _format_text(os.path.realpath(path))
        raise UserError(
          f"{path}: found a link to {target}, expected no link out of {directory}; move the "
          f"target into it, or add {FLAG}"
        )


def import_function(where: str, name: str) -> Callable:
  """Import the function `module:function` from the installed packages or the current directory.

  Args:
    where: the key of the name, for messages, such as `config.task.name`.
    name: the function.

  Raises:
    UserError: the name is not admitted, or the module cannot be imported or lacks the function.
  """
  if name not in BUILT_IN_FUNCTIONS and name not in _state.names and not _state.everything:
    raise _function_refusal(where, name)
  module, _, attribute = name.partition(":")
  directory = str(pathlib.Path.cwd())
  if directory not in sys.path:
    sys.path.insert(0, directory)
  try:
    return getattr(importlib.import_module(module), attribute)
  except Exception as error:
    raise UserError(
      f"{where}: {name!r} cannot be used: {type(error).__name__}: {one_line(error)}"
    ) from error


def check_location(where: str, text: Any) -> None:
  """Check a path or an address before it is opened or written.

  Args:
    where: the key of the location, for messages, such as `config.task.store`.
    text: the location; other values are ignored.

  Raises:
    UserError: the location was read from a file that may not name it.
  """
  origin = _origin(text)
  if origin is None:
    return
  if _needs_admission(text):
    raise _address_refusal(f"{origin.file}: {where}", text)
  if not _state.everything and not is_inside(text, origin.directory):
    raise _location_refusal(origin, where, text)


def check_source(where: str, text: Any) -> None:
  """Check a source, `FORMAT:REST`, before it is opened.

  A file may name sources that generate their records, and single files in its own directory.

  Args:
    where: the key of the source, for messages, such as `config.task.source`.
    text: the source; other values are ignored.

  Raises:
    UserError: the source was read from a file that may not name it.
  """
  origin = _origin(text)
  if origin is None or _GENERATED.fullmatch(text):
    return
  if _needs_admission(text):
    raise _address_refusal(f"{origin.file}: {where}", text)
  if _state.everything:
    return
  match = _FILE_SOURCE.fullmatch(text)
  if not match or not os.path.isfile(match[1]) or not is_inside(match[1], origin.directory):
    raise _location_refusal(origin, where, text)


def check_address(url: str) -> None:
  """Check an address before a client opens it.

  Raises:
    UserError: the address is a chain or has a scheme outside `SCHEMES`, and the command does not
      name it.
  """
  if not _needs_admission(url):
    return
  first, _, chain = url.partition("::")
  if "://" in first:
    prefix = f"{first.partition('://')[0]}://"
  else:  # as in `simplecache::gs://bucket/file`, which needs `simplecache::` and `gs://bucket`
    prefix = f"{first}::"
    chain = "/".join(chain.split("/")[:3])
  admitted_texts = (*_state.texts, os.environ.get("T5X_LIKE_CACHE", ""))
  if any(prefix in text and chain in text for text in admitted_texts):
    return
  scheme = url.partition(":")[0]
  if any(text.startswith(f"{scheme}:") and "::" in text for text in admitted_texts):
    raise UserError(
      f"found {_format_text(url)}, a file below a chain of addresses, expected a directory or "
      "address that is no chain; unpack or copy the files, and name the copy"
    )
  raise _address_refusal("", url)


def is_inside(path: str, directory: str, links: bool = True) -> bool:
  """Return whether a path or an address is in a directory.

  Args:
    path: the path or address.
    directory: the path or address of the directory; nothing is in "".
    links: whether symbolic links are resolved first.
  """
  if not directory or ".." in re.split(r"[/\\]", path) or "\0" in path:
    return False
  if "://" in path or "://" in directory:
    return f"{path.rstrip('/')}/".startswith(f"{directory.rstrip('/')}/")
  resolve = os.path.realpath if links else os.path.abspath
  return f"{resolve(path)}/".startswith(f"{resolve(directory).rstrip('/')}/")


def load_secret() -> bytes:
  """Return this user's secret key for signatures; the first call creates it.

  It is in a file that only this user can read.

  Raises:
    OSError, RuntimeError: the file can be neither read nor created, or the user has no home
      directory.
  """
  path = pathlib.Path.home() / ".cache" / "t5x_like" / "secret"
  path.parent.mkdir(parents=True, exist_ok=True)
  if not path.exists():
    draft = path.with_name(f"secret-{secrets.token_hex(8)}")
    draft.touch(mode=0o600)
    draft.write_bytes(secrets.token_bytes(_SECRET_BYTES))
    with contextlib.suppress(FileExistsError):
      os.link(draft, path)  # fails if another process has created the file in the meantime
    draft.unlink()
  return path.read_bytes()


def sign(content: Any) -> str | None:
  """Return this user's signature of a value; None without a secret or if JSON cannot express it."""
  try:
    text = json.dumps(content, sort_keys=True)
    return hmac.new(load_secret(), text.encode(), "sha256").hexdigest()
  except (OSError, RuntimeError, ValueError, TypeError, RecursionError):
    return None


def is_signed(content: Any, text: Any) -> bool:
  """Return whether a text is this user's signature of a value."""
  if not isinstance(text, str) or not text.isascii():
    return False
  expected = sign(content)
  return expected is not None and hmac.compare_digest(expected, text)


def _origin(text: Any) -> Origin | None:
  """Return the file that a location was read from; None if the user or the program named it."""
  if not isinstance(text, str) or text in _state.texts:
    return None
  return _state.origins.get(text)


def _needs_admission(text: str) -> bool:
  """Return whether a location is a chain of addresses, or has a scheme outside `SCHEMES`."""
  return "::" in text or any(scheme.lower() not in SCHEMES for scheme in _SCHEME.findall(text))


def _function_refusal(where: str, name: str) -> UserError:
  if not _NAME.fullmatch(name):
    return UserError(f"{where}: found {name!r}, expected a function, module:function")
  origin = _state.origins.get(name)
  prefix = f"{origin.file}: " if origin else ""
  return UserError(
    f"{prefix}{where}: found {name!r}, which this command does not name, so it is not imported; "
    f"give that name in the recipe or a flag{_flag_hint(where, name)}, or add {FLAG} to import "
    f"what saved files name (in a program: t5x_like.trust.admit({name!r}))"
  )


def _location_refusal(origin: Origin, where: str, text: str) -> UserError:
  outside = f"is outside {origin.directory} and " if origin.directory else ""
  return UserError(
    f"{origin.file}: {where}: found {_format_text(text)}, "
    f"which {outside}this command does not name, so it is not opened; "
    f"give it in the recipe or a flag{_flag_hint(where, text)}, "
    f"or add {FLAG} to open what saved files name"
  )


def _address_refusal(where: str, text: str) -> UserError:
  prefix = f"{where}: " if where else ""
  schemes = ", ".join(f"{scheme}://" for scheme in _REMOTE_SCHEMES)
  return UserError(
    f"{prefix}found {_format_text(text)}, which this command does not name, "
    f"expected one address of {schemes}; give it in the recipe or a flag "
    "(in a program: t5x_like.trust.admit)"
  )


def _flag_hint(where: str, text: str) -> str:
  """Return " (--KEY=TEXT)" for messages; "" if `where` is not a key or the text is too long."""
  if re.fullmatch(r"config(\.\w+)+", where) and len(text) <= 120:
    return f" (--{where}={text})"
  return ""


def _format_text(text: str) -> str:
  """Return a text in ASCII and quotes, shortened to about 100 characters."""
  quoted = ascii(text)
  return quoted if len(quoted) <= 120 else f"{quoted[:100]}..."


def _texts(value: Any) -> Iterator[str]:
  """Yield all strings in a value, including those inside a string that is JSON."""
  if hasattr(value, "to_dict"):
    value = value.to_dict()
  if isinstance(value, str | os.PathLike):
    text = os.fspath(value)
    yield text
    if text[:1] in ("[", "{"):
      try:
        yield from _texts(json.loads(text))
      except (ValueError, RecursionError):
        return
  elif isinstance(value, Mapping):
    yield from _texts([*value.keys(), *value.values()])
  elif isinstance(value, list | tuple | set | frozenset):
    for element in value:
      yield from _texts(element)
