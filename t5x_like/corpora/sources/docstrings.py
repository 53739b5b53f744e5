"""`docstrings`: the embedded corpus (`_docstrings/`), built in `data_dir` on first use.

`docstrings:tiny` has the few standard-library modules from which the built-in store is made.
"""

import sys

from t5x_like.corpora.sources import tfds
from t5x_like.corpora.sources._docstrings.builder import Docstrings, prepare
from t5x_like.errors import UserError, did_you_mean


def _open_builder(spec: str, data_dir: str | None) -> Docstrings:
  """Return the builder of the corpus of a name, built if necessary."""
  configs = [config.name for config in Docstrings.BUILDER_CONFIGS]
  if spec and spec not in configs:
    raise UserError(
      f"source docstrings:{spec}: found {spec!r} after the colon, expected nothing or one of "
      f"{', '.join(configs)}{did_you_mean(spec, configs)}"
    )
  builder = Docstrings(
    config=spec or configs[0], data_dir=data_dir, progress=None if spec else _Progress()
  )
  prepare(builder)
  return builder


class Source(tfds.Source):
  """One record per docstring; fields text, package, module and qualname."""

  open_builder = staticmethod(_open_builder)


class _Progress:
  """Prints a count of files on stderr.

  On a terminal one line is rewritten in place; otherwise there is a line at each tenth.
  """

  def __init__(self):
    self._reported_step = 0

  def __call__(self, done: int, total: int) -> None:
    terminal = sys.stderr.isatty()
    steps = 100 if terminal else 10
    if done * steps // total > self._reported_step or done == total:
      self._reported_step = done * steps // total
      start = "\r" if terminal else ""
      end = "" if terminal and done < total else "\n"
      print(
        f"{start}reading docstrings: {done:,} of {total:,} files",
        end=end,
        file=sys.stderr,
        flush=True,
      )
