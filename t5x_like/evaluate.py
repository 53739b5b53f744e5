"""Evaluate a checkpoint.

python -m t5x_like.evaluate --workdir=runs/small [--step=N] [--evals=NAME,NAME]
python -m t5x_like.evaluate --workdir=runs/small --suite=glue --data=glue_data \\
    [--tasks=cola,rte] [--seeds=3]

Without --config it uses the config of the run's training. It prints the metrics of the evaluators
in `config.evals` and writes them to evaluations/<step>_<group>_<split>.json in the workdir. A
.jsonl file next to it has the prediction for each input, or decoded samples; runs on images also
write pictures. Groups name the run's metrics; see t5x_like/training/evaluation.py.

With --suite it fine-tunes the checkpoint, the newest or the one given by --step, on every task of
t5x_like/benchmarks/suites/NAME.py, of a file TASKS.toml or of module:SUITE
(t5x_like/benchmarks/custom_suites.py), and prints one table. --data is a directory with the
official files of the tasks, plain or compressed, or --data_dir has them as TensorFlow datasets.
The table is also written to --output as results.json, results.md and results.html, with predictions
of the test sets for the leaderboard unless --no_submission is set. Each run is evaluated and saved
at most --evaluations times. --config.KEY=VALUE then changes the fine-tuning recipe. The same
command continues a suite that was stopped. --suite=glue,tags,text makes one table of three suites.
--workdir=runs/bert,runs/t5 gives each task to the first run that can learn it. --compare=DIR adds
the differences from another table of the same suites, such as one made --from_scratch, to all of
these and, in a local workdir, to report.html. With a workdir at an address (gs://…), --output is
required. --steps=1000,2000 repeats the suite from each of these checkpoints and prints one table of
the scores by step. A flag that has no meaning with, or without, --suite is refused.

--suite=core, mmlu or olmes asks questions without training; each is frozen by its version. --data
is a directory with their files; without it, the command prints which files and from where.
--questions='lm_eval/*.jsonl.gz' does the same with files of yours (see python -m tools.few_shot).
The model is the first run with a decoder or an encoder-decoder. Each question follows --shots
examples. With --template=NAME, a decoder answers by a chat template; --template=published is the
model's own. Every answer is saved in answers.jsonl of the output, so a command that was killed
continues without repeating a question. --max_examples=200 evaluates on the first 200 examples of
each split, and of each file of questions.

Every score has a 95 % interval by the bootstrap. --compare=DIR,DIR without --workdir prints the
differences of two finished tables. --every=1000 evaluates every 1000th step during a run, in a
process of its own, and draws the scores in its report.html.

The workdir may also be a Hugging Face directory, a name of the Hub or a GGUF file, whose results go
to a directory next to it. Without --suite and --questions it then needs --config=RECIPE with the
data.
"""

import functools
import math
import pathlib

from t5x_like import command_line, slots, trust
from t5x_like.benchmarks import suites
from t5x_like.command_line import flag
from t5x_like.errors import UserError, handle_errors
from t5x_like.files import checked_json
from t5x_like.files.gguf_file import is_gguf
from t5x_like.files.paths import check_directory, is_remote

# Flags that have no meaning without --suite.
_SUITE_FLAGS = (
  "tasks seeds rates epochs evaluations output data data_dir no_submission from_scratch compare "
  "questions shots max_examples steps every template"
).split()
_QUESTION_FLAGS = ("questions", "shots", "max_examples", "output", "template")
_FLAGS_AGAINST_STEPS = ("step", "from_scratch", "compare")
_STEPS_FLAGS = ("steps", "every")
# Flags that have no meaning for suites of questions, which are not learned.
_TRAINING_FLAGS = (
  "seeds rates epochs evaluations no_submission data_dir from_scratch config".split()
)
_output = functools.partial(check_directory, flag="--output")


def _directories(text: str) -> str:
  """Check directories separated by commas, as the type of a flag."""
  return ",".join(check_directory(address) for address in text.split(","))


def _steps(text: str) -> list[int]:
  """Parse step numbers, as the type of a flag, into ascending order."""
  return sorted({command_line.step_number(number) for number in text.split(",")})


