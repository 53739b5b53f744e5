"""Measure one part of the system on this machine.

Example:
  python -m tools.benchmark data
  python -m tools.benchmark permutation
  python -m tools.benchmark step --config=configs/t5/base.py:small

Each prints its method and, as its last line, one JSON object. Figures are meaningful only on idle
cores.
"""

import argparse
import importlib
import sys

from t5x_like.errors import handle_errors
from t5x_like.runtime.huge_pages import use_huge_pages

_SUBJECTS = {
  "data": "the input pipeline, from the token store to host batches",
  "images": "images through the input pipeline, against decoding alone and, if installed, "
  "torchvision",
  "store": "reads of a token store, by default a simulated one of 10^12 tokens",
  "permutation": "the order of an epoch: its randomness and cost",
  "step": "the train step, against the machine's own matrix multiplication",
  "fine_tune": "a step of fine-tuning BERT, alternating with PyTorch if it is installed",
  "decode": "greedy decoding, against PyTorch if it is installed",
  "memory": "memory of a step with its loss in chunks, against all logits at once",
  "marks": "steps for which other systems publish their speed, in a table, with profiles",
  "loop": "cost of the training loop around its steps, and of a save",
  "resume": "time from the start of the command to the next step, also of a run that is killed",
}


@handle_errors
def main(argv: list[str] | None = None) -> int | None:
  argv = sys.argv[1:] if argv is None else argv
  parser = argparse.ArgumentParser(
    prog="python -m tools.benchmark",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  subparsers = parser.add_subparsers(
    dest="subject", required=True, metavar="{" + ",".join(_SUBJECTS) + "}"
  )
  subject = None
  for name, words in _SUBJECTS.items():
    subparser = subparsers.add_parser(name, help=words, description=words)
    if argv[:1] == [name]:  # import only the benchmark that runs
      subject = importlib.import_module(f"{__package__}.{name}")
      subject.add_arguments(subparser)
  args = parser.parse_args(argv)
  return subject.main(args) if subject else None


if __name__ == "__main__":
  use_huge_pages()
  sys.exit(main())
