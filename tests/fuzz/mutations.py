"""Random damage to a JSON value, to bytes and to the files of a directory.

Each function takes the random generator of a case and also returns a description of the change, for
the message of a failure.
"""

import copy
import hashlib
import json
import os
import pathlib
import random
import shutil
from collections.abc import Callable, Iterable
from typing import Any

# Unexpected values for any key.
HOSTILE = (
  None,
  True,
  False,
  0,
  -1,
  1,
  3,
  2**31 - 1,
  2**31,
  2**63,
  10**9,
  400_000_000,
  10**18,
  10**30,
  10**400,
  -(10**12),
  0.5,
  -2.5,
  1e308,
  float("nan"),
  float("inf"),
  "",
  " ",
  "x",
  "12",
  "..",
  "a/b",
  "\0",
  "\ud800",
  "a\nb",
  "../../escape",
  "/etc/passwd",
  "$HOME",
  "$x${y}$",
  "🦊é\u202e\u2028",
  "9" * 5000,
  "x" * 10_000,
  "subprocess:getoutput",
  [],
  {},
  [[]],
  [None],
  [1, "a", None],
  [0, -1],
  ["x", "y"],
  {"": {}},
  {"a": {"a": {"a": 1}}},
  [{"x": [1, {"y": None}]}],
)
DEEP = b"[" * 100_000 + b"]" * 100_000


def json_text(tree: Any) -> bytes:
  return json.dumps(tree).encode()


def mutate_json(tree: Any, rng: random.Random, times: int = 1) -> tuple[Any, str]:
  """Return a copy of a parsed file with random changes, and a description of them.

  Args:
    times: the number of changes.
  """
  tree = copy.deepcopy(tree)
  changes = []
  for _ in range(times):
    tree, change = _mutate_once(tree, rng)
    changes.append(change)
  return tree, "; ".join(changes)


def _mutate_once(tree: Any, rng: random.Random) -> tuple[Any, str]:
  paths = list(_paths(tree))
  # Most nodes are deep, but the top of a file matters more: it gets half of all mutations.
  shallow = [path for path in paths if len(path) <= 1]
  path = rng.choice(shallow if rng.random() < 0.5 else paths)
  place = ".".join(map(str, path)) or "the root"
  kinds = (
    "replace",
    "replace",
    "replace",
    "remove",
    "add",
    "grow",
    "scale",
    "nest",
    "swap",
    "rename",
  )
  kind = rng.choice(kinds)
  node = _get_node(tree, path)
  value = _nest_lists() if rng.random() < 0.02 else copy.deepcopy(rng.choice(HOSTILE))
  if kind == "add" and isinstance(node, dict):
    key = rng.choice(["extra", "", "__class__", "format", "name", *map(str, list(node)[:3])])
    node[key] = value
    return tree, f"{key!r}: {_abbreviate(value)} added to {place}"
  if kind == "add" and isinstance(node, list):
    node.insert(rng.randint(0, len(node)), value)
    return tree, f"{_abbreviate(value)} added to {place}"
  if kind == "grow" and isinstance(node, list) and node:
    node.extend(copy.deepcopy(node[: rng.randint(1, 20)]))
    return tree, f"{place} grown to {len(node)}"
  if not path:
    return value, f"the root = {_abbreviate(value)}"
  parent = _get_node(tree, path[:-1])
  key = path[-1]
  if kind == "remove":
    del parent[key]
    return tree, f"{place} removed"
  if kind == "rename" and isinstance(parent, dict):
    new_key = rng.choice(("..", "../x", "", "a/b", "0", f"{key}x"))
    parent[new_key] = parent.pop(key)
    return tree, f"{place} renamed to {new_key!r}"
  if kind == "swap":
    value = copy.deepcopy(_get_node(tree, rng.choice(paths[1:])))
  elif kind == "scale" and isinstance(node, int | float) and not isinstance(node, bool):
    value = rng.choice([node * 2, node + 1, node - 1, -node, node * 10**9, str(node), 10**15])
  elif kind == "nest":
    value = rng.choice([[node], {"a": node}, [node, node]])
  parent[key] = value
  return tree, f"{kind}: {place} = {_abbreviate(value)}"


def _paths(tree: Any, path: tuple = ()) -> Iterable[tuple]:
  """Yield the path of every node of a parsed file, beginning with (), the root.

  Only the first 300 children of a node are visited.
  """
  yield path
  if isinstance(tree, dict):
    items = list(tree.items())
  elif isinstance(tree, list):
    items = list(enumerate(tree))
  else:
    items = []
  for key, value in items[:300]:
    yield from _paths(value, (*path, key))