_FLAGS = (
  flag(
    "--step",
    type=command_line.step_number,
    help="the checkpoint to evaluate, or to fine-tune (default: the newest)",
  ),
  flag("--evals", metavar="NAME,NAME", help="which of config.evals (default: all)"),
  flag(
    "--suite",
    metavar="NAME,NAME",
    help=f"a table of benchmarks: {', '.join(slots.names(suites))}, TASKS.toml or module:SUITE",
  ),
  flag("--tasks", metavar="TASK,TASK", help="tasks of the suite (default: all with data)"),
  flag(
    "--seeds", type=int, metavar="N", help="runs of every task and rate (default: the task's, or 1)"
  ),
  flag(
    "--rates",
    metavar="RATE,RATE",
    help="learning rates to choose from (default: the task's or recipe's)",
  ),
  flag(
    "--epochs",
    type=float,
    metavar="N",
    help="passes over each task's training split (default: the task's or recipe's)",
  ),
  flag(
    "--steps",
    type=_steps,
    metavar="N,N",
    help="the suite from each of these checkpoints, as one table",
  ),
  flag(
    "--every",
    type=command_line.step_number,
    metavar="N",
    help="the suite from every Nth step, while the run continues; ends with the run",
  ),
  flag(
    "--evaluations",
    type=int,
    metavar="N",
    help="the most evaluations and checkpoints of a run (default: 10)",
  ),
  flag("--no_submission", action="store_true", help="predict no test sets"),
  flag(
    "--output",
    type=_output,
    metavar="DIR",
    help="directory of the suite's results (default: <workdir>/suites/<suite>)",
  ),
  flag(
    "--data",
    metavar="DIR",
    help="directory of the tasks' official files; for one task, train=FILE,validation=FILE",
  ),
  flag("--data_dir", metavar="DIR", help="directory of TensorFlow datasets"),
  flag(
    "--from_scratch",
    action="store_true",
    help="the suite with fresh weights of the same architecture",
  ),
  flag(
    "--compare",
    metavar="DIR",
    help="another table of the suite, to print the differences from; DIR,DIR without --workdir",
  ),
  flag(
    "--questions",
    metavar="FILE,FILE",
    help="files of questions, answered without training; patterns in quotes",
  ),
  flag("--shots", type=int, metavar="K", help="examples before each question (default: 0)"),
  flag(
    "--template",
    metavar="NAME",
    help="chat template for --questions; published is a model's own (default: none)",
  ),
  flag(
    "--max_examples",
    type=int,
    metavar="N",
    help="the first N examples of each split and file (default: all)",
  ),
)


@handle_errors
def main(argv: list[str]) -> None:
  args, overrides = command_line.parse(
    argv,
    __doc__,
    *_FLAGS,
    config_required=False,
    workdir_required=False,
    workdir_type=_directories,
  )
  if args.workdir is None:
    _compare_tables(args)
    return
  _check_flags(args)
  if args.suite is not None or args.questions is not None:
    _run_suites(args, overrides)
  else:
    _evaluate(args, overrides)


def _compare_tables(args) -> None:
  """Print the differences between two finished tables, `--compare=DIR,DIR`, without a model."""
  from t5x_like.benchmarks import comparison

  if not args.compare or "," not in args.compare:
    raise UserError(
      "the following arguments are required: --workdir, or --compare=DIR,DIR for two finished "
      "tables"
    )
  set_flags = {
    name for name, value in vars(args).items() if value is not None and value is not False
  }
  unused = sorted(set_flags - {"compare", "trust"})
  if unused:
    raise UserError(f"{_spell_flags(unused)}: needs --workdir; give it, or leave out")
  compared = comparison.compare_directories(args.compare.split(","))
  print(comparison.markdown(compared), end="")


