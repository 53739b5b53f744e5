"""A whole table of benchmarks from one checkpoint: every task is fine-tuned, at every rate, from
every seed.

  <output>/<task>/<rate>-<seed>/   a run of its own; its `result.json` is written last, and never made again
  <output>/results.json, results.md, results.html, submission/

Several suites have all of this in `<output>/<suite>/`, and one table of all in `<output>`. Prepared
examples are shared by all suites of a workdir, in `<workdir>/suites/prepared`, or by all workdirs,
in `T5X_LIKE_CACHE`. A suite that was killed goes on where it stopped: finished runs are read, and
one in the middle resumes from its checkpoint. Of each task the rate with the best median over the
seeds counts, as the table says. The median is a run: with an even number of seeds, the lower of the
two in the middle. Its score, metrics and predictions stand for the task.
"""

import dataclasses
import itertools
import json
import math
import os
import pathlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from t5x_like import config as config_lib
from t5x_like import recipes
from t5x_like.benchmarks import comparison, custom_suites, data, submission, suites, tables
from t5x_like.benchmarks import facts as suite_facts
from t5x_like.benchmarks.suites import Benchmark, Form, Suite
from t5x_like.corpora.sources import parse_split
from t5x_like.errors import UserError, did_you_mean, one_line
from t5x_like.files import checked_json
from t5x_like.files.paths import check_writable, is_remote
from t5x_like.parallel import distributed
from t5x_like.runtime import process
from t5x_like.training import open_with_recipe, saved_model, selection
from t5x_like.training import workdir as workdirs
from t5x_like.training.assembly import assemble
from t5x_like.training.build import build_objective
from t5x_like.training.evaluation import Evaluation, GroupResults
from t5x_like.training.loop import train
from t5x_like.training.open_run import open_training_run
from t5x_like.training.resolve import resolve

RESULT_FILE = "result.json"
REQUEST_FILE = "asked.json"
RECIPES = {
  "encoder": "configs/finetune/encoder.py",
  "decoder": "configs/finetune/decoder.py",
  "text": "configs/finetune/text_to_text.py",
}
EVALUATIONS = 10
_WARM_UP = 10  # one part of so many
_EPOCHS = 3.0  # of a task that has no other number and that no recipe knows


@dataclasses.dataclass(frozen=True)
class Options:
  """The runs to make.

  Attributes:
    workdirs: of the pretrained runs; a task is learned by the first whose architecture has a form
      for it.
    step: the checkpoint to fine-tune from; None is the newest.
    from_scratch: whether only their architectures and vocabularies are taken.
    output: the directory of the table.
    tasks: which of the suites'; None is all that have data.
    seeds, rates: how many seeds, and which learning rates; None and no rates are the task's, or
      else one seed and the recipe's rate.
    epochs: passes over the training split; None is the task's number, or else the recipe's steps.
    evaluations: evaluations and checkpoints of a run, at most; the best of them counts.
    submission: whether test splits are predicted.
    recipe: instead of `RECIPES`, with or without an argument.
    overrides: `KEY=VALUE` for every run.
    data: the directory of official files, or the files of each split of one task.
    data_dir: where TensorFlow datasets are.
    compare: the directory of another table of the suites, to compare this one with.
    max_examples: the most of each split that evaluations use; then there is no submission.
    prepared: the directory of prepared examples without `T5X_LIKE_CACHE`; None is in the first
      workdir.
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


# results by task, and why others have none
SuiteResults = tuple[dict[str, dict[str, Any]], dict[str, str]]


def run(
  names: Sequence[str], options: Options, others: Mapping[str, Callable[[], SuiteResults]] = {}
) -> dict[str, Any]:
  """Make the tables of suites; return the content of the whole's `results.json`.

  Args:
    others: by name, functions that make further parts of the table, without training.

  Raises:
    UserError: an unknown suite or task, no task with data, a workdir that holds no run, or whatever
      a run raises.
  """
  made = {custom_suites.short_name(name): custom_suites.load_suite(name) for name in names}
  if len(made) < len(names):
    raise UserError(
      f"--suite={','.join(names)}: found two of the name {custom_suites.short_name(names[-1])}; rename a file"
    )
  kinds = {workdir: form_kind(workdir) for workdir in options.workdirs}
  other = comparison.read_results(options.compare) if options.compare else None
  known = [task for suite in made.values() for task in suite.tasks]
  for task in options.tasks or ():
    if task not in known:
      raise UserError(
        f"--tasks: found {task!r}, expected some of {', '.join(known)}{did_you_mean(task, known)}"
      )
  if (
    (options.data or "").partition("=")[0].isidentifier()
    and "=" in options.data
    and len(options.tasks or ()) != 1
  ):
    raise UserError(
      f"--data={options.data}: names the files of one task; choose it with --tasks=NAME"
    )
  if process.is_first():
    check_writable("--output", options.output)
  parts = {}
  several = len(made) + len(others) > 1
  for name, suite in made.items():
    _check(
      name,
      suite,
      kinds,
      dataclasses.replace(options, output=options.output / name) if several else options,
    )
  for name, suite in made.items():
    own = dataclasses.replace(options, output=options.output / name) if several else options
    found, missing = _suite(name, suite, kinds, own)
    parts[name] = tables.build_results(name, own, found, missing)
    if process.is_first() and found and several:
      tables.write_results(own.output, parts[name])
  if names and not any(part["tasks"] for part in parts.values()):
    raise _nothing(names, parts)
  parts |= {name: tables.build_results(name, options, *make()) for name, make in others.items()}
  results = tables.join_results(parts) if several else next(iter(parts.values()))
  if other and process.is_first():
    results["compared"] = comparison.compare_results(other, results)
  if process.is_first():
    tables.write_results(options.output, results)
  return results


def _nothing(names: Sequence[str], parts: dict[str, dict]) -> UserError:
  """Say that no task could be run, and why the first could not."""
  lacking = [f"{task}: {why}" for part in parts.values() for task, why in part["missing"].items()]
  others = f", and {len(lacking) - 1} others in the same way" if lacking[1:] else ""
  return UserError(f"--suite={','.join(names)}: no task could be run: {lacking[0]}{others}")


def _suite(name: str, suite: Suite, kinds: dict[str, str], options: Options) -> SuiteResults:
  """Return the results of a suite's tasks, and why others have none."""
  found: dict[str, dict[str, Any]] = {}
  missing: dict[str, str] = {}
  for task, benchmark in suite.tasks.items():
    if options.tasks and task not in options.tasks:
      continue
    able = [workdir for workdir, kind in kinds.items() if getattr(benchmark, kind)]
    if not able:
      missing[task] = f"is not for this architecture ({', '.join(kinds.values())})"
      continue
    try:
      found[task] = _task(name, task, benchmark, kinds[able[0]], suite, able[0], options)
    except data.Unavailable as lack:
      if options.tasks:
        raise UserError(f"{name}/{task}: {lack}") from None
      missing[task] = str(lack)
      process.log(f"{name}/{task}: left out: {lack}")
  return found, missing


