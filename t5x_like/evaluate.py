"""Evaluates a checkpoint: python -m t5x_like.evaluate --workdir=runs/small [--step=N]
   [--evals=NAME,NAME]
   python -m t5x_like.evaluate --workdir=runs/small --suite=glue --data=glue_data \\
       [--tasks=cola,rte] [--seeds=3]

Without --config it uses the config of the run's training. It prints the metrics of the evaluators
in `config.evals` and writes them to evaluations/<step>_<group>_<split>.json in the workdir. Beside
it, a .jsonl file has the prediction for each input, or decoded samples; runs on images also write
pictures. Groups name the run's metrics; see t5x_like/training/evaluation.py.

With --suite it fine-tunes the checkpoint, the newest or the one given by --step, on every task of
t5x_like/benchmarks/suites/NAME.py, of a file TASKS.toml or of module:SUITE
(t5x_like/benchmarks/custom_suites.py), and prints one table. --data is a directory with the official
files of the tasks, plain or compressed, or --data_dir has them as TensorFlow datasets. --output
also holds it as results.json, results.md and results.html, with files for the leaderboard unless
--no_submission leaves the test sets alone. Each run is evaluated and saved --evaluations times at
most.
--config.KEY=VALUE then change the fine-tuning recipe. The same command continues a suite that was
stopped.
--suite=glue,tags,text makes one table of three suites, and --workdir=runs/bert,runs/t5 gives each
task to the first run that can learn it. --compare=DIR adds the differences from another table of
the same suites, such as one made
--from_scratch, to all of these and, in a local workdir, to report.html. With a workdir at an
address (gs://…), --output is required. --steps=1000,2000 repeats the suite from each of these
checkpoints and prints one table of the scores by step. A flag that has no meaning with, or without,
--suite is refused.

--questions='lm_eval/*.jsonl.gz' asks the first run that holds a decoder or an encoder-decoder
questions without training, after --shots examples each, with or without a suite (see python -m
tools.few_shot), a decoder by a chat template with --template=NAME, or --template=published for a
model's own. --max_examples=200 evaluates on the first 200 examples of each split, and of each file
of questions.

The workdir may also be a Hugging Face directory or a name of the Hub. Without --suite and
--questions it then needs
--config=RECIPE with the data.
"""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib

from t5x_like import command_line, slots, trust
from t5x_like.benchmarks import suites
from t5x_like.errors import UserError, handle_errors
from t5x_like.files import checked_json
from t5x_like.files.paths import check_directory, is_remote
from t5x_like.interop import hub

_QUESTIONS = "questions"
_AT_ONCE = 32
# Flags that have no meaning without --suite.
_OF_SUITES = (
  "tasks seeds rates epochs evaluations output data data_dir no_submission from_scratch compare "
  "questions shots max_examples steps template"
).split()
_NOT_BY_STEP = ("step", "from_scratch", "compare", "questions")
_output = functools.partial(check_directory, flag="--output")


def _steps(text: str) -> list[int]:
  """Parse step numbers, in ascending order, as the type of a flag; raise as `command_line.step_number`."""
  return sorted({command_line.step_number(word) for word in text.split(",")})


