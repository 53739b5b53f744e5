"""GLUE and SuperGLUE as a whole: directories of references and predictions, and the leaderboard's average."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.errors import UserError
from t5x_like.metrics import leaderboards
from tools.score.labels import Invalid

Files = tuple[tuple[str, ...], tuple[str, ...]]  # references, predictions; their names, the likeliest first


@dataclasses.dataclass(frozen=True)
class Suite:
  """Several benchmarks with an average.

  Attributes:
    files: by benchmark, the possible names of its files in the two directories.
    tasks: by task, the scores whose mean counts (`leaderboards`).
    options: flags for the benchmarks that take them.
  """

  name: str
  files: Mapping[str, Files]
  tasks: Mapping[str, Sequence[str]]
  options: Mapping[str, Any]

  def found(self, references: str, predictions: str) -> dict[str, tuple[str, str]]:
    """(references, predictions) of every benchmark that has a file of predictions.

    Raises:
      UserError: a path is not a directory, there are no predictions, or predictions lack references.
    """
    for flag, path in (("references", references), ("predictions", predictions)):
      if not pathlib.Path(path).is_dir():
        raise UserError(f"--{flag}={path}: expected a directory, as {self.name} is several files")
    pairs = {}
    for name, (gold, given) in self.files.items():
      predicted = _find(predictions, given)
      if predicted is None:
        continue
      reference = _find(references, gold)
      if reference is None:
        raise UserError(f"{references}: no references for {predicted}, expected {' or '.join(gold)} (.gz)")
      pairs[name] = (reference, predicted)
    if not pairs:
      names = ", ".join(given[0] for _, given in self.files.values())
      raise UserError(f"{predictions}: no predictions of {self.name}, expected files such as {names} (.gz)")
    return pairs

  def average(self, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`average`, None unless every task has all its scores, and the names of the `missing` tasks."""
    by_task: dict[str, dict[str, float]] = {}
    for name, scores in results.items():
      task = name.split("/")[1]
      for half in ("matched", "mismatched"):
        if task == f"mnli_{half}":
          by_task.setdefault("mnli", {})[half] = scores["accuracy"]
      by_task.setdefault(task, {}).update(scores)
    missing = [task for task, scores in self.tasks.items() if not set(scores) <= by_task.get(task, {}).keys()]
    found = None if missing else leaderboards.average(by_task, self.tasks)
    return {"average": found, **({"missing": missing} if missing else {})}


def _find(folder: str, names: Sequence[str]) -> str | None:
  """The first of the names that is a file in the folder, with or without .gz, ignoring case."""
  files = {str(path.relative_to(folder)).lower(): str(path) for path in sorted(pathlib.Path(folder).rglob("*"))}
  wanted = (f"{name}{ending}".lower() for name in names for ending in ("", ".gz"))
  return next((files[name] for name in wanted if name in files), None)


def _glue(folder: str, submitted: str, split: str = "dev", source: str = "") -> Files:
  references = (f"{folder}/{split}.tsv", f"{folder}/{split}.jsonl", f"{submitted}.tsv", f"{submitted}.jsonl")
  return (*references, *((source,) if source else ())), _endings(submitted, ".tsv", ".jsonl", ".json", ".txt")


def _superglue(submitted: str) -> Files:
  return (f"{submitted}/val.jsonl", f"{submitted}.jsonl"), _endings(submitted, ".jsonl", ".json", ".tsv", ".txt")


def _endings(name: str, *endings: str) -> tuple[str, ...]:
  return tuple(name + ending for ending in endings)


def glue(invalid: Invalid = "refuse") -> Suite:
  files = {
    "glue/cola": _glue("CoLA", "CoLA"),
    "glue/sst2": _glue("SST-2", "SST-2"),
    "glue/mrpc": _glue("MRPC", "MRPC", source="MRPC/msr_paraphrase_test.txt"),
    "glue/stsb": _glue("STS-B", "STS-B"),
    "glue/qqp": _glue("QQP", "QQP"),
    "glue/mnli_matched": _glue("MNLI", "MNLI-m", split="dev_matched"),
    "glue/mnli_mismatched": _glue("MNLI", "MNLI-mm", split="dev_mismatched"),
    "glue/qnli": _glue("QNLI", "QNLI"),
    "glue/rte": _glue("RTE", "RTE"),
    "glue/wnli": _glue("WNLI", "WNLI"),
  }
  return Suite("glue", files, leaderboards.GLUE, {"invalid": invalid})


def superglue(invalid: Invalid = "refuse") -> Suite:
  official = ("BoolQ", "CB", "COPA", "MultiRC", "ReCoRD", "RTE", "WiC", "WSC")
  files = {f"superglue/{name.lower()}": _superglue(name) for name in official}
  return Suite("superglue", files, leaderboards.SUPERGLUE, {"invalid": invalid})


SUITES = {"glue": glue, "superglue": superglue}
