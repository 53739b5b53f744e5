"""Suites from outside of the package: `--suite=module:SUITE`, or a TOML file with a table for each
task.

  [relatedness]
  form = "classification"          # or multiple_choice, generation, tagging, span_qa: see `benchmarks/suites`
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
records that need no files. The other keys are arguments of the form. Without `labels`, the
labels of `classification` are numbers; without `inputs`, text-to-text models read `text` and `pair`. Every task
may have `epochs`, `rates`, `seeds`, `config` and `published`, as `Benchmark` explains them. Flags
of the command come before `epochs`, `rates`, `seeds` and `config`.
"""

import dataclasses
import hashlib
import inspect
import json
import pathlib
import tomllib
from typing import Annotated, Any

from t5x_like import slots, trust
from t5x_like.benchmarks import suites
from t5x_like.benchmarks.suites import Benchmark, Suite
from t5x_like.errors import UserError, one_line
from t5x_like.files.paths import as_path

FORMS = {
  one.__name__: one
  for one in (
    suites.classification,
    suites.multiple_choice,
    suites.generation,
    suites.tagging,
    suites.span_qa,
  )
}
_RENAMED_FORMS = {
  "labelled": "classification",
  "chosen": "multiple_choice",
  "generated": "generation",
  "tagged": "tagging",
  "spans": "span_qa",
}
_NUMBERS = slots.Condition(
  "numbers by name", lambda found: all(slots.fits(one, float) for one in found.values())
)
_SPLITS = slots.Condition(
  "a split for each name, or changes to the task that include a split",
  lambda found: all(
    isinstance(one.get("split") if isinstance(one, dict) else one, str) for one in found.values()
  ),
)


@dataclasses.dataclass(frozen=True)
class _Own:
  """The keys that a task has beside its form's; see `Benchmark`."""

  epochs: slots.PositiveFloat | None = None
  rates: tuple[slots.PositiveFloat, ...] = ()
  seeds: slots.PositiveInt | None = None
  config: dict = dataclasses.field(default_factory=dict)
  published: Annotated[dict, _NUMBERS] = dataclasses.field(default_factory=dict)


def load_suite(name: str) -> Suite:
  """Return the suite that a command names; raise UserError if there is none, or its file or a task
  cannot be used."""
  if name.endswith(".toml"):
    return _read(name)
  found = slots.find("--suite", name, suites, "SUITE")
  if not isinstance(found, Suite):
    raise UserError(
      f"--suite={name}: found {type(found).__name__}, expected a `t5x_like.benchmarks.suites.Suite`"
    )
  if ":" not in name:
    return found
  tasks = {
    task: dataclasses.replace(benchmark, named=False, table=_printed(dataclasses.asdict(benchmark)))
    for task, benchmark in found.tasks.items()
  }
  return dataclasses.replace(found, tasks=tasks)


def _printed(table: dict[str, Any]) -> str:
  """Return the identity of a task's table; a finished run of another is refused."""
  return hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()[:12]


def short_name(name: str) -> str:
  """Return the name of a suite in tables and directories: `mine` of `lists/mine.toml` and of
  `lists.mine:SUITE`."""
  return (
    pathlib.PurePath(name).stem
    if name.endswith(".toml")
    else name.partition(":")[0].rpartition(".")[2]
  )


def _read(path: str) -> Suite:
  try:
    tables = tomllib.loads(as_path(path).read_bytes().decode())
  except (OSError, ValueError, RecursionError) as error:
    raise UserError(f"--suite={path}: cannot be read: {one_line(error)}") from None
  trust.record_file(path, tables, str(pathlib.PurePath(path).parent))
  if not tables or not all(isinstance(table, dict) for table in tables.values()):
    raise UserError(f"--suite={path}: expected a table for each task, such as [relatedness]")
  for task in tables:
    slots.check_name(f"--suite={path}", task)
  return Suite({task: _benchmark(f"{path}: {task}", dict(table)) for task, table in tables.items()})


def _benchmark(where: str, table: dict[str, Any]) -> Benchmark:
  """Make the benchmark of a table; raise UserError if a key is unknown, missing or of another
  type."""
  printed = _printed(table)
  given = {
    field.name: table.pop(field.name) for field in dataclasses.fields(_Own) if field.name in table
  }
  checked = slots.coerce(where, given, _Own)
  own = {key: getattr(checked, key) for key in given}
  like = table.pop("like", None)
  form = table.pop("form", None)
  if like is not None:
    if form is not None or table:
      key = next(iter(table), "form")
      raise UserError(
        f"{where}.{key}: found it beside like = {like!r}; set it in config, or name a form "
        "instead of like"
      )
    made = _of_package(where, like)
  else:
    made = _formed(where, form, {"source": None, "examples": 0} | table)
  return dataclasses.replace(made, **own, table=printed, named=False)


def _of_package(where: str, name: Any) -> Benchmark:
  """Return a task of the package's suites, `SUITE/TASK`."""
  suite_name, _, task = str(name).partition("/")
  if ":" in suite_name:
    raise UserError(
      f"{where}.like: found {slots.format_value(name)}, expected a task of "
      f"{', '.join(slots.names(suites))}"
    )
  found = slots.find(f"{where}.like", suite_name, suites, "SUITE")
  return slots.find(f"{where}.like", task, found.tasks)


def _formed(where: str, form: Any, table: dict[str, Any]) -> Benchmark:
  if form in _RENAMED_FORMS:
    raise UserError(f"{where}.form: found {form!r}, which is now {_RENAMED_FORMS[form]!r}")
  function = slots.find(f"{where}.form", form, FORMS)
  parameters = inspect.signature(function).parameters
  defaults = {}
  if form == "classification":
    texts = (table.get("text"), table.get("pair"))
    defaults = {"labels": None, "inputs": " ".join(str(text) for text in texts if text)}
  # arguments of the task, checked with it
  free = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
  more = {key: table.pop(key) for key in list(table) if free and key not in parameters}
  fields = table["files"].get("fields") if isinstance(table.get("files"), dict) else None
  if "ids" in parameters and not (isinstance(fields, dict) and "idx" in fields):
    defaults["ids"] = ()  # only the records of leaderboards have numbers
  slots.coerce(f"{where}.evaluated", table.get("evaluated"), Annotated[dict, _SPLITS] | None)
  values = slots.fill(where, defaults | table, function)
  try:
    return function(values.pop("source"), values.pop("examples"), **values, **more)
  except (TypeError, ValueError, AttributeError, KeyError) as error:
    raise UserError(f"{where}: cannot be used: {one_line(error)}") from None
