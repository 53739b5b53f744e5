"""Fill a table of benchmarks from one checkpoint: every task, at every rate, from every seed.

  <output>/<task>/<rate>-<seed>/   a run, which is finished once it has its `result.json`
  <output>/results.json, results.md, results.html, submission/

Several suites have all of this in `<output>/<suite>/`, and one table of all in `<output>`. Prepared
examples are shared by all suites of a workdir, in `<workdir>/suites/prepared`, or by all workdirs,
in `T5X_LIKE_CACHE`. A suite that was killed continues where it stopped: finished runs are read, and
an unfinished run resumes from its checkpoint.

The score of a task is that of its best learning rate, the one with the highest median over the
seeds. The median is always a run: with an even number of seeds, the lower of the two in the middle.
The metrics and predictions of this run are those of the task.
"""

import dataclasses
import itertools
import json
import math
import os
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t5x_like import config as config_lib
from t5x_like import recipes
from t5x_like.abstract_model import build_objective
from t5x_like.benchmarks import comparison, data, question_runs, submission, suites, tables
from t5x_like.benchmarks import facts as suite_facts
from t5x_like.benchmarks.question_suites import QuestionSuite
from t5x_like.benchmarks.suites import Benchmark, Form, Suite
from t5x_like.corpora.sources import parse_split
from t5x_like.errors import UserError, did_you_mean, one_line
from t5x_like.files import checked_json
from t5x_like.files.paths import check_writable, is_remote
from t5x_like.parallel import distributed
from t5x_like.runtime import process
from t5x_like.saved_model import open_saved_model
from t5x_like.training import selection
from t5x_like.training import workdir as workdirs
from t5x_like.training.build import assemble
from t5x_like.training.evaluation import Evaluation, GroupResults
from t5x_like.training.loop import train
from t5x_like.training.open_with_recipe import open_with_recipe
from t5x_like.training.resolve import resolve
from t5x_like.training.run import open_training_run

RESULT_FILE = "result.json"
REQUEST_FILE = "request.json"
RECIPES = {
  "encoder": "configs/finetune/encoder.py",
  "decoder": "configs/finetune/decoder.py",
  "text": "configs/finetune/text_to_text.py",
}
EVALUATIONS = 10
_STEPS_PER_WARM_UP_STEP = 10
_DEFAULT_EPOCHS = 3.0  # for a task that neither states its epochs nor has a recipe of its own


@dataclasses.dataclass(frozen=True)
class Options:
  """The runs to make.

  Attributes:
    workdirs: the workdirs of the pretrained runs; a task is learned by the first run whose
      architecture has a form for it.
    step: the checkpoint to fine-tune from; None for the newest.
    from_scratch: whether only the runs' architectures and vocabularies are used, not their weights.
    output: the directory of the table.
    tasks: the names of the tasks to run; None for all tasks of the suites that have data.
    seeds: the number of seeds; None for the task's number, or else one.
    rates: the learning rates; empty for the task's rates, or else the recipe's rate.
    epochs: passes over the training split; None for the task's number, or else the recipe's steps.
    evaluations: the maximum number of evaluations and checkpoints of a run; the best one counts.
    submission: whether test splits are predicted.
    recipe: the recipe to use instead of `RECIPES`, with or without an argument.
    overrides: `KEY=VALUE` for every run.
    data: the directory of official files, or the files of each split of one task.
    data_dir: the directory of TensorFlow datasets.
    compare: the directory of another table of the suites, to compare this one with.
    max_examples: the maximum number of examples of each split in evaluations; if set, there is no
      submission.
    prepared: the directory of prepared examples if `T5X_LIKE_CACHE` is not set; None for one in the
      first workdir.
    template: the chat template of questions in files of the user; None is none.
    open_model: `(workdir, step, batch size) -> library.model.Model`, for suites of questions.
  """

  workdirs: Sequence[str]
  output: pathlib.Path
  tasks: Sequence[str] | None = None
  seeds: int | None = None
  rates: Sequence[float] = ()
  epochs: float | None = None
  evaluations: int = EVALUATIONS
  submission: bool = True
  recipe: str | None = None
  overrides: Sequence[str] = ()
  data: str | None = None
  data_dir: str | None = None
  from_scratch: bool = False
  compare: str | None = None
  max_examples: int | None = None
  step: int | None = None
  prepared: str | None = None
  template: str | None = None
  open_model: Callable[[str, int | None, int], Any] | None = None