def _evaluate(args, overrides: list[str]) -> None:
  """Run the evaluators of the config on a checkpoint, print the metrics and write the files."""
  from t5x_like import data
  from t5x_like.abstract_model import build_objective
  from t5x_like.benchmarks import predictions
  from t5x_like.files.paths import check_writable
  from t5x_like.metrics import resampling
  from t5x_like.report import run_report
  from t5x_like.runtime import process
  from t5x_like.saved_model import hub
  from t5x_like.training.evaluation import Evaluation
  from t5x_like.training.open_with_recipe import check_vocabulary, open_with_recipe

  # The results are written next to the model, so it must be a directory.
  if hub.is_hub_name(args.workdir):
    raise hub.missing_model_error(args.workdir, "--workdir")
  process.prepare()
  directory = hub.results_directory(args.workdir)
  data.use_cache(directory)
  saved = open_with_recipe(args.workdir, args.config, overrides)
  config = saved.config
  names = None if args.evals is None else args.evals.split(",")
  evaluation = Evaluation(config, saved.model, build_objective(config), saved.rules, names)
  check_vocabulary(saved, evaluation.task.vocabulary)
  if process.is_first():
    check_writable("--workdir", directory, ("evaluations",))
  step, arrays = saved.restore(args.step)
  if not config.evals:
    raise UserError("config.evals: found no evaluators; name one, such as --config.evals.loss={}")
  groups = evaluation(arrays)
  for label, group in groups.items():
    process.log(f"{args.workdir}: step {step}, {label}: task {group.task}, split {group.split}")
    intervals: dict[str, dict[str, float]] = {}
    for evaluator, task, rows in group.parts:
      intervals |= predictions.score_intervals(rows, evaluator, task)
    width = max(map(len, group.metrics))
    for name, value in group.metrics.items():
      line = f"  {name:<{width}}  {value:12,.4f}".rstrip("0").rstrip(".")
      if name in intervals:
        line += resampling.format_interval(intervals[name])
      process.log(line)
    if process.is_first():
      _write_group(directory, step, label, group, intervals)
  task = evaluation.task
  run_report.draw(f"{directory}/evaluations", config, saved, arrays, task, task, groups)


def _write_group(run_directory: str, step: int, label: str, group, intervals) -> None:
  """Write the metrics of a group of evaluators, and its predictions or samples if it has any."""
  from t5x_like.training import workdir

  folder = f"{run_directory}/evaluations"
  name = f"{step}_{label}_{group.split}"
  metrics = checked_json.replace_nonfinite(group.metrics)
  content = {"step": step, "task": group.task, "split": group.split, "metrics": metrics}
  if intervals:
    content["intervals"] = intervals
  workdir.write_json(folder, f"{name}.json", content)
  lines = group.predictions or group.samples
  if lines:
    workdir.write_lines(folder, f"{name}.jsonl", lines)


def _check_flags(args) -> None:
  """Raise UserError for a flag that the command would ignore."""
  set_flags = {
    name for name, value in vars(args).items() if value is not None and value is not False
  }
  if args.suite is None:
    allowed = _QUESTION_FLAGS if args.questions else ()
    unused = [name for name in _SUITE_FLAGS if name in set_flags and name not in allowed]
    if unused:
      alternative = ""
      if "shots" in unused or "max_examples" in unused:
        alternative = "; or add --questions=FILE"
      raise UserError(
        f"{_spell_flags(unused)}: only for a suite; leave out, or add --suite=NAME{alternative}"
      )
  if args.suite is not None and "evals" in set_flags:
    raise UserError(
      "--evals: a suite has its own evaluations; leave it out, and choose among its "
      "tasks with --tasks"
    )
  if args.from_scratch and "step" in set_flags:
    raise UserError("--step: --from_scratch takes no checkpoint; leave out either")
  for steps_flag in _STEPS_FLAGS:
    conflicting = [name for name in _FLAGS_AGAINST_STEPS if name in set_flags]
    if steps_flag in set_flags and conflicting:
      raise UserError(
        f"{_spell_flags(conflicting)}: not with --{steps_flag}, which makes its own table; "
        "leave out either"
      )
  if "steps" in set_flags and "every" in set_flags:
    raise UserError("--steps, --every: both name the checkpoints; leave out either")
  for name in ("shots", "template"):
    if name in set_flags and not args.questions:
      raise UserError(
        f"--{name}: only for --questions; leave it out, or give the files of questions"
      )


def _spell_flags(names: list[str]) -> str:
  return ", ".join(f"--{name}" for name in names)


def _parse_rates(text: str | None) -> list[float]:
  if text is None:
    return []
  try:
    return [float(rate) for rate in text.split(",") if rate]
  except ValueError:
    raise UserError(f"--rates={text}: expected numbers, such as 1e-5,3e-5") from None


def _check_numbers(args, rates: list[float]) -> None:
  """Raise UserError for a number of runs, epochs or examples that is not finite and above 0."""
  numbers = [args.seeds, args.epochs, args.max_examples, args.evaluations, args.every, *rates]
  invalid = [number for number in numbers if number is not None and not 0 < number < math.inf]
  if invalid or (args.shots or 0) < 0:
    flags = "--seeds, --epochs, --rates, --evaluations, --every, --max_examples"
    raise UserError(f"{flags}: expected finite numbers above 0, and --shots not less")


