"""Tasks: everything between stores and batches. Imports no TensorFlow itself.

Data that a run prepares itself (stores of the sources in its recipe, counts of chunks) is kept in
`T5X_LIKE_CACHE`, a directory or an address shared by all runs that set it, otherwise in `data/` of
its workdir.
"""

import os

# The version of the map from (task fingerprint, seed, step) to examples. Increment it when that map
# changes, so that no run resumes with different data. 2: the order of an epoch is our own
# permutation, not TensorFlow's. 3: windows begin at other tokens in every epoch, where the task's
# fingerprint says so.
EDITION = 3
_default = "data/prepared"  # without a workdir


def use_cache(workdir: str) -> None:
  """Make `data/` in a workdir the default of this process."""
  global _default
  _default = f"{str(workdir).rstrip('/')}/data"


def cache_directory() -> str:
  """Return the directory or address of prepared data, without a trailing slash."""
  return (os.environ.get("T5X_LIKE_CACHE") or _default).rstrip("/")
