"""Prove how a run was trained, from the certificate in its workdir.

python -m t5x_like.certify --workdir=runs/base [--steps=N|all] [--replay=N|all]
python -m t5x_like.certify --workdir=runs/base --against=runs/repeated

Every run writes certificate.jsonl, a chain of hashes with a record of each step. This command
checks that the chain is one history without gap or fork; that config.json, metrics.jsonl and every
tensor of the kept checkpoints match their records; and that the batches follow from config, data
and seed, for which it makes --steps of them again from the store. --replay computes steps again
from kept checkpoints. On the devices and versions of the run, all bits must be equal; elsewhere,
losses must agree within a bound. The run's accelerators are not needed. --against finds the first
step at which two runs differ, and the difference. --config.KEY=VALUE names another location of the
data, such as --config.task.store=DIR.

Exit codes: 0 the certificate holds (or the runs agree); 7 it does not, and one line on stderr names
the first wrong step and the kind of fault: chain, config, data, code, state or metrics; 2 an error
that one line on stderr explains. See docs/how-to/certify-a-run.md.
"""

import argparse
import json
import sys

from t5x_like import command_line
from t5x_like.errors import UserError, handle_errors
from t5x_like.files import outputs
from t5x_like.files.paths import check_directory

EXIT_DOES_NOT_HOLD = 7
_ALL = "all"
_DEFAULT_BATCHES = 16
_PROGRESS_STEPS = 100


@handle_errors
def main(argv: list[str]) -> int:
  args, overrides = _parse(argv)
  workdirs = [path for path in (args.workdir, args.against) if path]
  json_output = outputs.OutputFile(args.json, "--json", workdirs) if args.json else None
  from t5x_like import data
  from t5x_like.runtime import process

  process.prepare()
  data.use_cache(args.workdir)
  if args.against:
    return _compare(args.workdir, args.against, json_output)
  return _certify(args, overrides, json_output)


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
  """Parse the program's arguments into (flags, overrides of the config)."""
  parser = command_line.Parser(__doc__)
  parser.add_argument(
    "--workdir", required=True, type=check_directory, metavar="DIR", help="the run's directory"
  )
  parser.add_argument(
    "--steps",
    type=_step_count,
    default=_DEFAULT_BATCHES,
    metavar="N|all",
    help=f"how many batches to make again from the data (default: {_DEFAULT_BATCHES})",
  )
  parser.add_argument(
    "--replay",
    type=_step_count,
    default=0,
    metavar="N|all",
    help="how many steps to compute again from kept checkpoints (default: none)",
  )
  parser.add_argument(
    "--against", type=check_directory, metavar="DIR", help="another run, to compare step by step"
  )
  parser.add_argument("--json", metavar="FILE", help="write the outcome to this file")
  args, overrides = parser.parse(argv)
  if args.against and (args.replay or overrides):
    raise UserError("--against compares two chains; leave --replay and --config.KEY out")
  return args, overrides


def _step_count(text: str) -> int:
  """Parse a number of steps, or `all` into one that no run has, as the type of a flag."""
  return sys.maxsize if text == _ALL else command_line.step_number(text)


def _certify(args, overrides: list[str], json_output: outputs.OutputFile | None) -> int:
  """Verify a run, print the page, and return the exit code."""
  from t5x_like.certificate.history import Break
  from t5x_like.certificate.verification import checks as verification_checks
  from t5x_like.certificate.verification import page
  from t5x_like.certificate.verification.certified_run import open_certified_run

  history = None
  try:
    run = open_certified_run(args.workdir, overrides)
    history = run.history
    checks = [verification_checks.Check("chain", page.describe_chain(history))]
    checks += verification_checks.check_all(run, args.steps, args.replay, _print_progress)
  except Break as failure:
    checks = [verification_checks.Check("chain", str(failure), failure)]
  print(page.render_certificate(args.workdir, history, checks))
  _write_json(json_output, page.to_json(history, checks))
  failures = [check.failure for check in checks if check.failure]
  if not failures:
    return 0
  first = min(failures, key=lambda failure: failure.step)
  return _refuse(args.workdir, f"does not hold: {first}")


def _compare(workdir: str, against: str, json_output: outputs.OutputFile | None) -> int:
  """Compare two runs, print the page, and return the exit code."""
  from t5x_like.certificate.history import Break
  from t5x_like.certificate.verification import page
  from t5x_like.certificate.verification.certified_run import open_certified_run
  from t5x_like.certificate.verification.comparison import compare_histories

  histories = []
  for address in (workdir, against):
    try:
      histories.append(open_certified_run(address).history)
    except Break as failure:
      return _refuse(address, f"does not hold: {failure}")
  comparison = compare_histories(*histories)
  print(page.render_comparison(workdir, against, comparison))
  _write_json(json_output, page.comparison_to_json(comparison))
  if comparison.difference is None:
    return 0
  return _refuse(workdir, f"differs from {against}: {comparison.difference}")


def _refuse(address: str, reason: str) -> int:
  print(f"{address}: {reason}", file=sys.stderr)
  return EXIT_DOES_NOT_HOLD


def _print_progress(name: str, count: int) -> None:
  if count % _PROGRESS_STEPS == 0:
    print(f"{name}: {count} steps so far", file=sys.stderr, flush=True)


def _write_json(output: outputs.OutputFile | None, content: dict) -> None:
  if output:
    output.write([json.dumps(content, indent=2) + "\n"])


if __name__ == "__main__":
  command_line.run_program(main)
