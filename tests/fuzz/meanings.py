"""Well-formed but hostile values for saved files: locations, sources, functions and numbers.

Each function takes the random generator of a case, a directory that must not be reached
(`elsewhere`), and the directory of the file that is to contain the value (`allowed`).
"""

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


def draw_location(rng: random.Random, elsewhere: str, allowed: str) -> str:
  """Return a path, a URL or a chain of URLs, as fsspec's `zip://a::https://b`."""
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
  base = rng.choice(
    (elsewhere, f"{allowed}/../elsewhere", "../elsewhere", f"{allowed}/link", "/proc/self", "/etc")
  )
  path = f"{base}/{rng.choice(names)}"
  path = rng.choice(
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
  for _ in range(rng.choice((0, 0, 1, 1, 2))):
    scheme = rng.choice(SCHEMES)
    form = rng.choice(
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


def draw_source(rng: random.Random, elsewhere: str, allowed: str) -> str:
  """Return a source of records, such as `jsonl:PATH`, at a hostile location."""
  path = draw_location(rng, elsewhere, allowed)
  if rng.random() < 0.3:
    path = f"train={path},validation={draw_location(rng, elsewhere, allowed)}"
  spelled = f"{rng.choice(FORMATS)}:{path}"
  if rng.random() < 0.3:
    spelled = rng.choice(WRAPPERS) + spelled
  return spelled


def draw_value(rng: random.Random, elsewhere: str, allowed: str) -> Any:
  """Return a location, a source, a function's name or a number."""
  draw = rng.choice((draw_location, draw_location, draw_source, draw_source, None, None))
  if draw is not None:
    return draw(rng, elsewhere, allowed)
  return rng.choice((*FUNCTIONS, *NUMBERS))


def mutate_meaning(rng: random.Random, tree: Any, elsewhere: str, allowed: str) -> tuple[Any, str]:
  """Return a copy of a parsed file with up to three hostile values, and a description of them."""
  tree = json.loads(json.dumps(tree))
  changes = []
  for _ in range(rng.choice((1, 1, 2, 3))):
    node = rng.choice(_list_objects(tree))
    if node and rng.random() < 0.5:
      key = rng.choice(sorted(node))
    else:
      key = rng.choice(KEYS)
    old = node.get(key)
    new = draw_value(rng, elsewhere, allowed)
    if key in ("source", "passages"):
      new = draw_source(rng, elsewhere, allowed)
    elif isinstance(old, dict) and rng.random() < 0.8:
      new = old | {rng.choice(KEYS): new}
    elif isinstance(old, list) and rng.random() < 0.8:
      new = [*old, new]
    node[key] = new
    changes.append(f"{key}={str(new)[:80]!r}")
  return tree, "; ".join(changes)


def _list_objects(tree: Any) -> list[dict]:
  """Return all JSON objects of a parsed file, the outermost first."""
  if isinstance(tree, dict):
    objects = [tree]
    children = tree.values()
  elif isinstance(tree, list):
    objects = []
    children = tree
  else:
    return []
  for child in children:
    objects += _list_objects(child)
  return objects
