"""Read stores and turn their contents into batches. This module does not import TensorFlow.

A run keeps the data that it prepares itself (stores of the sources in its recipe, counts of chunks)
in the directory or URL of the environment variable `T5X_LIKE_CACHE`, which several runs may share.
Without the variable, it keeps them in `data/` of its workdir.
"""

import os

# The version of the map from (task fingerprint, seed, step) to examples. Increment it when that map
# changes, so that no run resumes with different data.
#   2: the order of an epoch is a permutation of this package, not TensorFlow's.
#   3: tasks may begin their windows at different tokens in every epoch.
EDITION = 3
_default_directory = "data/prepared"  # until `use_cache` names a workdir
_announced: set[str] = set()  # lines that were printed


def use_cache(workdir: str) -> None:
  """Make `data/` in a workdir the default of this process."""
  global _default_directory
  _default_directory = f"{str(workdir).rstrip('/')}/data"


def cache_directory() -> str:
  """Return the directory or URL of prepared data, without a trailing slash."""
  return (os.environ.get("T5X_LIKE_CACHE") or _default_directory).rstrip("/")


def announce(line: str, detail: str = "") -> None:
  """Print a line about the data, once in a process: several tasks may open the same store.

  Args:
    detail: the end of the line, which may differ each time.
  """
  if line not in _announced:
    _announced.add(line)
    print(f"data: {line}{detail}", flush=True)