def _check(name: str, suite: Suite, kinds: dict[str, str], options: Options) -> None:
  """Make all objects of every task's first run, but for its state: its data are prepared, test sets
  too, and whatever does not fit is known before the first task is learned. Finished runs are not
  looked at again.

  Raises:
    UserError: of the first task that cannot be run, which is named.
  """
  for task, benchmark in suite.tasks.items():
    able = [workdir for workdir, kind in kinds.items() if getattr(benchmark, kind)]
    folders = [
      options.output / task / _folder(rate, seed) for rate, seed in _asked_for(benchmark, options)
    ]
    if not able or options.tasks and task not in options.tasks:
      continue
    if distributed.broadcast_from_first(
      lambda folders=folders: all((folder / RESULT_FILE).exists() for folder in folders)
    ):
      continue
    rate, seed = next(_asked_for(benchmark, options))
    try:
      config = _config(f"{name}/{task}", benchmark, kinds[able[0]], rate, seed, able[0], options)
      made = assemble(resolve(config), str(folders[0]))
      suites.check_counted(getattr(benchmark, kinds[able[0]]), made.evaluation.metrics())
      for split in _tests(benchmark, config, options).values():
        _built(config, split)
    except data.Unavailable:
      continue  # told, and left out or refused, when it is this task's turn
    except UserError as error:
      raise UserError(f"{name}/{task}: {error}") from error


def _asked_for(benchmark: Benchmark, options: Options) -> Iterator[tuple[float | None, int]]:
  """Return the rates and seeds of a task's runs, in order."""
  seeds = options.seeds or benchmark.seeds or 1
  return itertools.product(options.rates or benchmark.rates or (None,), range(seeds))


def _folder(rate: float | None, seed: int) -> str:
  return f"{'recipe' if rate is None else f'{rate:g}'}-{seed}"


def form_kind(workdir: str) -> str:
  """Return the form in which tasks are learned, from the pretrained run's architecture."""
  features = open_with_recipe.feature_shapes(saved_model.load_identity(workdir))
  if "decoder_input_tokens" in features:
    return "text" if "encoder_input_tokens" in features else "decoder"
  return "encoder"