@handle_errors
def main(argv: list[str]) -> None:
  args, overrides = command_line.parse(
    argv,
    __doc__,
    (
      "--step",
      {
        "type": command_line.step_number,
        "help": "the checkpoint to evaluate, or to fine-tune (default: the newest)",
      },
    ),
    ("--evals", {"metavar": "NAME,NAME", "help": "which of config.evals (default: all)"}),
    (
      "--suite",
      {
        "metavar": "NAME,NAME",
        "help": f"a table of benchmarks: {', '.join(slots.names(suites))}, TASKS.toml or "
        "module:SUITE",
      },
    ),
    (
      "--tasks",
      {"metavar": "TASK,TASK", "help": "of the suite (default: all whose data are there)"},
    ),
    (
      "--seeds",
      {
        "type": int,
        "metavar": "N",
        "help": "runs of every task and rate (default: the task's, or 1)",
      },
    ),
    (
      "--rates",
      {
        "metavar": "RATE,RATE",
        "help": "learning rates to choose from (default: the task's or recipe's)",
      },
    ),
    (
      "--epochs",
      {
        "type": float,
        "metavar": "N",
        "help": "of each task's training split (default: the task's or recipe's)",
      },
    ),
    (
      "--steps",
      {
        "type": _steps,
        "metavar": "N,N",
        "help": "the suite from each of these checkpoints, as one table",
      },
    ),
    (
      "--evaluations",
      {"type": int, "metavar": "N", "help": "of a run, and checkpoints, at most (default: 10)"},
    ),
    ("--no_submission", {"action": "store_true", "help": "predict no test sets"}),
    (
      "--output",
      {
        "type": _output,
        "metavar": "DIR",
        "help": "of the suite (default: <workdir>/suites/<suite>)",
      },
    ),
    (
      "--data",
      {
        "metavar": "DIR",
        "help": "of the tasks' official files; or, of one task, train=FILE,validation=FILE",
      },
    ),
    ("--data_dir", {"metavar": "DIR", "help": "of TensorFlow datasets"}),
    (
      "--from_scratch",
      {"action": "store_true", "help": "the suite with fresh weights of the same architecture"},
    ),
    (
      "--compare",
      {"metavar": "DIR", "help": "another table of the suite, to print the differences from"},
    ),
    (
      "--questions",
      {
        "metavar": "FILE,FILE",
        "help": "asked without training, beside the suite; patterns in quotes",
      },
    ),
    (
      "--shots",
      {"type": int, "metavar": "K", "help": "examples before each question (default: 0)"},
    ),
    (
      "--template",
      {"metavar": "NAME", "help": "of --questions, a chat template; published is a model's own"},
    ),
    (
      "--max_examples",
      {"type": int, "metavar": "N", "help": "of each split and file, the first (default: all)"},
    ),
    config_required=False,
  )
  _check_flags(args)
  if args.suite is not None or args.questions is not None:
    return _suite(args, overrides)

  from t5x_like import data, report
  from t5x_like.files.paths import check_writable
  from t5x_like.runtime import process
  from t5x_like.training import open_with_recipe, workdir
  from t5x_like.training.build import build_objective
  from t5x_like.training.evaluation import Evaluation

  if hub.is_hub_name(args.workdir):
    raise hub.missing_model_error(args.workdir, "--workdir")  # results are written beside the model
  process.prepare()
  data.use_cache(args.workdir)
  run = open_with_recipe.open_with_recipe(args.workdir, args.config, overrides)
  config = run.config
  only = None if args.evals is None else args.evals.split(",")
  evaluation = Evaluation(config, run.model, build_objective(config), run.rules, only)
  open_with_recipe.check_saved_model(run, evaluation.task.vocabulary)
  if process.is_first():
    check_writable("--workdir", args.workdir, ("evaluations",))
  step, arrays = run.restore(args.step)
  if not config.evals:
    raise UserError("config.evals: found no evaluators; name one, such as --config.evals.loss={}")
  groups = evaluation(arrays)
  for label, group in groups.items():
    process.log(f"{args.workdir}: step {step}, {label}: task {group.task}, split {group.split}")
    width = max(map(len, group.metrics))
    for name, value in group.metrics.items():
      process.log(f"  {name:<{width}}  {value:12,.4f}".rstrip("0").rstrip("."))
    if process.is_first():
      folder = f"{args.workdir}/evaluations"
      name = f"{step}_{label}_{group.split}"
      metrics = checked_json.replace_nonfinite(group.metrics)
      content = {"step": step, "task": group.task, "split": group.split, "metrics": metrics}
      workdir.write_json(folder, f"{name}.json", content)
      if group.predictions or group.samples:
        workdir.write_lines(folder, f"{name}.jsonl", group.predictions or group.samples)
  task = evaluation.task
  report.draw(f"{args.workdir}/evaluations", config, run, arrays, task, task, groups)


def _check_flags(args) -> None:
  """Raise UserError for a flag that the command would ignore."""
  given = {name for name, value in vars(args).items() if value is not None and value is not False}
  asked = {"questions", "shots", "max_examples", "output", "template"} if args.questions else set()
  if args.suite is None and (useless := [name for name in _OF_SUITES if name in given - asked]):
    more = "; or add --questions=FILE" if "shots" in useless or "max_examples" in useless else ""
    raise UserError(f"{_flags(useless)}: only for a suite; leave out, or add --suite=NAME{more}")
  if args.suite is not None and "evals" in given:
    raise UserError(
      "--evals: a suite has its own evaluations; leave it out, and choose among its "
      "tasks with --tasks"
    )
  if args.from_scratch and "step" in given:
    raise UserError("--step: --from_scratch takes no checkpoint; leave out either")
  if "steps" in given and (other := [name for name in _NOT_BY_STEP if name in given]):
    raise UserError(
      f"{_flags(other)}: not with --steps, which makes a table of its own; leave out either"
    )
  for name in ("shots", "template"):
    if name in given and not args.questions:
      raise UserError(
        f"--{name}: only for --questions; leave it out, or give the files of questions"
      )


def _flags(names: list[str]) -> str:
  return ", ".join(f"--{name}" for name in names)


