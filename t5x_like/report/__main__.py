"""Write a run's page again, or compare runs.

  python -m t5x_like.report RUN [RUN …] [--output=comparison.html]

With one workdir, its `report.html` is written. With several, one page shows their verdicts, last
evaluations, curves on the same axes and the keys in which their configs differ.
"""

import argparse
import sys

from t5x_like.errors import UserError, handle_errors
from t5x_like.files.paths import check_directory, is_remote
from t5x_like.report import comparison, page


@handle_errors
def main(argv: list[str] | None = None) -> None:
  """Write a page and print its path; raise UserError for a workdir that holds no run."""
  parser = argparse.ArgumentParser(
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    prog="python -m t5x_like.report",
  )
  parser.add_argument("runs", nargs="+", type=check_directory, metavar="RUN", help="a workdir")
  parser.add_argument(
    "--output",
    default="comparison.html",
    metavar="FILE",
    help="page that compares several runs (default: %(default)s)",
  )
  args = parser.parse_args(argv)
  if len(args.runs) == 1:
    if is_remote(args.runs[0]):
      raise UserError(
        f"{args.runs[0]}: found an address, whose run writes {page.FILE} there "
        "itself; give a local copy"
      )
    comparison.check(args.runs[0])
    print(page.write_report(args.runs[0]))
  else:
    comparison.write(args.runs, args.output)
    print(args.output)


if __name__ == "__main__":
  sys.exit(main())
