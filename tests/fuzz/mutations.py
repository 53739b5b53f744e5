"""Structured damage: to a JSON value, to bytes, and to the files of a directory."""

import hashlib
import json
import os
import pathlib
import random
import shutil
from collections.abc import Callable, Iterable
from typing import Any

HOSTILE = (
  None,
  True,
  False,
  0,
  -1,
  1,
  2**31,
  2**63,
  10**18,
  10**400,
  -(10**9),
  0.5,
  1e308,
  float("nan"),
  float("inf"),
  "",
  " ",
  "..",
  "../../../elsewhere",
  "/etc/passwd",
  "a/b",
  "a\0b",
  "$x${y}$",
  "ünï\u2028",
  "\ud83d",
  "9" * 5000,
  "x" * 10_000,
  "subprocess:getoutput",
  [],
  {},
  [[]],
  [1, "a", None],
  {"": {}},
  {"a": {"a": {"a": 1}}},
)


def nested(depth: int = 400) -> Any:
  """Return lists in lists."""
  nested_list: Any = []
  for _ in range(depth):
    nested_list = [nested_list]
  return nested_list


def json_mutation(choice: random.Random, value: Any) -> tuple[Any, str]:
  """Return the value with one or two places damaged, and a description."""
  value = json.loads(json.dumps(value))
  changes = []
  for _ in range(choice.choice((1, 1, 1, 2))):
    places = list(_places(value))
    kind = choice.choice(
      ("replace", "replace", "replace", "delete", "add", "rename", "number", "top")
    )
    if kind == "top" or not places:
      value = nested() if choice.random() < 0.2 else choice.choice(HOSTILE)
      changes.append(f"the whole is {value!r:.40}")
      continue
    holder, key = choice.choice(places)
    changes.append(f"{kind} {key!r:.40}")
    if kind == "delete":
      del holder[key]
    elif kind == "add" and isinstance(holder, dict):
      holder[choice.choice(("extra", "", "__class__", "format"))] = choice.choice(HOSTILE)
    elif kind == "rename" and isinstance(holder, dict):
      holder[choice.choice(("..", "../x", "", "a/b", "0", key + "x"))] = holder.pop(key)
    elif kind == "number" and isinstance(holder[key], int):
      holder[key] = choice.choice(
        (holder[key] + 1, holder[key] - 1, -holder[key], holder[key] * 1000, 10**15)
      )
    else:
      hostile_value = nested() if choice.random() < 0.05 else choice.choice(HOSTILE)
      holder[key] = hostile_value
      changes[-1] += f" by {hostile_value!r:.40}"
  return value, "; ".join(changes)


def _places(value: Any) -> Iterable[tuple[Any, Any]]:
  for key in (
    value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
  ):
    yield value, key
    yield from _places(value[key])


def bytes_mutation(choice: random.Random, data: bytes) -> tuple[bytes, str]:
  """Return the data cut, flipped, lengthened or replaced, and a description."""
  kind = choice.choice(
    ("cut", "empty", "flip", "flip", "append", "zeros", "noise", "double", "remove")
  )
  place = choice.randrange(len(data) + 1)
  if kind == "cut":
    return data[:place], f"cut at {place}"
  if kind == "flip" and data:
    place = min(place, len(data) - 1)
    return data[:place] + bytes([data[place] ^ (1 << choice.randrange(8))]) + data[
      place + 1 :
    ], f"flip at {place}"
  if kind == "remove":
    return data[:place] + data[place + 8 :], f"8 bytes removed at {place}"
  contents = {
    "append": data + choice.randbytes(9),
    "zeros": bytes(len(data)),
    "noise": choice.randbytes(len(data)),
    "double": data + data,
  }
  return contents.get(kind, b""), kind


def folder_mutation(
  choice: random.Random,
  folder: pathlib.Path,
  files: list[str],
  sign: Callable[[pathlib.Path], None] | None = None,
) -> str:
  """Damage one of the files, given relative to a folder; return a description that begins with the
  file's name.

  Args:
    sign: makes the checksums of a changed JSON file right again, so that what is behind them is
      reached; for half.
  """
  file = folder / (name := choice.choice(files))
  try:
    value = json.loads(file.read_bytes())
  except ValueError:
    value = None
  draw = choice.random()
  if value is not None and draw < 0.75:
    value, changes = json_mutation(choice, value)
    file.write_text(json.dumps(value))
    if sign and isinstance(value, dict) and choice.random() < 0.7:
      sign(file)
      changes += ", signed"
    return f"{name}: {changes}"
  if draw < 0.88:
    data, changes = bytes_mutation(choice, file.read_bytes())
    file.write_bytes(data)
    return f"{name}: {changes}"
  kind = choice.choice(
    ("missing", "directory", "pipe", "loop", "zero", "swapped", "unreadable name")
  )
  target = folder / choice.choice(files)
  if kind == "swapped":
    first = file.read_bytes()
    second = target.read_bytes()
    file.write_bytes(second), target.write_bytes(first)
    return f"{name}: swapped with {target.relative_to(folder)}"
  file.unlink()
  if kind == "directory":
    (file / "x").mkdir(parents=True)
  elif kind == "pipe":
    os.mkfifo(file)
  elif kind == "loop":
    file.symlink_to(file)
  elif kind == "zero":
    file.symlink_to("/dev/zero")
  elif kind == "unreadable name":
    file.with_name(file.name + "\udcff").touch()
  return f"{name}: {kind}"


def files_of(folder: pathlib.Path) -> list[str]:
  """Return the files below a folder, sorted, relative to it."""
  return sorted(
    str(path.relative_to(folder))
    for path in folder.rglob("*")
    if path.is_file() and not path.is_symlink()
  )


def digests(folder: pathlib.Path) -> dict[str, str]:
  """Return the SHA-256 of every regular file below a folder."""
  return {
    name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files_of(folder)
  }


def copied(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
  """Copy a folder, and return the copy."""
  return pathlib.Path(shutil.copytree(source, target))
