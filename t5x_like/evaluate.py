"""Evaluates a checkpoint: python -m t5x_like.evaluate --workdir=runs/small [--step=N] [--config.KEY=VALUE …]

Without --config it takes the config the run was trained with. Prints a table and writes it to evaluations/ in the
workdir.
"""

from t5x_like import command_line
from t5x_like.errors import door


@door
def main(argv: list[str]) -> None:
  step = ("--step", {"type": int, "help": "the checkpoint to evaluate (default: the newest)"})
  args, overrides = command_line.parse(argv, __doc__, step, config_required=False)

  from t5x_like.training import assembly, process, trained, workdir

  process.prepare()
  config, identity = trained.open_config(args.workdir, args.config, overrides)
  config = assembly.resolve(config)
  trained.check_model(identity, config, args.workdir)
  parts = assembly.build(config)

  from t5x_like.data import loader
  from t5x_like.data import task as tasks
  from t5x_like.evals import Setting, rows_of
  from t5x_like.training.run import write_samples

  task = tasks.build(split=config.eval_split, **config.task.to_dict())
  trained.check_model(identity, config, args.workdir, task.vocabulary)
  rows = rows_of(parts.rules, config.batch_size)

  def batches(max_examples):
    return loader.eval_batches(task, batch_size=config.batch_size, rows=rows, max_examples=max_examples)

  setting = Setting(parts.model, parts.objective, task, batches, config.batch_size, parts.rules)
  step, arrays = trained.restore_params(args.workdir, parts, args.step)
  process.say(f"{args.workdir}: step {step}, {task.name}, split {config.eval_split}")
  metrics, samples = {}, []
  for evaluator in assembly.evaluators(config, setting).values():
    result = evaluator(arrays)
    metrics.update(result.metrics)
    samples += [sample | {"task": task.name, "step": step} for sample in result.samples]
  width = max(map(len, metrics))
  for name, value in metrics.items():
    process.say(f"  {name:<{width}}  {value:12,.4f}".rstrip("0").rstrip("."))
  if process.first():
    content = {"step": step, "task": task.name, "split": config.eval_split, "metrics": metrics}
    workdir.write(f"{args.workdir}/evaluations", f"{step}_{task.name}_{config.eval_split}.json", content)
    if samples:
      write_samples(args.workdir, step, samples)


if __name__ == "__main__":
  command_line.program(main)
