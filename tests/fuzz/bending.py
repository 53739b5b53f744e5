"""Valid files changed in one place or a few: other values, types, keys and sizes, or other bytes.

Each function takes the generator of a case and returns what was changed beside it, for the message
of a failure.
"""

import contextlib
import copy
import json
import pathlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from t5x_like.errors import handle_errors
from tests.fuzz.harness import Sandbox, generator

SECONDS = 20
MEMORY = 2**30  # bytes by which a file may grow the process
_FORBIDDEN = (
  "os.system",
  "os.exec",
  "os.posix_spawn",
  "subprocess.Popen",
  "pickle.find_class",
  "os.fork",
)

# Values that stand where others are expected.
SCALARS = [
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
  10**30,
  -(10**12),
  0.5,
  -2.5,
  1e308,
  float("nan"),
  float("inf"),
  "",
  "x",
  "12",
  "\0",
  "\ud800",
  "a\nb",
  "../../escape",
  "/etc/passwd",
  "$HOME",
  "🦊é\u202e",
  "x" * 5000,
]
VALUES = [
  *SCALARS,
  [],
  {},
  [[]],
  [None],
  {"a": {}},
  [0, -1],
  ["x", "y"],
  {"": 1},
  [{"x": [1, {"y": None}]}],
]


def paths_of(tree: Any, path: tuple = ()) -> Iterable[tuple]:
  """Yields the path of every node of a parsed file, the root's, (), first."""
  yield path
  if isinstance(tree, dict | list):
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree))[:300]:
      yield from paths_of(value, (*path, key))


def mutated(tree: Any, rng: random.Random, times: int = 1) -> tuple[Any, str]:
  """(a copy of a parsed file with other values, types, keys or sizes; what was changed)."""
  tree = copy.deepcopy(tree)
  changes = []
  for _ in range(times):
    tree, change = _mutated(tree, rng)
    changes.append(change)
  return tree, "; ".join(changes)


def _mutated(tree: Any, rng: random.Random) -> tuple[Any, str]:
  paths = list(paths_of(tree))
  # Deep leaves are many, and the top of a file decides more: half of all mutations are there.
  shallow = [path for path in paths if len(path) <= 1]
  path = rng.choice(shallow if rng.random() < 0.5 else paths)
  kind = rng.choice(
    ("replace", "replace", "replace", "remove", "add", "grow", "scale", "nest", "swap")
  )
  parent = _at(tree, path[:-1]) if path else None
  node = _at(tree, path)
  where = ".".join(map(str, path)) or "the root"
  if kind == "remove" and path:
    del parent[path[-1]]
    return tree, f"{where} removed"
  if kind == "add" and isinstance(node, dict | list):
    value = copy.deepcopy(rng.choice(VALUES))
    key = rng.choice(["extra", "", "__class__", "name", "size", *map(str, list(node)[:3])])
    node.update({key: value}) if isinstance(node, dict) else node.insert(
      rng.randint(0, len(node)), value
    )
    return tree, f"{key!r}: {_short(value)} added to {where}"
  if kind == "grow" and isinstance(node, list) and node:
    node.extend(copy.deepcopy(node[: rng.randint(1, 20)]))
    return tree, f"{where} grown to {len(node)}"
  if kind == "swap" and path:
    other_path = rng.choice(paths[1:])
    value = copy.deepcopy(_at(tree, other_path))
    parent[path[-1]] = value
    return tree, f"{where} = the value of {'.'.join(map(str, other_path))}"
  if kind == "scale" and isinstance(node, int | float) and not isinstance(node, bool) and path:
    parent[path[-1]] = value = rng.choice(
      [node * 2, node + 1, node - 1, -node, node * 10**9, float(node), str(node)]
    )
    return tree, f"{where} = {_short(value)}"
  if kind == "nest" and path:
    parent[path[-1]] = rng.choice([[node], {"a": node}, [node, node]])
    return tree, f"{where} nested"
  value = copy.deepcopy(rng.choice(VALUES))
  if not path:
    return value, f"the root = {_short(value)}"
  parent[path[-1]] = value
  return tree, f"{where} = {_short(value)}"


