"""Evaluates a checkpoint: python -m t5x_like.evaluate --workdir=runs/small [--step=N] [--evals=NAME,NAME]

Without --config it uses the config the run was trained with. Prints the metrics of the evaluators in `config.evals` and
writes them to evaluations/<step>_<group>_<split>.json in the workdir, and what was predicted for each input, or decoded
samples, to a .jsonl file beside it. Groups name the run's metrics; see t5x_like/training/evaluation.py.
"""

from t5x_like import command_line
from t5x_like.errors import UserError, door


@door
def main(argv: list[str]) -> None:
  args, overrides = command_line.parse(
    argv,
    __doc__,
    ("--step", {"type": int, "help": "the checkpoint to evaluate (default: the newest)"}),
    ("--evals", {"metavar": "NAME,NAME", "help": "which of config.evals (default: all)"}),
    config_required=False,
  )

  from t5x_like.data import cache
  from t5x_like.training import assembly, process, trained, workdir
  from t5x_like.training.evaluation import Evaluation

  process.prepare()
  cache.use(args.workdir)
  config, identity = trained.open_config(args.workdir, args.config, overrides)
  config = assembly.resolve(config)
  trained.check_model(identity, config, args.workdir)
  parts = assembly.build(config)
  only = None if args.evals is None else args.evals.split(",")
  evaluation = Evaluation(config, parts.model, parts.objective, parts.rules, only)
  trained.check_model(identity, config, args.workdir, evaluation.task.vocabulary)
  step, arrays = trained.restore_params(args.workdir, parts, args.step)
  if not config.evals:
    raise UserError("config.evals: found no evaluators; name one, such as --config.evals.loss={}")
  for label, group in evaluation(arrays).items():
    process.say(f"{args.workdir}: step {step}, {label}: task {group.task}, split {group.split}")
    width = max(map(len, group.metrics))
    for name, value in group.metrics.items():
      process.say(f"  {name:<{width}}  {value:12,.4f}".rstrip("0").rstrip("."))
    if process.first():
      folder, name = f"{args.workdir}/evaluations", f"{step}_{label}_{group.split}"
      content = {"step": step, "task": group.task, "split": group.split, "metrics": group.metrics}
      workdir.write(folder, f"{name}.json", content)
      if group.predictions or group.samples:
        workdir.write_lines(folder, f"{name}.jsonl", group.predictions or group.samples)


if __name__ == "__main__":
  command_line.program(main)
