"""Train small sizes of a recipe, and predict the loss and the learning rate of a larger size.

Examples:
  python -m tools.ladder --config=configs/gpt/my_text.py --sizes=32,64,128 --predict=256 \\
      --workdir=runs/ladder --config.optimizer.name=adamw --config.tuning.name=mup \\
      --config.tuning.base=32
  # also find rates, and train the larger size
  python -m tools.ladder … --rates=0.002,0.004,0.008 --check=rates

Losses are fitted by E + A / N^a, with N parameters outside token tables and outputs; with several
--steps, by E + A / N^a + B / D^b, with D target tokens. The rate of the larger size is the recipe's
or, with --rates, extrapolated from the best rates of the small sizes. --check trains the larger
size and prints the error of the predictions.

Every run is an ordinary workdir in --workdir/runs; the same command continues where it was stopped,
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
  """A finished run.

  Attributes:
    size: size of the model, as a flag names it.
    N: number of parameters outside token tables and outputs.
    steps: number of training steps.
    D: number of target tokens of training.
    rate: learning rate.
    loss: mean loss over seeds; infinite if a run diverged.
  """

  size: str
  N: int
  steps: int
  D: float
  rate: float
  loss: float


@dataclasses.dataclass(frozen=True)
class Prediction:
  """The forecast of a size.

  Attributes:
    size, N, steps, D, rate: fields of `Trial`.
    loss: predicted loss.
    between: range of the predicted loss over fits that leave out one run; None if too few runs
      remain.
    measured: measured loss, if the size was trained.
    best_rate: best learning rate, if several were tried.
  """

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


def _make_parser() -> command_line.Parser:
  parser = command_line.Parser(__doc__, prog="python -m tools.ladder")
  parser.add_argument("--config", required=True, metavar="RECIPE", help="recipe of all sizes")
  parser.add_argument(
    "--workdir",
    required=True,
    type=check_directory,
    metavar="DIR",
    help="directory of all runs and the results",
  )
  parser.add_argument("--sizes", required=True, metavar="LIST", help=f"three or more: {sizes.HELP}")
  parser.add_argument(
    "--predict", required=True, metavar="SIZE", help="larger size, whose loss is predicted"
  )
  parser.add_argument(
    "--steps", metavar="LIST", help="lengths of runs (default: the recipe's total_steps)"
  )
  parser.add_argument(
    "--rates", metavar="LIST", help="learning rates to try (default: the recipe's)"
  )
  parser.add_argument(
    "--seeds",
    type=int,
    default=1,
    metavar="N",
    help="runs of each size, which are averaged (default: 1)",
  )
  parser.add_argument(
    "--metric",
    metavar="NAME",
    help="metric of metrics.jsonl (default: the loss of the evaluator `loss`)",
  )
  check_help = "train the larger size at the predicted rate, or at all --rates too"
  parser.add_argument("--check", choices=("once", "rates"), help=check_help)
  return parser


@handle_errors
def main(argv: list[str] | None = None) -> None:
  args, overrides = _make_parser().parse(argv)
  config = recipes.load(args.config, overrides)
  small_sizes = sizes.parse_list(args.sizes, "--sizes", str, 3)
  steps = sizes.parse_list(args.steps, "--steps", int, 1) if args.steps else [config.total_steps]
  recipe_rate = config.schedule.get("learning_rate")
  if args.rates is None and recipe_rate is None:
    raise UserError("--rates: the recipe's schedule has no learning_rate; give one or more")
  rates = sizes.parse_list(args.rates, "--rates", float, 1) if args.rates else [recipe_rate]
  if args.check == "rates" and len(rates) < 2:
    raise UserError("--check=rates: needs several --rates")
  ladder = Ladder(config, args.workdir, args.metric, args.seeds)
  for size in (*small_sizes, args.predict):
    ladder.config_at(size)  # raises for an impossible size before any training
  trials = []
  for size in small_sizes:
    for count in steps:
      trials += [ladder.trial(size, count, rate) for rate in rates]
  law, points = fit_trials(trials)
  prediction = predict_size(ladder, args.predict, max(steps), law, points, trials)
  if args.check:
    prediction, check_trials = check(ladder, prediction, rates if args.check == "rates" else [])
    trials += check_trials
  results = {
    "law": dataclasses.asdict(law),
    "prediction": dataclasses.asdict(prediction) | {"off": prediction.off},
    "trials": [_trial_as_json(trial) for trial in trials],
  }
  outputs.write_output(f"{args.workdir}/ladder.json", json.dumps(results, indent=1) + "\n")
  html = page.html(args.config, trials, law, prediction)
  outputs.write_output(f"{args.workdir}/ladder.html", html)
  print(page.text(trials, law, prediction) + f"\n{args.workdir}/ladder.html", flush=True)


def check(
  ladder: "Ladder", prediction: Prediction, rates: Sequence[float]
) -> tuple[Prediction, list[Trial]]:
  """Train the larger size at the predicted rate and other rates; return the measured prediction."""
  grid = sorted({prediction.rate, *rates})
  trials = [ladder.trial(prediction.size, prediction.steps, rate) for rate in grid]
  losses = [trial.loss for trial in trials]
  if rates:
    best, _ = fitting.best_rate(grid, losses)
    return dataclasses.replace(prediction, measured=min(losses), best_rate=best), trials
  return dataclasses.replace(prediction, measured=losses[0]), trials


def _trial_as_json(trial: Trial) -> dict:
  """Return the fields of a trial; an infinite loss, which JSON lacks, becomes None."""
  loss = trial.loss if math.isfinite(trial.loss) else None
  return dataclasses.asdict(trial) | {"loss": loss}


class Ladder:
  """The runs of a recipe at several sizes."""

  def __init__(self, config: ConfigDict, workdir: str, metric: str | None, seeds: int):
    self.config = config
    self.workdir = workdir
    self.metric = metric
    self.seeds = max(1, seeds)

  def config_at(self, size: str) -> ConfigDict:
    """Return the recipe's config at a size."""
    return sizes.at_size(self.config, size, "--sizes")

  def trial(self, size: str, steps: int, rate: float) -> Trial:
    """Train a size, or continue its training; return its last evaluation, averaged over seeds."""
    seeds = range(self.config.seed, self.config.seed + self.seeds)
    runs = [self._run(size, steps, rate, seed) for seed in seeds]
    losses, tokens, counts = zip(*runs)
    trial = Trial(size, counts[0], steps, tokens[0], rate, sum(losses) / len(losses))
    print(f"size {size}, {steps} steps, rate {rate:g}: loss {trial.loss:.4f}", flush=True)
    return trial

  def _run(self, size: str, steps: int, rate: float, seed: int) -> tuple[float, float, int]:
    """Return (loss, target tokens, parameters); the loss is infinite if the run diverged."""
    from t5x_like.training.resolve import resolve

    config = self.config_at(size)
    with config.unlocked(), config.schedule.unlocked(), config.schedule.ignore_type():
      config.total_steps = steps
      config.eval_every = steps
      config.seed = seed
      config.schedule.learning_rate = rate
    name = f"{size}_steps{steps}_rate{rate:g}_{checked_json.digest(config.to_dict())[:8]}"
    workdir = f"{self.workdir}/runs/{name}"
    count = sizes.parameters(resolve(config))
    rows = self._read_finished(workdir, steps)
    if not rows:
      try:
        train.train_config(config, workdir)
      except NumericError as error:
        print(f"{workdir}: diverged: {error}", flush=True)
        return math.inf, 0.0, count
      rows = self._read_finished(workdir, steps)
    if not rows:
      raise UserError(
        f"config.evals: {workdir} has no evaluation of step {steps}, whose loss is fitted; add one"
      )
    tokens = [row["train/target_tokens"] for row in rows if "train/target_tokens" in row]
    value = rows[-1][self._choose_metric(workdir, rows[-1])]
    loss = math.inf if value is None else float(value)
    return loss, steps * sum(tokens) / max(len(tokens), 1), count

  def _choose_metric(self, workdir: str, metrics: dict) -> str:
    """Return the name of the fitted metric: --metric, or else the first loss of an evaluation.

    Raises:
      UserError: the metrics of the last evaluation lack it.
    """
    name = self.metric
    if not name:
      losses = [key for key in metrics if key.startswith("eval/") and key.endswith("/loss")]
      name = losses[0] if losses else None
    if name not in metrics:
      raise UserError(
        f"--metric: {workdir} has no {name or 'loss'} in its last evaluation; it has "
        f"{', '.join(metrics)}"
      )
    return name

  def _read_finished(self, workdir: str, steps: int) -> list[dict]:
    """Return the metrics of a run, the evaluation at its end last; none if it is unfinished."""
    if not pathlib.Path(f"{workdir}/metrics.jsonl").is_file():
      return []
    rows = read_metrics(workdir)
    for row in reversed(rows):
      if row["step"] == steps and any(name.startswith("eval/") for name in row):
        return [*rows, row]
    return []


