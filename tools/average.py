"""Average the last checkpoints of a run into a new workdir.

Examples:
  python -m tools.average --workdir=runs/base --last=5 --output=runs/base_mean
  python -m tools.average --workdir=runs/base --steps=8000,9000,10000 --output=runs/base_mean
  python -m t5x_like.evaluate --workdir=runs/base_mean --config=RECIPE

The mean of the weights along a run with a constant or slowly falling rate often scores better than
the last weights (Izmailov et al. 2018, arXiv:1803.05407). evaluate, predict and
--config.init.workdir read the new workdir like any other; a run that continues in it starts a new
optimizer. A run keeps --config.checkpoint.keep_last checkpoints. If a run has a moving average
(--config.optimizer.ema), the averages are averaged.
"""

import functools
import sys

from t5x_like import command_line
from t5x_like.errors import UserError, handle_errors
from t5x_like.files import outputs
from t5x_like.files.paths import check_directory

from .ladder import sizes


@handle_errors
def main(argv: list[str] | None = None) -> None:
  parser = command_line.Parser(__doc__, prog="python -m tools.average")
  parser.add_argument(
    "--workdir", required=True, type=check_directory, metavar="DIR", help="workdir of the run"
  )
  kind = functools.partial(check_directory, flag="--output")
  parser.add_argument("--output", required=True, type=kind, metavar="DIR", help="new workdir")
  parser.add_argument(
    "--last", type=int, default=5, metavar="N", help="number of newest checkpoints (default: 5)"
  )
  parser.add_argument("--steps", metavar="LIST", help="steps of the checkpoints, instead of --last")
  args = parser.parse_args(sys.argv[1:] if argv is None else argv)
  outputs.check_new(args.output, "--output=")
  if args.last < 1:
    raise UserError(f"--last={args.last}: expected 1 or more")
  steps = sorted(sizes.parse_list(args.steps, "--steps", int, 1)) if args.steps else None

  from t5x_like.runtime import process

  process.prepare()
  averaged = average(args.workdir, args.output, args.last, steps)
  process.log(f"{args.output}: the mean of steps {', '.join(map(str, averaged))} of {args.workdir}")


def average(workdir: str, output: str, last: int, steps: list[int] | None = None) -> list[int]:
  """Write a workdir with the mean of a run's checkpoints; return their steps.

  Args:
    last: number of newest checkpoints, if `steps` is None.
    steps: steps of the checkpoints.

  Raises:
    UserError: the workdir holds no run, has adapters, or lacks a step.
  """
  import jax
  import numpy as np

  from t5x_like.checkpoints.manager import Checkpoints
  from t5x_like.checkpoints.manifest import nest
  from t5x_like.nn.linear import has_adapters
  from t5x_like.saved_model import open_saved_model
  from t5x_like.training import imported_weights

  run = open_saved_model(workdir)
  if run.is_published:
    raise UserError(
      f"--workdir: {workdir} is a published model, which has no checkpoints of a "
      "run; give a workdir"
    )
  if has_adapters(run.model):
    raise UserError(
      f"--workdir: {workdir} has adapters, whose products have no such mean; train without them"
    )
  with Checkpoints(f"{workdir}/checkpoints") as checkpoints:
    saved = checkpoints.steps()
  steps = saved[-last:] if steps is None else steps
  if missing := [step for step in steps if step not in saved]:
    raise UserError(
      f"--steps: found {missing[0]}, expected some of {', '.join(map(str, saved)) or 'none'}"
    )
  if not steps:
    raise UserError(f"--workdir: {workdir} has no checkpoint yet; train first")
  _, mean = run.restore(steps[0])
  for count, step in enumerate(steps[1:], 2):
    _, arrays = run.restore(step)
    for name, x in mean.items():
      mean[name] = x + (arrays[name] - x) / count
  tree = {f"params/{name}": x for name, x in mean.items()}
  tree["step"] = jax.device_put(np.int32(steps[-1]), run.rules.replicated)
  imported_weights.write_imported_workdir(output, run.config, run.vocabulary, steps[-1], nest(tree))
  return steps


if __name__ == "__main__":
  sys.exit(main())
