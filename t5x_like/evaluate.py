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
--output also holds it as results.json, results.md and results.html, with files for the leaderboard
unless --no_submission leaves the test sets alone. Each run is evaluated and saved --evaluations
times at most. --config.KEY=VALUE then change the fine-tuning recipe. The same command continues a
suite that was stopped. --suite=glue,tags,text makes one table of three suites, and
--workdir=runs/bert,runs/t5 gives each task to the first run that can learn it. --compare=DIR adds
the differences from another table of the same suites, such as one made --from_scratch, to all of
these and, in a local workdir, to report.html. With a workdir at an address (gs://…), --output is
required. --steps=1000,2000 repeats the suite from each of these checkpoints and prints one table of
the scores by step. A flag that has no meaning with, or without, --suite is refused.

--questions='lm_eval/*.jsonl.gz' answers questions without training, with or without a suite (see
python -m tools.few_shot). The model is the first run with a decoder or an encoder-decoder. Each
question follows --shots examples. With --template=NAME, a decoder answers by a chat template;
--template=published is the model's own. --max_examples=200 evaluates on the first 200 examples of
each split, and of each file of questions.

The workdir may also be a Hugging Face directory, a name of the Hub or a GGUF file, whose results go
to a directory beside it. Without --suite and --questions it then needs --config=RECIPE with the
data.
"""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib

from t5x_like import command_line, slots, trust
from t5x_like.benchmarks import suites
from t5x_like.command_line import flag
from t5x_like.errors import UserError, handle_errors
from t5x_like.files import checked_json
from t5x_like.files.gguf_file import is_gguf
from t5x_like.files.paths import check_directory, is_remote

_QUESTIONS = "questions"
_QUESTION_BATCH = 32  # rows
# Flags that have no meaning without --suite.
_SUITE_FLAGS = (
  "tasks seeds rates epochs evaluations output data data_dir no_submission from_scratch compare "
  "questions shots max_examples steps template"
).split()
_QUESTION_FLAGS = ("questions", "shots", "max_examples", "output", "template")
_FLAGS_AGAINST_STEPS = ("step", "from_scratch", "compare", "questions")
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
    "--compare", metavar="DIR", help="another table of the suite, to print the differences from"
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
    argv, __doc__, *_FLAGS, config_required=False, workdir_type=_directories
  )
  _check_flags(args)
  if args.suite is not None or args.questions is not None:
    _run_suites(args, overrides)
  else:
    _evaluate(args, overrides)


def _evaluate(args, overrides: list[str]) -> None:
  """Run the evaluators of the config on a checkpoint, print the metrics and write the files."""
  from t5x_like import data
  from t5x_like.abstract_model import build_objective
  from t5x_like.files.paths import check_writable
  from t5x_like.report import run_report
  from t5x_like.runtime import process
  from t5x_like.saved_model import hub
  from t5x_like.training.evaluation import Evaluation
  from t5x_like.training.open_with_recipe import check_vocabulary, open_with_recipe

  # results are written next to the model
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
    width = max(map(len, group.metrics))
    for name, value in group.metrics.items():
      process.log(f"  {name:<{width}}  {value:12,.4f}".rstrip("0").rstrip("."))
    if process.is_first():
      _write_group(directory, step, label, group)
  task = evaluation.task
  run_report.draw(f"{directory}/evaluations", config, saved, arrays, task, task, groups)


def _write_group(run_directory: str, step: int, label: str, group) -> None:
  """Write the metrics of a group of evaluators, and its predictions or samples if it has any."""
  from t5x_like.training import workdir

  folder = f"{run_directory}/evaluations"
  name = f"{step}_{label}_{group.split}"
  metrics = checked_json.replace_nonfinite(group.metrics)
  content = {"step": step, "task": group.task, "split": group.split, "metrics": metrics}
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
  if "steps" in set_flags:
    conflicting = [name for name in _FLAGS_AGAINST_STEPS if name in set_flags]
    if conflicting:
      raise UserError(
        f"{_spell_flags(conflicting)}: not with --steps, which makes a table of its own; leave "
        "out either"
      )
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
  numbers = [args.seeds, args.epochs, args.max_examples, args.evaluations, *rates]
  invalid = [number for number in numbers if number is not None and not 0 < number < math.inf]
  if invalid or (args.shots or 0) < 0:
    flags = "--seeds, --epochs, --rates, --evaluations, --max_examples"
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


def _run_suites(args, overrides: list[str]) -> None:
  """Run suites and answer the files of questions; print their table."""
  from t5x_like.benchmarks import custom_suites, steps, suite, tables
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
  workdirs = [hub.local_directory(address, "--workdir") for address in addresses]
  for workdir in workdirs:
    open_saved_model(workdir)  # raises if there is none
  folder = "+".join(loaded_suites) or _QUESTIONS
  scratch_folder = "from_scratch" if args.from_scratch else ""
  directory = hub.results_directory(workdirs[0])
  output = pathlib.Path(args.output or f"{directory}/suites/{folder}/{scratch_folder}")
  # Nothing is written into the Hub's cache of a published model, or beside a GGUF file.
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
  )
  if args.steps:
    process.log(steps.markdown(steps.run_by_step(loaded_suites, options, args.steps)))
    return
  extra_suites = {}
  if args.questions:
    extra_suites[_QUESTIONS] = _QuestionSuite(args, output / _QUESTIONS, workdirs)
  table = suite.run(loaded_suites, options, extra_suites)
  process.log(tables.markdown(table))
  if not table["tasks"]:
    raise UserError(f"--questions={args.questions}: {next(iter(table['missing'].values()))}")
  if args.compare and process.is_first() and not is_published and not is_remote(workdirs[0]):
    from t5x_like.report import run_report

    run_report.write_page(workdirs[0])


class _QuestionSuite:
  """The files of --questions; a call answers them and returns results as a suite does.

  Questions with answers in `<output>/<file>.json` by the same checkpoint and with the same options
  are not answered again.

  Raises:
    UserError: no workdir has a decoder, a file cannot be read, or the model is from scratch.
  """

  def __init__(self, args, output: pathlib.Path, workdirs: list[str]):
    from t5x_like.benchmarks import suite
    from t5x_like.inference import questions

    if args.from_scratch:
      raise UserError(
        "--questions: a model from scratch has learned nothing; leave out --from_scratch"
      )
    generators = [workdir for workdir in workdirs if suite.form_kind(workdir) != "encoder"]
    if not generators:
      raise UserError(
        f"--questions: --workdir={args.workdir} holds encoders; add a decoder or an encoder-decoder"
      )
    self._workdir = generators[0]
    self._step = args.step
    self._template = args.template
    self._output = output
    self._options = questions.Options(
      shots=args.shots or 0, limit=args.max_examples, template=args.template
    )
    paths = questions.find_files(args.questions.split(","))
    self._files = {name: questions.read_questions(path) for name, path in paths.items()}
    self._asker = None

  def __call__(self) -> tuple[dict[str, dict], dict[str, str]]:
    """Return (results by file, the errors of files without results)."""
    from t5x_like.inference import questions
    from t5x_like.parallel import distributed
    from t5x_like.runtime import process
    from t5x_like.training import workdir

    results = {}
    missing = {}
    for name, file in self._files.items():
      request = self._request(file)
      record = distributed.broadcast_from_first(lambda name=name: self._read_record(name))
      if record is None or record.get("request") != request:
        process.log(f"=== {_QUESTIONS}/{name}")
        try:
          record = {"request": request, "metrics": self._ask(name, file)}
        except UserError as error:
          missing[name] = str(error)
          process.log(f"{_QUESTIONS}/{name}: left out: {error}")
          continue
        if process.is_first():
          workdir.write_json(self._output, f"{name}.json", record)
      process.log(f"{_QUESTIONS}/{name}: {questions.format_scores(record['metrics'])}")
      results[name] = self._score(file, record["metrics"])
    return results, missing

  def _request(self, file) -> dict:
    """Return the settings that a saved record must have for its answers to be reused."""
    from t5x_like.benchmarks import facts

    step = facts.newest_steps(self._workdir) if self._step is None else [self._step]
    return {
      "workdir": self._workdir,
      "step": step,
      "file": file.path,
      "rows": hashlib.sha256(json.dumps(file.rows).encode()).hexdigest(),
      **dataclasses.asdict(self._options),
    }

  def _read_record(self, name: str) -> dict | None:
    """Return the saved record of a file; None if there is none that can be read.

    Raises:
      UserError: the file holds JSON that is not an object.
    """
    path = self._output / f"{name}.json"
    try:
      record = json.loads(path.read_text())
    except (OSError, ValueError):
      return None
    if not isinstance(record, dict):
      raise UserError(
        f"{path}: found a JSON {checked_json.json_type_name(record)}, expected an object with the "
        "saved answers; delete it to answer the questions again"
      )
    return record

  def _ask(self, name: str, file) -> dict[str, float]:
    """Ask the questions of a file and return its metrics; load the model at the first file."""
    from t5x_like import rows
    from t5x_like.inference import questions
    from t5x_like.library import model as library
    from t5x_like.runtime import process

    if self._asker is None:
      model = library.load(self._workdir, step=self._step, batch_size=_QUESTION_BATCH)
      process.log(questions.describe_template(model, self._template))
      self._asker = questions.Asker(model, self._options)
    with rows.report_progress(questions.Progress(f"{_QUESTIONS}/{name}")):
      metrics = self._asker(file)
    unfinished = int(metrics.get("unfinished", 0))
    if unfinished:
      process.log(
        f"{_QUESTIONS}/{name}: {unfinished} answers reached the limit of their "
        "length before their end"
      )
    return metrics

  def _score(self, file, metrics: dict[str, float]) -> dict:
    """Return a row of the table: the score of a file, its intervals and all its metrics."""
    from t5x_like.inference import questions

    prefix = f"{self._options.shots}-shot/"
    named_metrics = {f"{prefix}{name}": value for name, value in metrics.items()}
    intervals = questions.confidence_intervals(metrics)
    score_name = prefix + questions.SCORES.get(file.kind, "accuracy")
    return {
      "score": named_metrics[score_name],
      "best": named_metrics[score_name],
      "spread": 0.0,
      "rate": None,
      "intervals": {f"{prefix}{name}": interval for name, interval in intervals.items()},
      "counted": [score_name],
      "metrics": named_metrics,
      "runs": [],
    }


if __name__ == "__main__":
  command_line.run_program(main)