def _suite(args, overrides: list[str]) -> None:
  """Run a suite and print its table."""
  from t5x_like.benchmarks import custom_suites, steps, suite, tables
  from t5x_like.runtime import compile_cache, process
  from t5x_like.training import saved_model

  names = [] if args.suite is None else args.suite.split(",")
  trust.admit(names)
  given = [check_directory(word) for word in args.workdir.split(",")]
  try:
    rates = [float(word) for word in (args.rates or "").split(",") if word]
  except ValueError:
    raise UserError(f"--rates={args.rates}: expected numbers, such as 1e-5,3e-5") from None
  numbers = [
    one for one in (args.seeds, args.epochs, args.max_examples, args.evaluations) if one is not None
  ]
  if not all(0 < number < math.inf for number in (*numbers, *rates)) or (args.shots or 0) < 0:
    flags = "--seeds, --epochs, --rates, --evaluations, --max_examples"
    raise UserError(f"{flags}: expected finite numbers above 0, and --shots not less")
  process.prepare()
  borrowed = hub.is_hub_name(given[0])  # its files are the Hub's cache, where nothing is written
  if borrowed and not args.output:
    told = (
      f"found no directory {given[0]}; correct the path or, for the Hub's model of this "
      "name, add --output=DIR"
    )
    raise UserError(f"--workdir: {told}")
  if is_remote(given[0]) and not args.output:
    raise UserError(f"--workdir={given[0]}: needs --output=DIR, a local directory for the results")
  workdirs = [hub.local_directory(word, "--workdir") for word in given]
  for word in workdirs:
    saved_model.load_identity(word)  # raises if there is none
  form = "from_scratch" if args.from_scratch else ""
  folder = "+".join(map(custom_suites.short_name, names)) or _QUESTIONS
  output = pathlib.Path(args.output or pathlib.Path(workdirs[0]) / "suites" / folder / form)
  process.log(compile_cache.enable(args.output if borrowed else workdirs[0]))
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
    prepared=f"{output}/prepared" if borrowed else None,
  )
  others = {_QUESTIONS: _asked(args, output / _QUESTIONS, workdirs)} if args.questions else {}
  if args.steps:
    return process.log(steps.markdown(steps.run_by_step(names, options, args.steps)))
  found = suite.run(names, options, others)
  process.log(tables.markdown(found))
  if not found["tasks"]:
    raise UserError(f"--questions={args.questions}: {next(iter(found['missing'].values()))}")
  if args.compare and process.is_first() and not borrowed and not is_remote(workdirs[0]):
    from t5x_like import report

    report.write_page(workdirs[0])


def _asked(args, output: pathlib.Path, workdirs: list[str]):
  """Read the files of --questions; return a function that asks them and gives results as a suite
  does.

  Questions with answers in `<output>/<file>.json` of the same checkpoint, asked in the same way,
  are not asked again.
  """
  from t5x_like import rows
  from t5x_like.benchmarks import facts, suite
  from t5x_like.inference import questions
  from t5x_like.library import model as library
  from t5x_like.parallel import distributed
  from t5x_like.runtime import process
  from t5x_like.training import workdir

  if args.from_scratch:
    raise UserError(
      "--questions: a model from scratch has learned nothing to be asked; leave out --from_scratch"
    )
  able = next((one for one in workdirs if suite.form_kind(one) != "encoder"), None)
  if able is None:
    raise UserError(
      f"--questions: --workdir={args.workdir} holds encoders; add a decoder or an encoder-decoder"
    )
  files = {
    name: questions.read(path) for name, path in questions.files(args.questions.split(",")).items()
  }
  options = questions.Options(
    shots=args.shots or 0, limit=args.max_examples, template=args.template
  )

  def saved(name: str) -> dict | None:
    try:
      return json.loads((output / f"{name}.json").read_text())
    except (OSError, ValueError):
      return None

  def make():
    asker = None
    found = {}
    missing = {}
    step = facts.newest_step(able) if args.step is None else [args.step]
    for name, file in files.items():
      digest = hashlib.sha256(json.dumps(file.rows).encode()).hexdigest()
      asked = {
        "workdir": able,
        "step": step,
        "file": file.path,
        "rows": digest,
        **dataclasses.asdict(options),
      }
      done = distributed.broadcast_from_first(lambda name=name: saved(name))
      if done is None or done["asked"] != asked:
        process.log(f"=== {_QUESTIONS}/{name}")
        if asker is None:
          model = library.load(able, step=args.step, batch_size=_AT_ONCE)
          process.log(questions.describe_template(model, args.template))
          asker = questions.Asker(model, options)
        try:
          with rows.reporting(questions.Progress(f"{_QUESTIONS}/{name}")):
            done = {"asked": asked, "metrics": asker(file)}
          if unfinished := int(done["metrics"].get("unfinished", 0)):
            process.log(
              f"{_QUESTIONS}/{name}: {unfinished} answers reached the limit of their "
              "length before their end"
            )
        except UserError as error:
          missing[name] = str(error)
          process.log(f"{_QUESTIONS}/{name}: left out: {error}")
          continue
        if process.is_first():
          workdir.write_json(output, f"{name}.json", done)
      process.log(f"{_QUESTIONS}/{name}: {questions.line(done['metrics'])}")
      metrics = {
        f"{options.shots}-shot/{metric}": value for metric, value in done["metrics"].items()
      }
      counted = f"{options.shots}-shot/{questions.SCORES.get(file.kind, 'accuracy')}"
      score = {"score": metrics[counted], "best": metrics[counted], "spread": 0.0, "rate": None}
      around = {
        f"{options.shots}-shot/{metric}": x
        for metric, x in questions.intervals(done["metrics"]).items()
      }
      score["intervals"] = around
      found[name] = score | {"counted": [counted], "metrics": metrics, "runs": []}
    return found, missing

  return make


if __name__ == "__main__":
  command_line.run_program(main)
