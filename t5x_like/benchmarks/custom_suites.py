"""Load suites of the user: `--suite=module:SUITE`, or a TOML file with a table for each task.

  [relatedness]
  form = "classification"   # or multiple_choice, generation, tagging, span_qa: see `suites/`
  files.name = "SICK"
  files.format = "tsv"
  files.splits = {train = ["SICK_train.txt"], validation = ["SICK_trial.txt"]}
  files.fields = {label = "relatedness_score", idx = "pair_ID"}
  text = "{sentence_A}"
  pair = "{sentence_B}"
  length = 64
  epochs = 4
  rates = [3e-5, 5e-5]

  [cola]
  like = "glue/cola"               # a task of the package's suites
  seeds = 3
  config = {"task.length" = 48, batch_size = 16}

`files` is the table that `corpora/sources/official.py` explains, searched in --data; `source` names
records that need no files. The other keys are arguments of the form. Without `labels`, the labels
of `classification` are numbers; without `inputs`, text-to-text models read `text` and `pair`. Every
task may have `epochs`, `rates`, `seeds`, `config` and `published`, as `Benchmark` explains them.
Flags of the command come before `epochs`, `rates`, `seeds` and `config`.
"""

import dataclasses
import hashlib
import inspect
import json
import pathlib
import tomllib
from collections.abc import Sequence
from typing import Annotated, Any

from t5x_like import slots, trust
from t5x_like.benchmarks import suites
from t5x_like.benchmarks.question_suites import QuestionSuite
from t5x_like.benchmarks.suites import Benchmark, Suite
from t5x_like.errors import UserError, one_line
from t5x_like.files.paths import as_path

FORMS = {
  "classification": suites.classification,
  "multiple_choice": suites.multiple_choice,
  "generation": suites.generation,
  "tagging": suites.tagging,
  "span_qa": suites.span_qa,
}
_RENAMED_FORMS = {
  "labelled": "classification",
  "chosen": "multiple_choice",
  "generated": "generation",
  "tagged": "tagging",
  "spans": "span_qa",
}
_NUMBERS = slots.Condition(
  "numbers by name",
  lambda table: all(slots.fits(value, float) for value in table.values()),
)


def _names_split(evaluation: Any) -> bool:
  """Return whether an evaluation is a split, or a table that has one."""
  if isinstance(evaluation, dict):
    evaluation = evaluation.get("split")
  return isinstance(evaluation, str)


_SPLITS = slots.Condition(
  "a split for each name, or changes to the task that include a split",
  lambda table: all(map(_names_split, table.values())),
)


@dataclasses.dataclass(frozen=True)
class _CommonKeys:
  """The keys that a task of any form has; see `Benchmark`."""

  epochs: slots.PositiveFloat | None = None
  rates: tuple[slots.PositiveFloat, ...] = ()
  seeds: slots.PositiveInt | None = None
  config: dict = dataclasses.field(default_factory=dict)
  published: Annotated[dict, _NUMBERS] = dataclasses.field(default_factory=dict)


def load_suites(names: Sequence[str]) -> dict[str, Suite | QuestionSuite]:
  """Return suites by their names in tables and directories.

  Raises:
    UserError: as `load_suite`, or two have one name.
  """
  loaded = {}
  for name in names:
    short_name = _short_name(name)
    if short_name in loaded:
      raise UserError(
        f"--suite={','.join(names)}: found two of the name {short_name}; rename a file"
      )
    loaded[short_name] = load_suite(name)
  return loaded


def load_suite(name: str) -> Suite | QuestionSuite:
  """Return the suite that a command names.

  Raises:
    UserError: there is no such suite, or its file or a task cannot be used.
  """
  if name.endswith(".toml"):
    return _read_toml(name)
  suite = slots.find("--suite", name, suites, "SUITE")
  if isinstance(suite, QuestionSuite):
    return suite
  if not isinstance(suite, Suite):
    raise UserError(
      f"--suite={name}: found {type(suite).__name__}, expected a `t5x_like.benchmarks.suites.Suite`"
    )
  if ":" not in name:
    return suite
  tasks = {}
  for task, benchmark in suite.tasks.items():
    digest = _digest(dataclasses.asdict(benchmark))
    tasks[task] = dataclasses.replace(benchmark, named=False, table=digest)
  return dataclasses.replace(suite, tasks=tasks)