def _task(
  name: str,
  task: str,
  benchmark: Benchmark,
  kind: str,
  suite: Suite,
  workdir: str,
  options: Options,
) -> dict[str, Any]:
  """Return the results of all runs of a task, and which of them count."""
  form = getattr(benchmark, kind)
  runs = []
  asked = _asked(workdir, benchmark, options)
  for rate, seed in _asked_for(benchmark, options):
    folder = options.output / task / _folder(rate, seed)
    done = distributed.broadcast_from_first(
      lambda folder=folder: _read(folder / RESULT_FILE, asked)
    )
    done = done or _one(
      f"{name}/{task}", benchmark, form, kind, folder, rate, seed, workdir, options
    )
    facts = distributed.broadcast_from_first(
      lambda folder=folder: suite_facts.describe_run(folder, form.counted)
    )
    runs.append(done | {"facts": facts | {"truncated": done.get("truncated")}})
  by_rate: dict[Any, list[dict]] = {}
  for one in runs:
    by_rate.setdefault(one["rate"], []).append(one)
  medians = {
    rate: statistics.median_low(one["score"] for one in those) for rate, those in by_rate.items()
  }
  rate = max(medians, key=lambda rate: medians[rate])
  chosen = sorted(by_rate[rate], key=lambda one: one["score"])
  middle = chosen[(len(chosen) - 1) // 2]
  best = chosen[-1]
  if benchmark.test and suite.submission and process.is_first():
    submission.write_submission(options.output / "submission", suite, task, best["workdir"])
  return {
    "score": middle["score"],
    "best": best["score"],
    "spread": best["score"] - chosen[0]["score"],
    "rate": rate,
    "counted": list(form.counted),
    "published": dict(benchmark.published),
    "metrics": middle["metrics"],
    "facts": middle["facts"],
    "runs": runs,
  }


def _one(
  where: str,
  benchmark: Benchmark,
  form: Form,
  kind: str,
  folder: pathlib.Path,
  rate: float | None,
  seed: int,
  workdir: str,
  options: Options,
) -> dict[str, Any]:
  """Fine-tune once, and write the result of the best checkpoint and its predictions."""
  process.log(f"=== {where}: {folder.name}")
  asked = _asked(workdir, benchmark, options)
  if (
    distributed.broadcast_from_first(lambda: _read(folder / REQUEST_FILE, asked)) is None
    and process.is_first()
  ):
    # a run that is stopped goes on with the same flags alone
    workdirs.write_json(folder, REQUEST_FILE, {"asked": asked})
  config = _config(where, benchmark, kind, rate, seed, workdir, options)
  with open_training_run(resolve(config), str(folder)) as tuned:
    task = tuned.assembly.task
    process.log(
      f"    {config.total_steps * config.batch_size / task.num_examples:.3g} epochs of "
      f"{task.num_examples:,}"
    )
    train(tuned)
    best = tuned.best
    truncated = getattr(task, "truncated", 0.0)
  tests = _tests(benchmark, config, options)
  step, groups = best if best and not tests else _best(config, folder, tests)
  counted = {label: group.metrics for label, group in groups.items() if label not in tests}
  metrics = checked_json.replace_nonfinite(
    {f"{label}/{key}": x for label, of in counted.items() for key, x in of.items()}
  )
  result = {
    "workdir": str(folder),
    "rate": rate,
    "seed": seed,
    "step": step,
    "score": suites.mean_score(metrics, form.counted),
    "metrics": metrics,
    "truncated": 100.0 * truncated,
  }
  if process.is_first():
    for label, group in groups.items():
      workdirs.write_lines(folder / "predictions", f"{label}.jsonl", group.predictions)
    workdirs.write_json(folder, RESULT_FILE, result | {"asked": asked})
  process.log(f"    {where} {folder.name}: {result['score']:.2f} at step {step}")
  return result


def _best(
  config, folder: pathlib.Path, tests: dict[str, str]
) -> tuple[int, dict[str, GroupResults]]:
  """Return the step of the best checkpoint and its evaluations, the first of them also on the test
  splits."""
  first, values = next(iter(config.evals.to_dict().items()))
  added = {
    name: {"name": first} | values | {"split": split, "max_examples": None}
    for name, split in tests.items()
  }
  run = open_with_recipe.open_with_recipe(
    str(folder), None, [f"evals.{name}={json.dumps(one)}" for name, one in added.items()]
  )
  step, arrays = run.restore(None, selection.FOLDER)
  return step, Evaluation(run.config, run.model, build_objective(run.config), run.rules)(arrays)


def _config(
  where: str,
  benchmark: Benchmark,
  kind: str,
  rate: float | None,
  seed: int,
  workdir: str,
  options: Options,
):
  """Return the recipe's config for a run, with the steps of its epochs."""
  recipe, _, argument = (options.recipe or RECIPES[kind]).partition(":")
  init = {"workdir": workdir, "step": options.step, "weights": not options.from_scratch}
  overrides = [f"seed={seed}", f"init={json.dumps(init)}"]
  places = data.source_keys(benchmark, getattr(benchmark, kind), options.data, options.data_dir)
  overrides += [f"{key}={found}" for key, found in places.items()]
  if rate is not None:
    overrides.append(f"schedule.learning_rate={rate}")
  changes = [
    *(f"{key}={json.dumps(value)}" for key, value in benchmark.config.items()),
    *options.overrides,
  ]
  overrides += [f"task.cache={_prepared(options)}", *changes]
  if benchmark.named:
    config = recipes.load(f"{recipe}:{where}{',' if argument else ''}{argument}", overrides)
  else:
    config = recipes.load(f"{recipe}:{argument}")
    official = options.data is not None and benchmark.files is not None
    suites.apply_form(config, benchmark, getattr(benchmark, kind), official)
    config = config_lib.apply_overrides(config, overrides, where)
  if options.max_examples:
    for values in config.evals.values():
      values["split"] = _first(values.get("split") or config.eval_split, options.max_examples)
    config.eval_split = _first(config.eval_split, options.max_examples)
  data.check_available(config)
  epochs = options.epochs or benchmark.epochs or (None if benchmark.named else _EPOCHS)
  if epochs is not None and not any(word.startswith("total_steps=") for word in changes):
    rows = _built(config, config.train_split).num_examples
    config.total_steps = max(1, math.ceil(epochs * rows / config.batch_size))
  given = {word.split("=")[0].split(".")[-1] for word in changes}
  every = math.ceil(config.total_steps / options.evaluations)
  warm_up = min(max(1, config.total_steps // _WARM_UP), config.total_steps - 1)
  defaults = (("eval_every", config, every), ("every", config.checkpoint, every))
  for key, node, value in (*defaults, ("warmup_steps", config.schedule, warm_up)):
    if key in node and key not in given:
      node[key] = value
  return config


def _first(split: str, most: int) -> str:
  """Return the first records of a split, or of its own first ones."""
  name, own = parse_split(split)
  return f"{name}[:{min(most, own or most)}]"


def _prepared(options: Options) -> str:
  """Return the directory of the tasks' prepared examples."""
  cache = os.environ.get("T5X_LIKE_CACHE")
  if options.prepared and not cache:
    return options.prepared
  shared = [one for one in (cache, options.workdirs[0]) if one and not is_remote(one)]
  return f"{shared[0].rstrip('/')}/suites/prepared" if shared else str(options.output / "prepared")


def _tests(benchmark: Benchmark, config, options: Options) -> dict[str, str]:
  """Return the splits to predict for a submission that are there, by its file."""
  wanted = benchmark.test if options.submission and not options.max_examples else {}
  return {file: split for file, split in wanted.items() if split in data.task_splits(config)}


def _built(config, split: str):
  """Build the task of a split; prepare its examples."""
  arguments = resolve(config).task.to_dict()
  return process.build_task("task", arguments.pop("name"), split, arguments)


def _asked(workdir: str, benchmark: Benchmark, options: Options) -> dict[str, Any]:
  """Return the facts that determine a run's result besides its task, rate and seed."""
  step = (
    []
    if options.from_scratch
    else [options.step]
    if options.step is not None
    else suite_facts.newest_step(workdir)
  )
  where = workdir if is_remote(workdir) else os.path.abspath(workdir)
  asked = {"workdir": where, "step": step, "config": options.recipe}
  asked |= {name: getattr(options, name) for name in ("epochs", "from_scratch", "max_examples")}
  asked |= distributed.broadcast_from_first(lambda: data.file_sizes(benchmark, options.data))
  asked |= {"table": benchmark.table} if benchmark.table else {}
  asked |= {} if options.evaluations == EVALUATIONS else {"evaluations": options.evaluations}
  asked |= {} if options.submission or not benchmark.test else {"submission": False}
  return asked | {
    f"config.{key}": value for key, _, value in (word.partition("=") for word in options.overrides)
  }


def _read(path: pathlib.Path, asked: dict[str, Any]) -> dict[str, Any] | None:
  """Return a finished run's result, None if it has none yet; raise UserError if it is damaged or of
  other flags."""
  try:
    found = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError:
    return None
  except ValueError as error:
    raise UserError(
      f"{path}: damaged ({one_line(error)}); delete it, and the run is evaluated again"
    ) from None
  made = {"data": asked.get("data")} | found.pop("asked", {})
  # files that are not there, or were not noted, tell nothing
  asked = {"data": made["data"]} | asked
  if other := [name for name in {**made, **asked} if made.get(name) != asked.get(name)]:
    before, now = (values.get(other[0]) for values in (made, asked))
    raise UserError(
      f"{path}: was made with {other[0]}={before}, found {other[0]}={now}; give another --output, "
      f"or delete {path.parent} to make it again"
    )
  return found | {"workdir": str(path.parent)}  # not where it says that it was made