def _check_output(output: str | None, workdir: str) -> None:
  """Raise UserError if results would be written into the Hub's cache or at an address."""
  from t5x_like.saved_model import hub

  if output:
    return
  if hub.is_hub_name(workdir):
    raise UserError(
      f"--workdir: found no directory {workdir}; correct the path or, for the Hub's model of this "
      "name, add --output=DIR"
    )
  if is_remote(workdir):
    raise UserError(f"--workdir={workdir}: needs --output=DIR, a local directory for the results")


def _refuse_training_flags(args, overrides: list[str]) -> None:
  """Refuse flags of training if all suites are of questions."""
  unused = [name for name in _TRAINING_FLAGS if getattr(args, name)]
  spelled = [f"--{name}" for name in unused]
  spelled += [f"--config.{override.partition('=')[0]}" for override in overrides]
  if spelled:
    raise UserError(
      f"{', '.join(spelled)}: only for suites that are learned; questions are answered without "
      "training, so leave out"
    )


def _run_suites(args, overrides: list[str]) -> None:
  """Run suites and answer the files of questions; print their table."""
  from t5x_like.benchmarks import custom_suites, question_suites, steps, suite, tables
  from t5x_like.benchmarks.suites import Suite
  from t5x_like.inference import questions
  from t5x_like.library import model as library
  from t5x_like.report import run_report
  from t5x_like.runtime import compile_cache, process
  from t5x_like.saved_model import hub, open_saved_model

  names = [] if args.suite is None else args.suite.split(",")
  trust.admit(names)
  addresses = args.workdir.split(",")
  rates = _parse_rates(args.rates)
  _check_numbers(args, rates)
  process.prepare()
  _check_output(args.output, addresses[0])
  loaded_suites = custom_suites.load_suites(names)
  folder = "+".join(loaded_suites) or question_suites.FILES
  if not any(isinstance(loaded, Suite) for loaded in loaded_suites.values()):
    _refuse_training_flags(args, overrides)
  workdirs = [hub.local_directory(address, "--workdir") for address in addresses]
  for workdir in workdirs:
    open_saved_model(workdir)  # raises if there is none
  if args.questions:
    suite.choose_generator("--questions", workdirs)
    question_options = questions.Options(shots=args.shots or 0)
    patterns = args.questions.split(",")
    loaded_suites[question_suites.FILES] = question_suites.from_files(patterns, question_options)
  scratch_folder = "from_scratch" if args.from_scratch else ""
  directory = hub.results_directory(workdirs[0])
  output = pathlib.Path(args.output or f"{directory}/suites/{folder}/{scratch_folder}")
  # Nothing is written into the Hub's cache of a published model, or next to a GGUF file.
  is_published = hub.is_hub_name(addresses[0]) or is_gguf(addresses[0])
  process.log(compile_cache.enable(str(output) if is_published else workdirs[0]))
  options = suite.Options(
    workdirs,
    output,
    tasks=args.tasks.split(",") if args.tasks else None,
    seeds=args.seeds,
    rates=rates,
    epochs=args.epochs,
    recipe=args.config,
    overrides=overrides,
    data=args.data,
    data_dir=args.data_dir,
    from_scratch=args.from_scratch,
    compare=args.compare,
    max_examples=args.max_examples,
    step=args.step,
    evaluations=args.evaluations or suite.EVALUATIONS,
    submission=not args.no_submission,
    prepared=f"{output}/prepared" if is_published else None,
    template=args.template,
    open_model=lambda path, step, rows: library.load(path, step=step, batch_size=rows),
  )
  has_page = not is_published and not is_remote(workdirs[0])
  if args.steps or args.every:
    report = run_report.write_page if has_page else lambda workdir: None
    table = steps.run_by_step(loaded_suites, options, args.steps or (), args.every, report)
    process.log(steps.markdown(table))
    return
  table = suite.run(loaded_suites, options)
  process.log(tables.markdown(table))
  if not table["tasks"]:
    raise UserError(f"--questions={args.questions}: {next(iter(table['missing'].values()))}")
  if args.compare and process.is_first() and has_page:
    run_report.write_page(workdirs[0])


if __name__ == "__main__":
  command_line.run_program(main)
