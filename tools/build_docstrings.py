"""Builds the embedded corpus, so that every later program finds it prepared.

Example:
  python -m tools.build_docstrings --data_dir=data/tfds

The corpus is the TFDS dataset `docstrings`: the docstrings of the Python standard library and of this project's
installed dependencies. The source `docstrings` (with the same data directory) builds it by itself; run this to do so
ahead of time. If the corpus is there already, nothing is done.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from t5x_like.errors import door


@door
def main(arguments: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog="python -m tools.build_docstrings", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--data_dir", help="where TFDS keeps prepared datasets; its own default if not given")
  options = parser.parse_args(arguments)

  from t5x_like.data.docstrings.builder import Docstrings, prepare

  started = time.monotonic()
  builder = Docstrings(data_dir=options.data_dir, progress=_Progress())
  built = prepare(builder)
  splits = ", ".join(f"{name} {split.num_examples:,}" for name, split in sorted(builder.info.splits.items()))
  megabytes = sum(builder.info.metadata["characters"].values()) / 1e6
  took = f"built in {time.monotonic() - started:.0f} s" if built else "exists already, nothing to do"
  print(f"corpus {builder.info.full_name}: {took}; {splits} documents, {megabytes:.1f} million characters")
  print(f"in {builder.data_dir}")
  return 0


class _Progress:
  """One line on stderr that counts files: rewritten in place on a terminal, else printed at each tenth."""

  def __init__(self):
    self._shown = 0

  def __call__(self, done: int, total: int) -> None:
    terminal = sys.stderr.isatty()
    step = 100 if terminal else 10
    if done * step // total > self._shown or done == total:
      self._shown = done * step // total
      start, end = ("\r", "\n" if done == total else "") if terminal else ("", "\n")
      print(f"{start}reading docstrings: {done:,} of {total:,} files", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
  sys.exit(main())