# The results by task, and the reasons of the tasks without results.
SuiteResults = tuple[dict[str, dict[str, Any]], dict[str, str]]


def run(suites_by_name: Mapping[str, Suite | QuestionSuite], options: Options) -> dict[str, Any]:
  """Make the tables of suites; return the content of the `results.json` of all.

  Args:
    suites_by_name: the suites, see `custom_suites.load_suites`; suites of questions are asked
      after the others are learned.
    options: the runs to make.

  Raises:
    UserError: an unknown suite or task, no task with data, a workdir that holds no run, or whatever
      a run raises.
  """
  kinds = {workdir: form_kind(workdir) for workdir in options.workdirs}
  other_results = comparison.read_results(options.compare) if options.compare else None
  _check_options(options, suites_by_name)
  if process.is_first():
    check_writable("--output", options.output)
  trained = {name: suite for name, suite in suites_by_name.items() if isinstance(suite, Suite)}
  question_suites = {name: suite for name, suite in suites_by_name.items() if name not in trained}
  is_joined = len(suites_by_name) > 1
  suite_options = {}
  for name, suite in trained.items():
    suite_options[name] = options
    if is_joined:
      suite_options[name] = dataclasses.replace(options, output=options.output / name)
    _check_first_runs(name, suite, kinds, suite_options[name])
  parts = {}
  for name, suite in trained.items():
    task_results, missing = _run_suite(name, suite, kinds, suite_options[name])
    parts[name] = tables.build_results(name, suite_options[name], task_results, missing)
    if process.is_first() and task_results and is_joined:
      tables.write_results(suite_options[name].output, parts[name])
  if trained and not any(part["tasks"] for part in parts.values()):
    raise _no_task_error(parts)
  for name, suite in question_suites.items():
    output = options.output / name if is_joined else options.output
    parts[name] = _ask_suite(name, suite, kinds, dataclasses.replace(options, output=output))
  results = tables.join_results(parts) if is_joined else next(iter(parts.values()))
  if other_results and process.is_first():
    current = results | {"directory": str(options.output)}
    results["compared"] = comparison.compare_results(other_results, current)
  if process.is_first():
    tables.write_results(options.output, results)
  return results


def choose_generator(flag: str, workdirs: Sequence[str]) -> str:
  """Return the first workdir with a decoder or an encoder-decoder, which can be asked questions.

  Raises:
    UserError: all hold encoders; names the flag.
  """
  for workdir in workdirs:
    if form_kind(workdir) != "encoder":
      return workdir
  raise UserError(
    f"{flag}: --workdir={','.join(workdirs)} holds encoders; add a decoder or an encoder-decoder"
  )


def _ask_suite(
  name: str, suite: QuestionSuite, kinds: dict[str, str], options: Options
) -> dict[str, Any]:
  """Ask the questions of a suite; return its part of the table."""
  workdir = choose_generator(f"--suite={name}", list(kinds))
  if options.from_scratch:
    raise UserError(f"{name}: a model from scratch has learned nothing; leave out --from_scratch")

  def open_model(batch_size: int) -> Any:
    return options.open_model(workdir, options.step, batch_size)

  question_options = question_runs.QuestionOptions(
    workdir,
    open_model,
    options.output,
    options.data,
    options.tasks,
    options.max_examples,
    None if suite.version else options.template,
  )
  table = question_runs.run_suite(name, suite, question_options)
  part = tables.build_results(name, options, table.results, table.missing)
  part["question_suites"] = {name: {"version": suite.version, "summary": table.summary}}
  return part