def _digest(table: dict[str, Any]) -> str:
  """Hash a task's table; a finished run of another table is refused."""
  return hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _short_name(name: str) -> str:
  """Return a suite's name in tables: `mine` for `lists/mine.toml` and for `lists.mine:SUITE`."""
  if name.endswith(".toml"):
    return pathlib.PurePath(name).stem
  return name.partition(":")[0].rpartition(".")[2]


def _read_toml(path: str) -> Suite:
  """Read the suite in a TOML file; UserError if it cannot be used."""
  try:
    tables = tomllib.loads(as_path(path).read_bytes().decode())
  except (OSError, ValueError, RecursionError) as error:
    raise UserError(f"--suite={path}: cannot be read: {one_line(error)}") from None
  trust.record_file(path, tables, str(pathlib.PurePath(path).parent))
  if not tables or not all(isinstance(table, dict) for table in tables.values()):
    raise UserError(f"--suite={path}: found no table for each task, expected such as [relatedness]")
  for task in tables:
    slots.check_name(f"--suite={path}", task)
  tasks = {}
  for task, table in tables.items():
    tasks[task] = _build_benchmark(f"{path}: {task}", dict(table))
  return Suite(tasks)


def _build_benchmark(where: str, table: dict[str, Any]) -> Benchmark:
  """Make the benchmark of a table.

  Raises:
    UserError: a key is unknown, missing or of another type.
  """
  digest = _digest(table)
  common = {}
  for field in dataclasses.fields(_CommonKeys):
    if field.name in table:
      common[field.name] = table.pop(field.name)
  checked = slots.coerce(where, common, _CommonKeys)
  common = {key: getattr(checked, key) for key in common}
  like = table.pop("like", None)
  form = table.pop("form", None)
  if like is None:
    benchmark = _build_from_form(where, form, {"source": None, "examples": 0} | table)
  elif form is None and not table:
    benchmark = _find_benchmark(where, like)
  else:
    key = next(iter(table), "form")
    raise UserError(
      f"{where}.{key}: found it beside like = {like!r}; set it in config, or name a form "
      "instead of like"
    )
  return dataclasses.replace(benchmark, **common, table=digest, named=False)


def _find_benchmark(where: str, name: Any) -> Benchmark:
  """Return a task of the package's suites, `SUITE/TASK`."""
  suite_name, _, task = str(name).partition("/")
  if ":" in suite_name:
    raise UserError(
      f"{where}.like: found {slots.format_value(name)}, expected a task of "
      f"{', '.join(slots.names(suites))}"
    )
  suite = slots.find(f"{where}.like", suite_name, suites, "SUITE")
  if isinstance(suite, QuestionSuite):
    raise UserError(
      f"{where}.like: found {name!r}, a task that is not learned; give {suite_name} to --suite"
    )
  return slots.find(f"{where}.like", task, suite.tasks)


def _build_from_form(where: str, form: Any, table: dict[str, Any]) -> Benchmark:
  """Call the function of a form with the keys of a table."""
  if isinstance(form, str) and form in _RENAMED_FORMS:
    raise UserError(f"{where}.form: found {form!r}, which is now {_RENAMED_FORMS[form]!r}")
  function = slots.find(f"{where}.form", form, FORMS)
  parameters = inspect.signature(function).parameters
  defaults = {}
  if form == "classification":
    texts = [str(text) for text in (table.get("text"), table.get("pair")) if text]
    defaults = {"labels": None, "inputs": " ".join(texts)}
  task_arguments = {}  # checked with the task
  if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
    for key in list(table):
      if key not in parameters:
        task_arguments[key] = table.pop(key)
  files = table.get("files")
  fields = files.get("fields") if isinstance(files, dict) else None
  has_ids = isinstance(fields, dict) and "idx" in fields
  if "ids" in parameters and not has_ids:
    defaults["ids"] = ()  # only the records of leaderboards have numbers
  slots.coerce(f"{where}.evaluated", table.get("evaluated"), Annotated[dict, _SPLITS] | None)
  arguments = slots.fill(where, defaults | table, function)
  source = arguments.pop("source")
  examples = arguments.pop("examples")
  try:
    return function(source, examples, **arguments, **task_arguments)
  except (TypeError, ValueError, AttributeError, KeyError) as error:
    raise UserError(f"{where}: cannot be used: {one_line(error)}") from None
