"""Well-formed values of saved files that a hostile author would choose."""

import json
import random
from typing import Any

from tests.fuzz.sentinels import MODULE

SCHEMES = (
  "gs s3 s3a http https ftp sftp ssh file local memory reference zip tar simplecache filecache "
  "blockcache dir git github hdfs webhdfs smb jlab dask libarchive data az hf FILE GS Reference"
).split()
FORMATS = (
  "jsonl json parquet arrow webdataset hf tsv csv text lines parallel squad conll folders idx voc "
  "coco boxes tfds multirc sgm stories builtin digits facts docstrings official"
).split()
WRAPPERS = (
  "held_out:2@",
  "cloze:",
  "objects:",
  "salient:",
  "t5:stsb:",
  f"salient:{MODULE}:function@",
  "seqio:",
)
FUNCTIONS = (
  f"{MODULE}:function",
  "subprocess:getoutput",
  "os:system",
  "builtins:exec",
  "t5x_like.trust:admit",
  "t5x_like.trust:begin",
  "shutil:rmtree",
  "tests.tiny:model",
)
KEYS = (
  "store source cache data_dir vocabulary folder passages workdir directory name preprocessors "
  "sentence_rule files names template core head backbone split train_split verify"
).split()
NUMBERS = (
  0,
  -1,
  1,
  3,
  2**31,
  2**63,
  10**12,
  10**30,
  -(10**9),
  0.5,
  1e308,
  float("nan"),
  float("inf"),
  True,
  None,
)


def location(choice: random.Random, elsewhere: str, allowed: str) -> str:
  """Return a path, an address or a chain of addresses.

  Args:
    elsewhere: a directory that must not be reached.
    inside: the directory of the file that will have it.
  """
  names = (
    "secret.txt",
    "rows.jsonl",
    "tokens",
    "vocabulary",
    "references.json",
    "none",
    "*.txt",
    "",
  )
  base = choice.choice(
    (elsewhere, f"{allowed}/../elsewhere", "../elsewhere", f"{allowed}/link", "/proc/self", "/etc")
  )
  path = f"{base}/{choice.choice(names)}"
  path = choice.choice(
    (
      path,
      path,
      path,
      "/dev/zero",
      "/etc/passwd",
      "~/x",
      "$HOME/x",
      "//host/x",
      "",
      ".",
      "..",
      "\0",
    )
  )
  for _ in range(choice.choice((0, 0, 1, 1, 2))):
    scheme = choice.choice(SCHEMES)
    form = choice.choice(
      (
        "{0}://{1}",
        "{0}://{1}",
        "{0}:///{1}",
        "{0}://x::{1}",
        "{0}::{1}",
        "{0}:{1}",
        "{0}://bucket/{1}",
      )
    )
    path = form.format(scheme, path)
  return path


def source(choice: random.Random, elsewhere: str, allowed: str) -> str:
  """Return a source of records elsewhere."""
  path = location(choice, elsewhere, allowed)
  if choice.random() < 0.3:
    path = f"train={path},validation={location(choice, elsewhere, allowed)}"
  spelled = f"{choice.choice(FORMATS)}:{path}"
  if choice.random() < 0.3:
    spelled = choice.choice(WRAPPERS) + spelled
  return spelled


def value(choice: random.Random, elsewhere: str, allowed: str) -> Any:
  """Return a hostile value."""
  make = choice.choice((location, location, source, source, None, None))
  if make is not None:
    return make(choice, elsewhere, allowed)
  return choice.choice((*FUNCTIONS, *NUMBERS))


def mutation(choice: random.Random, tree: Any, elsewhere: str, allowed: str) -> tuple[Any, str]:
  """Return a copy of a parsed file with up to three other values, and what was changed."""
  tree = json.loads(json.dumps(tree))
  changes = []
  for _ in range(choice.choice((1, 1, 2, 3))):
    objects = [node for node in _objects(tree)]
    node = choice.choice(objects)
    if node and choice.random() < 0.5:
      key = choice.choice(sorted(node))
    else:
      key = choice.choice(KEYS)
    old = node.get(key)
    new = value(choice, elsewhere, allowed)
    if key in ("source", "passages"):
      new = source(choice, elsewhere, allowed)
    elif isinstance(old, dict) and choice.random() < 0.8:
      new = old | {choice.choice(KEYS): new}
    elif isinstance(old, list) and choice.random() < 0.8:
      new = [*old, new]
    node[key] = new
    changes.append(f"{key}={str(new)[:80]!r}")
  return tree, "; ".join(changes)


def _objects(tree: Any) -> list[dict]:
  """Return all objects of a parsed file, the outermost first."""
  objects = [tree] if isinstance(tree, dict) else []
  items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
  for item in items:
    objects += _objects(item)
  return objects