def _check_options(options: Options, suites_by_name: Mapping[str, Suite | QuestionSuite]) -> None:
  """Raise UserError for an unknown task, or for files of one task without its name."""
  known_tasks = [task for suite in suites_by_name.values() for task in suite.tasks]
  for task in options.tasks or ():
    if task not in known_tasks:
      raise UserError(
        f"--tasks: found {task!r}, expected some of {', '.join(known_tasks)}"
        f"{did_you_mean(task, known_tasks)}"
      )
  split, equals_sign, _ = (options.data or "").partition("=")
  names_files = equals_sign and split.isidentifier()
  if names_files and len(options.tasks or ()) != 1:
    raise UserError(
      f"--data={options.data}: names the files of one task; choose it with --tasks=NAME"
    )


def _no_task_error(parts: dict[str, dict]) -> UserError:
  """Return an error which says why the first task could not be run."""
  reasons = []
  for part in parts.values():
    reasons += [f"{task}: {reason}" for task, reason in part["missing"].items()]
  others = f", and {len(reasons) - 1} others in the same way" if reasons[1:] else ""
  return UserError(f"--suite={','.join(parts)}: no task could be run: {reasons[0]}{others}")


def form_kind(workdir: str) -> str:
  """Return the form in which tasks are learned, from the pretrained run's architecture."""
  features = open_saved_model(workdir).feature_shapes
  if "decoder_input_tokens" in features:
    return "text" if "encoder_input_tokens" in features else "decoder"
  return "encoder"


def _run_suite(name: str, suite: Suite, kinds: dict[str, str], options: Options) -> SuiteResults:
  """Return the results of a suite's tasks, and why others have none."""
  results: dict[str, dict[str, Any]] = {}
  missing: dict[str, str] = {}
  for task in suite.tasks:
    if options.tasks and task not in options.tasks:
      continue
    fine_tuning = _FineTuning.find(name, suite, task, kinds, options)
    if fine_tuning is None:
      missing[task] = f"is not for this architecture ({', '.join(kinds.values())})"
      continue
    try:
      results[task] = fine_tuning.run_all()
    except data.Unavailable as error:
      if options.tasks:
        raise UserError(f"{name}/{task}: {error}") from None
      missing[task] = str(error)
      process.log(f"{name}/{task}: left out: {error}")
  return results, missing


def _check_first_runs(name: str, suite: Suite, kinds: dict[str, str], options: Options) -> None:
  """Check the first run of every task, so that errors are reported before any run is made.

  All objects of the run except its state are made, and its data are prepared, test sets included.
  Finished tasks are not checked again.

  Raises:
    UserError: naming the first task that cannot be run.
  """
  for task in suite.tasks:
    if options.tasks and task not in options.tasks:
      continue
    fine_tuning = _FineTuning.find(name, suite, task, kinds, options)
    if fine_tuning is None or fine_tuning.is_finished():
      continue
    try:
      fine_tuning.check_first_run()
    except data.Unavailable:
      continue  # `_run_suite` reports it
    except UserError as error:
      raise UserError(f"{name}/{task}: {error}") from error


