"""Where data is kept that a run makes for itself: stores of the sources that its recipe names, counts of chunks.

`T5X_LIKE_CACHE`, a directory or an address, is shared by all runs that have it set. Otherwise it is `data/` in the
workdir of the run.
"""

import os

_default = "data/prepared"  # where there is no workdir


def use(workdir: str) -> None:
  """Makes `data/` in a workdir the default of this process."""
  global _default
  _default = f"{str(workdir).rstrip('/')}/data"


def directory() -> str:
  """The directory or address, without a slash at its end."""
  return (os.environ.get("T5X_LIKE_CACHE") or _default).rstrip("/")
