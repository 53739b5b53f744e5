"""Suites of questions that a model answers without training, frozen by their name and version.

A version fixes the tasks, prompts, examples, rules and the summary. A change of any of them is a
new version, so two tables of one version are comparable. The data are files of the user.
"""

import dataclasses
import fnmatch
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t5x_like.benchmarks.data import Unavailable
from t5x_like.corpora.sources import Record, Skip, json_type_name, open_source
from t5x_like.corpora.sources._compression import without_suffix
from t5x_like.errors import UserError
from t5x_like.files import globs
from t5x_like.inference import questions
from t5x_like.inference.questions import PromptSet

FILES = "questions"  # the name of the suite of the user's own files


@dataclasses.dataclass(frozen=True)
class Formulation:
  """One way to ask the questions of a task.

  Attributes:
    score: the name of its score among those of the rule's metric.
    prompt_sets: the sets of questions by name. The score is the mean over them.
  """

  score: str
  prompt_sets: Mapping[str, PromptSet]


@dataclasses.dataclass(frozen=True)
class QuestionTask:
  """A task of a suite of questions.

  Attributes:
    files: the possible names of each file of `build`, or patterns of them, the likeliest first.
    build: `(paths of files by name, the most questions or None) -> formulations by name`. The best
      formulation counts.
    chance: the score of guessing, in percent, which `centred` suites subtract.
  """

  files: Mapping[str, Sequence[str]]
  build: Callable[[Mapping[str, list[str]], int | None], Mapping[str, Formulation]]
  chance: float = 0.0


@dataclasses.dataclass(frozen=True)
class QuestionSuite:
  """Tasks that are asked and judged in one published way.

  Attributes:
    tasks: the tasks by name.
    version: the version of the definition; empty for the files of the user.
    summary: the name of the score of all tasks; empty for none.
    is_centred: whether the summary averages `(score - chance) / (100 - chance)`.
    is_weighted: whether the summary averages questions, not tasks.
    data: the files that it needs and where they come from.
  """

  tasks: Mapping[str, QuestionTask]
  version: str = ""
  summary: str = ""
  is_centred: bool = False
  is_weighted: bool = False
  data: str = ""


def from_files(patterns: Sequence[str], options: questions.Options) -> QuestionSuite:
  """Return the suite of the user's own files of questions.

  Raises:
    UserError: as `questions.find_files` and `questions.read_questions`.
  """
  tasks = {}
  for name, path in questions.find_files(patterns).items():
    file_questions = questions.read_questions(path)
    tasks[name] = QuestionTask({}, _file_builder(file_questions, options))
  return QuestionSuite(tasks)


def _file_builder(file_questions: questions.Questions, options: questions.Options) -> Callable:
  """Return the `QuestionTask.build` of a user's file."""
  score = questions.SCORES.get(file_questions.kind, "accuracy")

  def build(paths: Mapping[str, list[str]], limit: int | None) -> dict[str, Formulation]:
    del paths
    limited = dataclasses.replace(options, limit=limit)
    prompt_set = questions.build_prompts(file_questions, limited)
    return {f"{options.shots}-shot": Formulation(score, {"": prompt_set})}

  return build


def find_files(task: QuestionTask, directory: str | None) -> dict[str, list[str]]:
  """Return the paths of a task's files below a directory, by their names in `build`.

  Raises:
    Unavailable: a file is missing.
    UserError: two files have one name.
  """
  if not task.files:
    return {}
  if directory is None:
    first_names = next(iter(task.files.values()))
    raise Unavailable(f"needs {first_names[0]}; give the directory of its files with --data=DIR")
  available = _list_files(directory.rstrip("/"))
  paths = {}
  for role, names in task.files.items():
    for name in names:
      matches = _match(available, name, directory)
      if matches:
        paths[role] = matches
        break
    else:
      raise Unavailable(f"found no {' or '.join(names)} below {directory}")
  return paths


def _list_files(root: str) -> dict[str, str]:
  """Return the files below a directory, by their paths in it without suffixes of compression."""
  available = {}
  for path in globs.find_matches(f"{root}/**"):
    available[without_suffix(path.removeprefix(root))] = path
  return available


def _match(available: Mapping[str, str], name: str, directory: str) -> list[str]:
  """Return the files of a name or pattern, which may lie in any folder."""
  matches = sorted(available[key] for key in fnmatch.filter(available, f"*/{name}"))
  if len(matches) > 1 and "*" not in name:
    raise UserError(
      f"{directory}: found {matches[0]} and {matches[1]}, expected one {name}; give the folder of "
      "one of them"
    )
  return matches


def read_records(path: str, form: str = "jsonl") -> list[tuple[str, Record]]:
  """Return (file and line, record) of the records of a file, plain or compressed.

  Raises:
    UserError: the file cannot be read, or holds no record.
  """
  source = open_source(f"{form}:{path}")
  records = []
  for where, record in source.records(source.splits[0]):
    if not isinstance(record, Skip):
      records.append((where, record))
  if not records:
    raise UserError(f"{path}: found no questions, expected at least one; copy the file again")
  return records


def field(where: str, record: Record, name: str, kind: type) -> Any:
  """Return a field of a record, which may be a path such as `question.stem`.

  Raises:
    UserError: it is missing or of another type.
  """
  value: Any = record
  for part in name.split("."):
    if not isinstance(value, dict) or part not in value:
      raise UserError(f"{where}: found no {name}, expected it in every record of this benchmark")
    value = value[part]
  if kind is int and isinstance(value, str) and value.strip().lstrip("-").isdecimal():
    value = int(value)
  if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
    kind_name = json_type_name(value)
    raise UserError(f"{where}: {name}: found a JSON {kind_name}, expected {kind.__name__}")
  return value


def check_gold(where: str, gold: int, num_choices: int) -> int:
  """Return the index of the right choice; raise UserError if there is no such choice."""
  if not 0 <= gold < num_choices:
    raise UserError(
      f"{where}: found the right choice {gold} of {num_choices}, expected 0 to {num_choices - 1}"
    )
  return gold


def file_name(path: str) -> str:
  """Return the name of a file without its folders."""
  return pathlib.PurePosixPath(path).name