def _at(tree: Any, path: tuple) -> Any:
  for key in path:
    tree = tree[key]
  return tree


def _short(value: Any) -> str:
  text = repr(value)
  return text if len(text) < 60 else f"{text[:50]}… ({len(text)})"


def json_text(tree: Any) -> bytes:
  return json.dumps(tree).encode()


def bent(data: bytes, rng: random.Random) -> tuple[bytes, str]:
  """(a file's bytes truncated, flipped, doubled, overwritten, or with others in between; what was
  changed)."""
  n = len(data)
  at = rng.randint(0, max(n - 1, 0))
  length = rng.choice((1, 2, 8, 64, 1000))
  kind = rng.choice(
    ("cut", "cut", "flip", "flip", "flip", "double", "insert", "drop", "huge", "empty", "shift")
  )
  if kind == "cut":
    return data[:at], f"cut at byte {at} of {n}"
  if kind == "flip" and n:
    places = [rng.randint(0, n - 1) for _ in range(rng.choice((1, 1, 4, 30)))]
    case_files = bytearray(data)
    for place in places:
      case_files[place] ^= 1 << rng.randint(0, 7)
    return bytes(case_files), f"bits flipped at {places[:4]}"
  if kind == "double":
    return data[:at] + data[at : at + length] * 2 + data[at + length :], (
      f"{length} bytes doubled at {at}"
    )
  if kind == "insert":
    change = rng.choice(
      (b"\0" * length, b"\xff" * length, rng.randbytes(length), b"\xed\xa0\x80", b"\xef\xbb\xbf")
    )
    return data[:at] + change + data[at:], f"{change[:8]!r}… inserted at {at}"
  if kind == "drop":
    return data[:at] + data[at + length :], f"{length} bytes dropped at {at}"
  if kind == "huge" and n >= 4:
    at = rng.randint(0, min(n - 4, 200))
    return data[:at] + b"\xff\xff\xff\x7f" + data[at + 4 :], f"a huge number at {at}"
  if kind == "shift":
    return data[at:] + data[:at], f"rotated by {at}"
  return b"", "emptied"


DEEP = b"[" * 100_000 + b"]" * 100_000


_executed: list[list[str]] = []
_hooked: list[bool] = []


def _audit(event: str, arguments: tuple) -> None:
  if _executed and event in _FORBIDDEN:
    _executed[-1].append(f"{event} {str(arguments)[:100]}")


@contextlib.contextmanager
def _executing() -> Iterator[list[str]]:
  """Collects the programs that are started, and the classes that are unpickled; a hook stays for
  good."""
  if not _hooked:
    sys.addaudithook(_audit)
    _hooked.append(True)
  _executed.append([])
  try:
    yield _executed[-1]
  finally:
    _executed.pop()


def run(
  case: Callable[[random.Random, pathlib.Path], tuple[str, Callable[[], Any]]],
  folder: pathlib.Path,
  seeds: Iterable[int],
) -> None:
  """Runs the cases of some seeds.

  Args:
    case: makes the files of a case in a directory, and returns (what it is, what to call with the
      only directory where it may write).
    folder: an empty directory.
    seeds: of the cases.
  Raises:
    AssertionError: naming every case that ended as none may, or that ran anything.
  """
  seeds = list(seeds)
  sandbox = Sandbox(folder / "sandbox", seconds=SECONDS, memory=MEMORY)
  ran = []
  for seed in seeds:
    case_files = folder / "files" / str(seed)
    case_files.mkdir(parents=True)
    change, call = case(generator(seed, 0), case_files)

    def called(case_folder: pathlib.Path, call=call) -> int | None:
      with _executing() as executed:
        code = handle_errors(lambda: call(case_folder))()
      ran.extend(f"{change}: {name}" for name in executed)
      return code

    sandbox.run(f"seed {seed}: {change}", called)
  print(f"seeds {seeds[0]} to {seeds[-1]}: ", end="")
  sandbox.check(min_cases=len(seeds))
  assert not ran, "\n".join(ran)