def fit_trials(trials: Sequence[Trial]) -> tuple[fitting.Law, list[fitting.Point]]:
  """Return (the law, its points): the best run of every size and number of steps."""
  best: dict[tuple[str, int], Trial] = {}
  for trial in trials:
    best_trial = best.get((trial.size, trial.steps))
    if math.isfinite(trial.loss) and (best_trial is None or trial.loss < best_trial.loss):
      best[trial.size, trial.steps] = trial
  has_lengths = len({trial.steps for trial in trials}) > 1
  points = [
    fitting.Point(trial.N, trial.D if has_lengths else 1.0, trial.loss) for trial in best.values()
  ]
  return fitting.fit(points), points


def predict_size(
  ladder: Ladder, size: str, steps: int, law, points, trials: Sequence[Trial]
) -> Prediction:
  """Predict the loss and the rate of a larger size after a number of steps."""
  from t5x_like.training.resolve import resolve

  N = sizes.parameters(resolve(ladder.config_at(size)))
  trials_of_steps = [trial for trial in trials if trial.steps == steps]
  rates = _best_rates(trials_of_steps)
  if not rates:
    raise UserError(
      "--rates: every size diverged, or its best rate is at an end; add lower or higher ones"
    )
  factor, power = fitting.rate_law(list(rates), list(rates.values()))
  rate = float(f"{factor * N**power:.3g}")
  D = next(trial.D for trial in trials_of_steps if math.isfinite(trial.loss))
  fitted_D = D if len({point.D for point in points}) > 1 else 1.0
  interval = fitting.leave_one_out_range(points, N, fitted_D)
  return Prediction(size, N, steps, D, rate, law(N, fitted_D), interval)


def _best_rates(trials: Sequence[Trial]) -> dict[int, float]:
  """Return the best rates by a size's parameters, without sizes whose best rate is at an end."""
  trials_by_size: dict[str, list[Trial]] = {}
  for trial in trials:
    trials_by_size.setdefault(trial.size, []).append(trial)
  rates = {}
  for size, trials_of_size in trials_by_size.items():
    losses = [trial.loss for trial in trials_of_size]
    if not any(math.isfinite(loss) for loss in losses):
      print(f"size {size}: diverged at every rate, and is left out", flush=True)
      continue
    rate, is_inside = fitting.best_rate([trial.rate for trial in trials_of_size], losses)
    if is_inside or len(trials_of_size) == 1:
      rates[trials_of_size[0].N] = rate
    else:
      print(
        f"size {size}: its best rate {rate:g} is at an end of --rates, and is left out of the "
        "rate's fit",
        flush=True,
      )
  return rates


if __name__ == "__main__":
  sys.exit(main())
