"""Trains small sizes of a recipe, fits their losses, and predicts the loss and the rate of a larger
size.

Examples:
  python -m tools.ladder --config=configs/gpt/my_text.py --sizes=32,64,128 --predict=256 \\
      --workdir=runs/ladder \\
    --config.optimizer.name=adamw --config.tuning.name=mup --config.tuning.base=32
  python -m tools.ladder … --rates=0.002,0.004,0.008 --check=rates   # also finds rates, and trains the larger size

Losses are fitted by E + A / N^a, with N parameters outside token tables and outputs; with several
--steps, by E + A / N^a + B / D^b, with D target tokens. The rate of the larger size is the recipe's
or, with --rates, extrapolated from the best rates of the small sizes. --check trains the larger
size and says how far off the predictions were.

Every run is an ordinary workdir in --workdir/runs; the same command goes on where it was stopped,
and trains nothing twice. Results are in --workdir/ladder.json and ladder.html.
docs/how-to/scale-up.md has an example.
"""

import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Sequence

from ml_collections import ConfigDict

from t5x_like import command_line, recipes, train
from t5x_like.errors import NumericError, UserError, handle_errors
from t5x_like.files import checked_json, outputs
from t5x_like.files.paths import check_directory
from t5x_like.report.writer import read_metrics

from . import fitting, page, sizes


@dataclasses.dataclass(frozen=True)
class Trial:
  """A finished run: its size, parameters, steps, target tokens, rate and loss, which is infinite if
  it diverged."""

  size: str
  N: int
  steps: int
  D: float
  rate: float
  loss: float


@dataclasses.dataclass(frozen=True)
class Prediction:
  """The forecast of a size, its range over fits that leave a run out, and the measured loss and
  rate if trained."""

  size: str
  N: int
  steps: int
  D: float
  rate: float
  loss: float
  between: tuple[float, float] | None
  measured: float | None = None
  best_rate: float | None = None

  @property
  def off(self) -> float | None:
    """The error of the predicted loss, as a share of the measured loss."""
    return None if self.measured is None else self.loss / self.measured - 1.0


@handle_errors
def main(argv: list[str] | None = None) -> None:
  parser = command_line.Parser(__doc__, prog="python -m tools.ladder")
  parser.add_argument("--config", required=True, metavar="RECIPE", help="trained at every size")
  parser.add_argument(
    "--workdir",
    required=True,
    type=check_directory,
    metavar="DIR",
    help="of all runs and the results",
  )
  parser.add_argument("--sizes", required=True, metavar="LIST", help=f"three or more: {sizes.HELP}")
  parser.add_argument("--predict", required=True, metavar="SIZE", help="the larger size")
  parser.add_argument(
    "--steps", metavar="LIST", help="lengths of runs (default: the recipe's total_steps)"
  )
  parser.add_argument(
    "--rates", metavar="LIST", help="learning rates to try (default: the recipe's)"
  )
  parser.add_argument(
    "--seeds", type=int, default=1, metavar="N", help="runs of each, averaged (default: 1)"
  )
  parser.add_argument(
    "--metric", metavar="NAME", help="of metrics.jsonl (default: the loss of the evaluator `loss`)"
  )
  check = "train the larger size at the predicted rate, or at all --rates too"
  parser.add_argument("--check", choices=("once", "rates"), help=check)
  args, overrides = parser.parse(argv)
  config = recipes.load(args.config, overrides)
  small = sizes.listed(args.sizes, "--sizes", str, 3)
  steps = sizes.listed(args.steps, "--steps", int, 1) if args.steps else [config.total_steps]
  usual = config.schedule.get("learning_rate")
  if args.rates is None and usual is None:
    raise UserError("--rates: the recipe's schedule has no learning_rate; give one or more")
  rates = sizes.listed(args.rates, "--rates", float, 1) if args.rates else [usual]
  if args.check == "rates" and len(rates) < 2:
    raise UserError("--check=rates: needs several --rates")
  ladder = Ladder(config, args.workdir, args.metric, args.seeds)
  for size in (*small, args.predict):
    ladder.sized(size)  # refuses what cannot be before any training
  trials = [ladder.trial(size, count, rate) for size in small for count in steps for rate in rates]
  law, points = fitted(trials)
  made = predicted(ladder, args.predict, max(steps), law, points, trials)
  if args.check:
    grid = {made.rate, *(rates if args.check == "rates" else ())}
    tried = [ladder.trial(args.predict, made.steps, rate) for rate in sorted(grid)]
    best, _ = fitting.best_rate([one.rate for one in tried], [one.loss for one in tried])
    at_rate = next(one.loss for one in tried if one.rate == made.rate)
    measured = min(one.loss for one in tried) if args.check == "rates" else at_rate
    made = dataclasses.replace(
      made, measured=measured, best_rate=best if args.check == "rates" else None
    )
    trials += tried
  results = {
    "law": dataclasses.asdict(law),
    "prediction": dataclasses.asdict(made) | {"off": made.off},
    "trials": [
      dataclasses.asdict(one) | {"loss": one.loss if math.isfinite(one.loss) else None}
      for one in trials
    ],
  }
  outputs.write_output(f"{args.workdir}/ladder.json", json.dumps(results, indent=1) + "\n")
  outputs.write_output(f"{args.workdir}/ladder.html", page.html(args.config, trials, law, made))
  print(page.text(trials, law, made) + f"\n{args.workdir}/ladder.html", flush=True)


