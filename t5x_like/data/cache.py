"""The directory of data that a run prepares itself: stores of the sources in its recipe, counts of chunks.

`T5X_LIKE_CACHE`, a directory or an address, is shared by all runs that set it. Otherwise each run uses `data/` in its
workdir.
"""

import os

_default = "data/prepared"  # without a workdir


def use(workdir: str) -> None:
  """Make `data/` in a workdir the default of this process."""
  global _default
  _default = f"{str(workdir).rstrip('/')}/data"


def directory() -> str:
  """Return the directory or address, without a trailing slash."""
  return (os.environ.get("T5X_LIKE_CACHE") or _default).rstrip("/")