def _get_node(tree: Any, path: tuple) -> Any:
  for key in path:
    tree = tree[key]
  return tree


def _nest_lists(depth: int = 400) -> list:
  """Return an empty list inside `depth` lists."""
  nested_list = []
  for _ in range(depth):
    nested_list = [nested_list]
  return nested_list


def _abbreviate(value: Any) -> str:
  text = repr(value)
  return text if len(text) < 60 else f"{text[:50]}… ({len(text)})"


def mutate_bytes(data: bytes, rng: random.Random) -> tuple[bytes, str]:
  """Return the data with one random change, and a description of the change."""
  size = len(data)
  start = rng.randint(0, max(size - 1, 0))
  length = rng.choice((1, 2, 8, 64, 1000))
  end = start + length
  kinds = (
    "cut",
    "cut",
    "flip",
    "flip",
    "flip",
    "double",
    "insert",
    "drop",
    "huge",
    "empty",
    "shift",
    "zeros",
    "noise",
  )
  kind = rng.choice(kinds)
  if kind == "cut":
    return data[:start], f"cut at byte {start} of {size}"
  if kind == "flip" and data:
    positions = [rng.randint(0, size - 1) for _ in range(rng.choice((1, 1, 4, 30)))]
    flipped = bytearray(data)
    for position in positions:
      flipped[position] ^= 1 << rng.randint(0, 7)
    return bytes(flipped), f"bits flipped at {positions[:4]}"
  if kind == "double":
    doubled = data[:start] + data[start:end] * 2 + data[end:]
    return doubled, f"{length} bytes doubled at {start}"
  if kind == "insert":
    texts = (
      b"\0" * length,
      b"\xff" * length,
      rng.randbytes(length),
      b"\xed\xa0\x80",
      b"\xef\xbb\xbf",
    )
    text = rng.choice(texts)
    return data[:start] + text + data[start:], f"{text[:8]!r}… inserted at {start}"
  if kind == "drop":
    return data[:start] + data[end:], f"{length} bytes dropped at {start}"
  if kind == "huge" and size >= 4:
    start = rng.randint(0, min(size - 4, 200))
    return data[:start] + b"\xff\xff\xff\x7f" + data[start + 4 :], f"a huge number at {start}"
  if kind == "shift":
    return data[start:] + data[:start], f"rotated by {start}"
  contents = {"zeros": bytes(size), "noise": rng.randbytes(size)}
  return contents.get(kind, b""), kind


def mutate_folder(
  rng: random.Random,
  folder: pathlib.Path,
  files: list[str],
  sign: Callable[[pathlib.Path], None] | None = None,
) -> str:
  """Damage one file of a folder; return a description that begins with the name of the file.

  Args:
    files: the names of the files to choose from, relative to the folder.
    sign: updates the checksum of a changed JSON file, so that later checks are reached too. It is
      called for 70 % of the changed files.
  """
  name = rng.choice(files)
  file = folder / name
  try:
    value = json.loads(file.read_bytes())
  except ValueError:
    value = None
  draw = rng.random()
  if value is not None and draw < 0.75:
    value, changes = mutate_json(value, rng, rng.choice((1, 1, 1, 2)))
    file.write_text(json.dumps(value))
    if sign and isinstance(value, dict) and rng.random() < 0.7:
      sign(file)
      changes += ", signed"
    return f"{name}: {changes}"
  if draw < 0.88:
    content, changes = mutate_bytes(file.read_bytes(), rng)
    file.write_bytes(content)
    return f"{name}: {changes}"
  kinds = ("missing", "directory", "pipe", "loop", "zero", "swapped", "unreadable name")
  kind = rng.choice(kinds)
  if kind == "swapped":
    other_name = rng.choice(files)
    content = file.read_bytes()
    file.write_bytes((folder / other_name).read_bytes())
    (folder / other_name).write_bytes(content)
    return f"{name}: swapped with {other_name}"
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


def list_files(folder: pathlib.Path) -> list[str]:
  """Return the names of the regular files below a folder, sorted, relative to it."""
  files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
  return sorted(str(path.relative_to(folder)) for path in files)


def hash_files(folder: pathlib.Path) -> dict[str, str]:
  """Return the SHA-256 of every regular file below a folder, by name."""
  contents = {name: (folder / name).read_bytes() for name in list_files(folder)}
  return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def copy_folder(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
  """Copy a folder and return the path of the copy."""
  return pathlib.Path(shutil.copytree(source, target))