@dataclasses.dataclass(frozen=True)
class _FineTuning:
  """All runs of a task.

  Attributes:
    suite_name, suite, task: the suite and the name of the task in it.
    kind: the form's name, see `form_kind`.
    workdir: the pretrained run.
    options: the options of the suite.
  """

  suite_name: str
  suite: Suite
  task: str
  kind: str
  workdir: str
  options: Options

  @classmethod
  def find(
    cls, suite_name: str, suite: Suite, task: str, kinds: dict[str, str], options: Options
  ) -> "_FineTuning | None":
    """Choose the first workdir with a form for the task; return None if there is none."""
    for workdir, kind in kinds.items():
      if getattr(suite.tasks[task], kind):
        return cls(suite_name, suite, task, kind, workdir, options)
    return None

  @property
  def benchmark(self) -> Benchmark:
    return self.suite.tasks[self.task]

  @property
  def form(self) -> Form:
    return getattr(self.benchmark, self.kind)

  @property
  def name(self) -> str:
    return f"{self.suite_name}/{self.task}"

  def rates_and_seeds(self) -> list[tuple[float | None, int]]:
    """Return the learning rate and the seed of each run, in order."""
    rates = self.options.rates or self.benchmark.rates or (None,)
    seeds = self.options.seeds or self.benchmark.seeds or 1
    return list(itertools.product(rates, range(seeds)))

  def folder(self, rate: float | None, seed: int) -> pathlib.Path:
    rate_name = "recipe" if rate is None else f"{rate:g}"
    return self.options.output / self.task / f"{rate_name}-{seed}"

  def is_finished(self) -> bool:
    folders = [self.folder(rate, seed) for rate, seed in self.rates_and_seeds()]

    def have_results() -> bool:
      return all((folder / RESULT_FILE).exists() for folder in folders)

    return distributed.broadcast_from_first(have_results)

  def check_first_run(self) -> None:
    """Make all objects of the first run but its state; prepare its data and the test sets."""
    rate, seed = self.rates_and_seeds()[0]
    config = self.config(rate, seed)
    assembly = assemble(config, str(self.folder(rate, seed)))
    suites.check_counted(self.form, assembly.evaluation.metrics())
    for split in self.test_splits(config).values():
      _build_task(config, split)

  def run_all(self) -> dict[str, Any]:
    """Return the results of all runs of the task; its scores are those of the median run."""
    runs = []
    for rate, seed in self.rates_and_seeds():
      runs.append(self.run_or_read(rate, seed))
    runs_by_rate: dict[float | None, list[dict]] = {}
    for result in runs:
      runs_by_rate.setdefault(result["rate"], []).append(result)
    medians = {}
    for rate, rate_runs in runs_by_rate.items():
      medians[rate] = statistics.median_low(result["score"] for result in rate_runs)
    best_rate = max(medians, key=lambda rate: medians[rate])
    ranked = sorted(runs_by_rate[best_rate], key=lambda result: result["score"])
    worst = ranked[0]
    middle = ranked[(len(ranked) - 1) // 2]
    best = ranked[-1]
    if self.benchmark.test and self.suite.submission and process.is_first():
      submission_folder = self.options.output / "submission"
      submission.write_submission(submission_folder, self.suite, self.task, best["workdir"])
    intervals = distributed.broadcast_from_first(
      lambda: suite_facts.score_intervals(middle["workdir"], self.form.counted)
    )
    return {
      "score": middle["score"],
      "best": best["score"],
      "spread": best["score"] - worst["score"],
      "rate": best_rate,
      "counted": list(self.form.counted),
      "published": dict(self.benchmark.published),
      "metrics": middle["metrics"],
      "intervals": intervals,
      "facts": middle["facts"],
      "runs": runs,
    }

  def run_or_read(self, rate: float | None, seed: int) -> dict[str, Any]:
    """Return the result of a run, which is made unless it has finished before, with its facts."""
    folder = self.folder(rate, seed)
    request = self.request()
    result = distributed.broadcast_from_first(lambda: _read_file(folder / RESULT_FILE, request))
    if not result:
      result = self.fine_tune(rate, seed)
    facts = distributed.broadcast_from_first(
      lambda: suite_facts.describe_run(folder, self.form.counted)
    )
    return result | {"facts": facts | {"truncated": result.get("truncated")}}

  def fine_tune(self, rate: float | None, seed: int) -> dict[str, Any]:
    """Fine-tune once, and write the result of the best checkpoint and its predictions."""
    folder = self.folder(rate, seed)
    process.log(f"=== {self.name}: {folder.name}")
    request = self.request()
    # A stopped run continues only with the same flags.
    saved_request = distributed.broadcast_from_first(
      lambda: _read_file(folder / REQUEST_FILE, request)
    )
    if saved_request is None and process.is_first():
      workdirs.write_json(folder, REQUEST_FILE, {"request": request})
    config = self.config(rate, seed)
    with open_training_run(config, str(folder)) as training_run:
      task = training_run.assembly.task
      epochs = config.total_steps * config.batch_size / task.num_examples
      process.log(f"    {epochs:.3g} epochs of {task.num_examples:,}")
      train(training_run)
      best = training_run.best
      truncated = getattr(task, "truncated", 0.0)
    test_splits = self.test_splits(config)
    if not best or test_splits:
      best = _evaluate_best(config, folder, test_splits)
    step, groups = best
    metrics = {}
    for label, group in groups.items():
      if label not in test_splits:
        metrics |= {f"{label}/{key}": value for key, value in group.metrics.items()}
    metrics = checked_json.replace_nonfinite(metrics)
    result = {
      "workdir": str(folder),
      "rate": rate,
      "seed": seed,
      "step": step,
      "score": suites.mean_score(metrics, self.form.counted),
      "metrics": metrics,
      "truncated": 100.0 * truncated,
    }
    if process.is_first():
      for label, group in groups.items():
        workdirs.write_lines(folder / "predictions", f"{label}.jsonl", group.predictions)
      workdirs.write_json(folder, RESULT_FILE, result | {"request": request})
    process.log(f"    {self.name} {folder.name}: {result['score']:.2f} at step {step}")
    return result

  def config(self, rate: float | None, seed: int):
    """Return the recipe's config for a run, with the steps of its epochs."""
    options = self.options
    changes = [f"{key}={json.dumps(value)}" for key, value in self.benchmark.config.items()]
    changes += options.overrides
    config = self._load_recipe(rate, seed, changes)
    if options.max_examples:
      for values in config.evals.values():
        split = values.get("split") or config.eval_split
        values["split"] = _first_records(split, options.max_examples)
      config.eval_split = _first_records(config.eval_split, options.max_examples)
    data.check_available(config)
    epochs = options.epochs or self.benchmark.epochs
    if not epochs and not self.benchmark.named:
      epochs = _DEFAULT_EPOCHS
    sets_steps = any(change.startswith("total_steps=") for change in changes)
    if epochs and not sets_steps:
      num_examples = _build_task(config, config.train_split).num_examples
      config.total_steps = max(1, math.ceil(epochs * num_examples / config.batch_size))
    changed_keys = {change.split("=")[0].split(".")[-1] for change in changes}
    every = math.ceil(config.total_steps / options.evaluations)
    warm_up = max(1, config.total_steps // _STEPS_PER_WARM_UP_STEP)
    warm_up = min(warm_up, config.total_steps - 1)
    defaults = (
      (config, "eval_every", every),
      (config.checkpoint, "every", every),
      (config.schedule, "warmup_steps", warm_up),
    )
    for node, key, value in defaults:
      if key in node and key not in changed_keys:
        node[key] = value
    return config

  def _load_recipe(self, rate: float | None, seed: int, changes: Sequence[str]):
    options = self.options
    weights = not options.from_scratch
    init = {"workdir": self.workdir, "step": options.step, "weights": weights}
    overrides = [f"seed={seed}", f"init={json.dumps(init)}"]
    keys = data.source_keys(self.benchmark, self.form, options.data, options.data_dir)
    overrides += [f"{key}={value}" for key, value in keys.items()]
    if rate is not None:
      overrides.append(f"schedule.learning_rate={rate}")
    overrides += [f"task.cache={_examples_directory(options)}", *changes]
    recipe, _, argument = (options.recipe or RECIPES[self.kind]).partition(":")
    if self.benchmark.named:
      argument = f"{self.name},{argument}" if argument else self.name
      return recipes.load(f"{recipe}:{argument}", overrides)
    config = recipes.load(f"{recipe}:{argument}")
    has_official_files = options.data is not None and self.benchmark.files is not None
    suites.apply_form(config, self.benchmark, self.form, has_official_files)
    return config_lib.apply_overrides(config, overrides, self.name)

  def test_splits(self, config) -> dict[str, str]:
    """Return the available splits to predict for a submission, by its file."""
    if not self.options.submission or self.options.max_examples:
      return {}
    available = data.task_splits(config)
    return {file: split for file, split in self.benchmark.test.items() if split in available}

  def request(self) -> dict[str, Any]:
    """Return the facts that determine a run's result besides its task, rate and seed."""
    options = self.options
    if options.from_scratch:
      step = []
    elif options.step is not None:
      step = [options.step]
    else:
      step = suite_facts.newest_steps(self.workdir)
    request = {
      "workdir": self.workdir if is_remote(self.workdir) else os.path.abspath(self.workdir),
      "step": step,
      "config": options.recipe,
      "epochs": options.epochs,
      "from_scratch": options.from_scratch,
      "max_examples": options.max_examples,
    }
    request |= distributed.broadcast_from_first(
      lambda: data.file_sizes(self.benchmark, options.data)
    )
    if self.benchmark.table:
      request["table"] = self.benchmark.table
    if options.evaluations != EVALUATIONS:
      request["evaluations"] = options.evaluations
    if self.benchmark.test and not options.submission:
      request["submission"] = False
    for override in options.overrides:
      key, _, value = override.partition("=")
      request[f"config.{key}"] = value
    return request


def _evaluate_best(
  config, folder: pathlib.Path, test_splits: dict[str, str]
) -> tuple[int, dict[str, GroupResults]]:
  """Return the step of the best checkpoint, and its evaluations.

  The first evaluation is made on the test splits too.
  """
  name, values = next(iter(config.evals.to_dict().items()))
  overrides = []
  for file, split in test_splits.items():
    evaluation = {"name": name} | values | {"split": split, "max_examples": None}
    overrides.append(f"evals.{file}={json.dumps(evaluation)}")
  saved = open_with_recipe(str(folder), None, overrides)
  step, arrays = saved.restore(None, selection.FOLDER)
  evaluation = Evaluation(saved.config, saved.model, build_objective(saved.config), saved.rules)
  return step, evaluation(arrays)


def _first_records(split: str, max_records: int) -> str:
  """Return the first records of a split; `split` may name fewer first ones itself."""
  name, num_records = parse_split(split)
  return f"{name}[:{min(max_records, num_records or max_records)}]"


def _examples_directory(options: Options) -> str:
  """Return the directory of the tasks' prepared examples."""
  cache = os.environ.get("T5X_LIKE_CACHE")
  if options.prepared and not cache:
    return options.prepared
  for directory in (cache, options.workdirs[0]):
    if directory and not is_remote(directory):
      return f"{directory.rstrip('/')}/suites/prepared"
  return str(options.output / "prepared")


def _build_task(config, split: str):
  """Build the task of a split; prepare its examples."""
  arguments = resolve(config).task.to_dict()
  return process.build_task("task", arguments.pop("name"), split, arguments)


def _read_file(path: pathlib.Path, request: dict[str, Any]) -> dict[str, Any] | None:
  """Return a run's file, None if it has none yet.

  Raises:
    UserError: the file is damaged or was made with other flags.
  """
  try:
    content = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError:
    return None
  except ValueError as error:
    raise UserError(
      f"{path}: damaged ({one_line(error)}); delete it, and the run is evaluated again"
    ) from None
  if not isinstance(content, dict):
    raise UserError(
      f"{path}: found a JSON {checked_json.json_type_name(content)}, expected an object; delete "
      "it, and the run is evaluated again"
    )
  # Files that are absent now, or were not recorded then, are not compared.
  recorded = {"data": request.get("data")} | content.pop("request", {})
  request = {"data": recorded["data"]} | request
  for name in {**recorded, **request}:
    before = recorded.get(name)
    now = request.get(name)
    if before != now:
      raise UserError(
        f"{path}: was made with {name}={before}, found {name}={now}; give another --output, "
        f"or delete {path.parent} to make it again"
      )
  return content | {"workdir": str(path.parent)}  # the directory may have been moved