class Ladder:
  """The runs of a recipe at several sizes."""

  def __init__(self, config: ConfigDict, workdir: str, metric: str | None, seeds: int):
    self.config, self.workdir, self.metric, self.seeds = config, workdir, metric, max(1, seeds)

  def sized(self, size: str) -> ConfigDict:
    return sizes.at_size(self.config, size, "--sizes")

  def trial(self, size: str, steps: int, rate: float) -> Trial:
    """Train a size, or go on with it; return its last evaluation, averaged over seeds."""
    found = [
      self._run(size, steps, rate, self.config.seed + number) for number in range(self.seeds)
    ]
    losses, tokens, counts = zip(*found)
    trial = Trial(size, counts[0], steps, tokens[0], rate, sum(losses) / len(losses))
    print(f"size {size}, {steps} steps, rate {rate:g}: loss {trial.loss:.4f}", flush=True)
    return trial

  def _run(self, size: str, steps: int, rate: float, seed: int) -> tuple[float, float, int]:
    """Return (loss, target tokens, parameters); the loss is infinite if the run diverged."""
    from t5x_like.training.resolve import resolve

    config = self.sized(size)
    with config.unlocked(), config.schedule.unlocked(), config.schedule.ignore_type():
      config.total_steps = steps
      config.eval_every = steps
      config.seed = seed
      config.schedule.learning_rate = rate
    name = f"{size}_steps{steps}_rate{rate:g}_{checked_json.digest(config.to_dict())[:8]}"
    workdir = f"{self.workdir}/runs/{name}"
    count = sizes.parameters(resolve(config))
    if not (rows := self._finished(workdir, steps)):
      try:
        train.train_config(config, workdir)
      except NumericError as error:
        print(f"{workdir}: diverged: {error}", flush=True)
        return math.inf, 0.0, count
      rows = self._finished(workdir, steps)
    if not rows:
      raise UserError(
        f"config.evals: {workdir} has no evaluation of step {steps}, whose loss is fitted; add one"
      )
    metric = self.metric or next(
      (name for name in rows[-1] if name.endswith("/loss") and name.startswith("eval/")), None
    )
    if metric not in rows[-1]:
      raise UserError(
        f"--metric: {workdir} has no {metric or 'loss'} in its last evaluation; it has "
        f"{', '.join(rows[-1])}"
      )
    tokens = [row["train/target_tokens"] for row in rows if "train/target_tokens" in row]
    value = rows[-1][metric]
    return (
      math.inf if value is None else float(value),
      steps * sum(tokens) / max(len(tokens), 1),
      count,
    )

  def _finished(self, workdir: str, steps: int) -> list[dict]:
    """Return the metrics of a run that was evaluated at its end, the evaluation last; else none."""
    if not pathlib.Path(f"{workdir}/metrics.jsonl").is_file():
      return []
    rows = read_metrics(workdir)
    last = [
      row for row in rows if row["step"] == steps and any(name.startswith("eval/") for name in row)
    ]
    return [*rows, last[-1]] if last else []


def fitted(trials: Sequence[Trial]) -> tuple[fitting.Law, list[fitting.Point]]:
  """Return (the law, its points): the best run of every size and number of steps."""
  best: dict[tuple[str, int], Trial] = {}
  for one in trials:
    before = best.get((one.size, one.steps))
    if math.isfinite(one.loss) and (before is None or one.loss < before.loss):
      best[one.size, one.steps] = one
  points = [
    fitting.Point(one.N, one.D if len({x.steps for x in trials}) > 1 else 1.0, one.loss)
    for one in best.values()
  ]
  return fitting.fit(points), points


def predicted(
  ladder: Ladder, size: str, steps: int, law, points, trials: Sequence[Trial]
) -> Prediction:
  """Predict the loss and the rate of a larger size after so many steps."""
  from t5x_like.training.resolve import resolve

  N = sizes.parameters(resolve(ladder.sized(size)))
  own = [one for one in trials if one.steps == steps]
  rates = {}
  for name in dict.fromkeys(one.size for one in own):
    tried = [one for one in own if one.size == name]
    if not any(math.isfinite(one.loss) for one in tried):
      print(f"size {name}: diverged at every rate, and is left out", flush=True)
      continue
    rate, inside = fitting.best_rate([one.rate for one in tried], [one.loss for one in tried])
    if inside or len(tried) == 1:
      rates[next(one.N for one in tried)] = rate
    else:
      print(
        f"size {name}: its best rate {rate:g} is at an end of --rates, and is left out of the "
        "rate's fit",
        flush=True,
      )
  if not rates:
    raise UserError(
      "--rates: every size diverged, or its best rate is at an end; add lower or higher ones"
    )
  factor, power = fitting.rate_law(list(rates), list(rates.values()))
  rate = float(f"{factor * N**power:.3g}")
  D = next(one.D for one in own if math.isfinite(one.loss))
  at = D if len({point.D for point in points}) > 1 else 1.0
  return Prediction(size, N, steps, D, rate, law(N, at), fitting.spread(points, N, at))


if __name__ == "__main__":
  sys.exit(main())
