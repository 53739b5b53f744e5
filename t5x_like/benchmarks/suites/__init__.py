"""Suites of benchmarks, as data: one file each; the module path is the registry (`--suite=glue`).

A file defines `SUITE`. Its tasks name their data, as a TensorFlow dataset and as official files,
and the form in which each architecture learns them; a recipe of `configs/finetune/` defines
everything else.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import slots
from t5x_like.errors import UserError

SPLITS = {"train": "train", "validation": "dev", "test": "test"}  # by their names in most archives
BUCKETS = 4  # the most lengths of training batches, see `training/buckets.py`
Values = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Files:
  """The official files of a benchmark: a table that `corpora/sources/official.py` explains."""

  name: str
  format: str
  splits: Mapping[str, Sequence[str | Sequence[str]]]
  header: Sequence[str] = ()
  fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
  classes: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
  ragged: bool = False

  @property
  def source(self) -> str:
    """The source of their records; `data_dir` is the directory in which they are searched."""
    return "official:" + json.dumps(
      {key: found for key, found in dataclasses.asdict(self).items() if found}
    )


@dataclasses.dataclass(frozen=True)
class Form:
  """The form in which a kind of model learns a task.

  Attributes:
    task, objective, evaluator: values of the config's slots, `task` without its source.
    counted: the scores whose mean is the task's figure in a table, as `<evaluation>/<score>`.
    head: the head of an encoder.
    scores: the number of scores of a decoder.
    symmetric: whether the order of a pair of texts is irrelevant.
    rewritten: the form of `corpora/sources/t5.py` in which the task reads its records; None if as
      they are.
  """

  task: Values
  objective: Values
  evaluator: Values
  counted: tuple[str, ...]
  head: Values | None = None
  scores: int = 0
  symmetric: bool = False
  rewritten: str | None = None


@dataclasses.dataclass(frozen=True)
class Benchmark:
  """A task of a suite.

  Attributes:
    source: the source of its records that needs no files, such as a TensorFlow dataset; None if
      there is none.
    files: its official files; None if there are none.
    examples: the published number of training examples.
    encoder, text: its forms for encoders and for text-to-text models; None if there is no such
      form.
    evaluated: the evaluations by name, each a split of the task's source, or changes to the task
      including `split`; the first selects the checkpoint.
    own_files: the official files of evaluations that change the task's source.
    test: the files of a submission, each with the split to predict.
    epochs, rates, seeds: passes over the training split, learning rates and number of seeds, where
      the command has none; else the recipe's, and one seed.
    config: further keys of the recipe for this task, such as `{"task.length": 48, "batch_size":
      16}`.
    published: scores of other models on the evaluated split, by the model's name.
    table: identifies the table of a task from outside of the package; None for the package's.
    named: whether the recipes of `configs/finetune/` take it as their argument.
  """

  source: str | None
  files: Files | None
  examples: int
  encoder: Form | None = None
  text: Form | None = None
  evaluated: Mapping[str, str | Values] = dataclasses.field(
    default_factory=lambda: {"dev": "validation"}
  )
  own_files: Mapping[str, Files] = dataclasses.field(default_factory=dict)
  test: Mapping[str, str] = dataclasses.field(default_factory=dict)
  epochs: float | None = None
  rates: Sequence[float] = ()
  seeds: int | None = None
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  published: Mapping[str, float] = dataclasses.field(default_factory=dict)
  table: str | None = None
  named: bool = True

  def sources(self, official: bool, form: Form) -> dict[str, str]:
    """Return the sources of a form by the config's keys: the official files, or the source that
    needs none."""
    source = self.files.source if official else self.source
    own = (
      {f"evals.{name}.task.source": files.source for name, files in self.own_files.items()}
      if official
      else {}
    )
    return {"task.source": f"t5:{form.rewritten}:{source}" if form.rewritten else source} | own

  @property
  def decoder(self) -> Form | None:
    """GPT-1's form (Radford et al. 2018, section 3.3), for tasks with labels or options; None for
    other tasks."""
    form = self.encoder
    if form is None or form.task["name"] not in ("classification", "multiple_choice"):
      return None
    task = {**form.task, "architecture": "decoder"} | (
      {"both_orders": True} if form.symmetric else {}
    )
    scores = form.head.get("labels", 1)
    return dataclasses.replace(
      form, task=task, objective={"name": "gpt1"}, head=None, scores=scores
    )


@dataclasses.dataclass(frozen=True)
class Suite:
  """Benchmarks and their average.

  Attributes:
    tasks: the benchmarks by name.
    submission: the format of predictions for the test splits: "glue" (TSV), "superglue" (JSONL), or
      None.
    numbered: the tasks whose classes a submission numbers, in the order of their labels; others
      have names.
  """

  tasks: Mapping[str, Benchmark]
  submission: str | None = None
  numbered: Sequence[str] = ()


def classification(
  source: str | None,
  examples: int,
  *,
  files: Files | None = None,
  text: str,
  pair: str | None = None,
  labels: Sequence[str] | None,
  scores: Sequence[str] = ("accuracy",),
  inputs: str | Form,
  label_field: str = "label",
  length: int = 128,
  questions: Sequence[str] = (),
  symmetric: bool = False,
  counted: Sequence[str] = (),
  ids: Sequence[str] = ("idx",),
  evaluated: Mapping[str, str | Values] | None = None,
  test: Mapping[str, str] | None = None,
) -> Benchmark:
  """Make a benchmark of labels, or of numbers if `labels` is None.

  `inputs` is the template of the text form, whose target is the label's name; or that form as a
  whole.
  """
  # a TOML file's may be numbers
  evaluated = evaluated or {"dev": "validation"}
  labels = [*map(str, labels or ())]
  counted = _counted(evaluated, counted or (scores if labels else ("pearson", "spearman")))
  own = {"text": text} | ({"pair": pair} if pair else {}) | ({"labels": labels} if labels else {})
  own |= {} if label_field == "label" else {"label_field": label_field}
  judge = {"name": "classification", "scores": list(scores), "ids": list(ids)}
  encoder = Form(
    {"name": "classification", "length": length} | own,
    {"name": "classification"},
    judge | ({"questions": list(questions)} if questions else {}),
    counted,
    {"name": "classification", "labels": len(labels) if labels else 1},
    symmetric=symmetric,
  )
  as_text = inputs
  if isinstance(inputs, str):
    metrics = (
      [{"name": "labels", "classes": labels, "scores": list(scores)}] if labels else ["number"]
    )
    lengths = {"inputs_length": max(128, length), "targets_length": 16}
    as_text = _text(inputs, f"{{{label_field}}}", metrics, counted, ids=ids, **lengths)
  files = files and dataclasses.replace(files, classes={label_field: labels})
  return Benchmark(source, files, examples, encoder, as_text, evaluated, test=test or {})


def _counted(evaluated: Mapping[str, Any], scores: Sequence[str]) -> tuple[str, ...]:
  """Return the counted scores: each of every evaluation, or of one, if it is spelled as
  `dev/bleu`."""
  found = [score if "/" in score else f"{name}/{score}" for name in evaluated for score in scores]
  return tuple(dict.fromkeys(found))


def _text(
  inputs, targets, metrics, counted, *, inputs_length, targets_length, ids=(), **judge
) -> Form:
  task = {"name": "text_to_text", "inputs": inputs, "targets": targets}
  lengths = {"inputs_length": inputs_length, "targets_length": targets_length}
  evaluator = {"name": "generation", "metrics": metrics, "ids": list(ids)} | judge
  objective = {"name": "encoder_decoder"}
  return Form(
    task | lengths | {"too_long": "truncate", "packed": False}, objective, evaluator, counted
  )


def t5_text_form(
  form: str,
  metrics: Sequence[str | Values],
  counted: Sequence[str],
  *,
  inputs_length: int = 128,
  targets_length: int = 16,
  ids: Sequence[str] = ("idx",),
  **judge: Any,
) -> Form:
  """Make the text form of records that a form of `corpora/sources/t5.py` rewrites.

  `counted` are scores on the dev set; `judge` are further arguments of the evaluator.
  """
  scores = tuple(f"dev/{score}" for score in counted)
  lengths = {"inputs_length": inputs_length, "targets_length": targets_length}
  made = _text("{inputs}", "{targets}", list(metrics), scores, ids=ids, **lengths, **judge)
  return dataclasses.replace(made, rewritten=form)


def multiple_choice(
  source: str | None,
  examples: int,
  *,
  files: Files | None = None,
  text: str,
  options: str | Sequence[str],
  choices: int,
  scores: Sequence[str] = ("accuracy",),
  counted: Sequence[str] = ("accuracy",),
  ids: Sequence[str] = ("idx",),
  length: int = 128,
  instead: Form | None = None,
  evaluated: Mapping[str, str] | None = None,
  test: Mapping[str, str] | None = None,
  **task: Any,
) -> Benchmark:
  """Make a benchmark of multiple choice, each option a row.

  `task` are further arguments of the task; `instead` is the text form.
  """
  evaluated = evaluated or {"dev": "validation"}
  given = {
    "text": text,
    "options": options if isinstance(options, str) else list(options),
    "choices": choices,
  }
  form = Form(
    {"name": "multiple_choice", "length": length} | given | task,
    {"name": "multiple_choice"},
    {"name": "multiple_choice", "scores": list(scores), "ids": list(ids)},
    _counted(evaluated, counted),
    {"name": "multiple_choice", "choices": choices},
  )
  if files and "answers" not in task:
    labels = list(map(str, task.get("labels", range(choices))))
    files = dataclasses.replace(files, classes={task.get("label_field", "label"): labels})
  return Benchmark(source, files, examples, form, instead, evaluated, test=test or {})


def generation(
  source: str | None,
  examples: int,
  *,
  files: Files | None = None,
  inputs: str,
  targets: str,
  metrics: Sequence[str | Values],
  counted: Sequence[str],
  inputs_length: int = 128,
  targets_length: int = 128,
  evaluated: Mapping[str, str | Values] | None = None,
  **judge: Any,
) -> Benchmark:
  """Make a benchmark of generated text; `judge` are further arguments of the evaluator."""
  evaluated = evaluated or {"dev": "validation"}
  lengths = {"inputs_length": inputs_length, "targets_length": targets_length}
  text = _text(inputs, targets, list(metrics), _counted(evaluated, counted), **lengths, **judge)
  return Benchmark(source, files, examples, text=text, evaluated=evaluated)


def tagging(
  source: str | None,
  examples: int,
  *,
  files: Files | None = None,
  tags: Sequence[str],
  field: str,
  score: str,
  length: int = 128,
  evaluated: Mapping[str, str | Values] | None = None,
) -> Benchmark:
  """Make a benchmark of word tags, counted by the first evaluation; `examples` counts the training
  split.

  As text, each word and each tag follows its own sentinel.
  """
  evaluated = evaluated or {"dev": "validation"}
  counted = (f"{next(iter(evaluated))}/{score}",)
  form = Form(
    {"name": "tagging", "tags_field": field, "tags": [*map(str, tags)], "length": length},
    {"name": "tagging"},
    {"name": "tagging"},
    counted,
    {"name": "tokens", "labels": len(tags)},
  )
  metrics = ["tags"] if score == "accuracy" else ["entities", "tags"]
  lengths = {"inputs_length": 128, "targets_length": 256}  # a tag may be several tokens
  text = _text("tag: {tokens.<*>}", f"{{{field}.<*>}}", metrics, counted, **lengths)
  return Benchmark(source, files, examples, form, text, evaluated)


def span_qa(
  source: str | None,
  examples: int,
  *,
  files: Files | None = None,
  unanswerable: bool = False,
  evaluated: Mapping[str, str | Values] | None = None,
  own_files: Mapping[str, Files] | None = None,
  counted: Sequence[str] = (),
  length: int = 384,
  stride: int = 128,
) -> Benchmark:
  """Make a benchmark of extractive answers.

  The text form, which generates the answer, exists only for answerable questions in English (no
  `evaluated`).
  """
  found = ("exact" if unanswerable else "exact_match", "f1")
  counted = tuple(counted) or tuple(
    f"{name}/{score}" for name in evaluated or {"dev": ""} for score in found
  )
  form = Form(
    {"name": "span_qa", "length": length, "stride": stride},
    {"name": "span_qa"},
    {"name": "span_qa"} | ({"unanswerable": True} if unanswerable else {}),
    counted,
    {"name": "spans"},
  )
  text = None
  if not unanswerable and not evaluated:
    answers = {"ids": ["id"], "references": "answers", "inputs_length": 512, "targets_length": 32}
    text = t5_text_form("squad", ["answers"], ("exact_match", "f1"), **answers)
  return Benchmark(
    source, files, examples, form, text, evaluated or {"dev": "validation"}, own_files or {}
  )


def benchmarks_for(kind: str) -> dict[str, Benchmark]:
  """Return the tasks of all suites that have a form for `encoder`, `decoder` or `text`, by
  `SUITE/TASK`."""
  found = {
    name: slots.find("suite", name, __name__, "SUITE").tasks for name in slots.names(__name__)
  }
  tasks = {
    f"{name}/{task}": benchmark
    for name, tasks in found.items()
    for task, benchmark in tasks.items()
  }
  return {name: benchmark for name, benchmark in tasks.items() if getattr(benchmark, kind)}


def apply_form(config: Any, benchmark: Benchmark, form: Form, official: bool = False) -> None:
  """Fill in a recipe's slots: task, objective, head, evaluators and the metric that selects a
  checkpoint.

  Args:
    official: whether to read the official files in `config.task.data_dir`, even if there is another
      source.
  """
  own = ":" in form.task["name"]  # a task from outside, whose arguments are its own
  config.task = {"source": None} | ({} if own else {"buckets": BUCKETS}) | form.task
  config.objective = dict(form.objective)
  if form.head:
    config.model.head = dict(form.head)
  if form.scores:
    config.model.scores = form.scores
  config.train_split = "train"
  name, first = next(iter(benchmark.evaluated.items()))
  config.eval_split = first if isinstance(first, str) else first["split"]
  config.evals = {
    name: dict(form.evaluator) | _where(where) for name, where in benchmark.evaluated.items()
  }
  for key, source in benchmark.sources(official or benchmark.source is None, form).items():
    *path, last = key.split(".")
    functools.reduce(lambda node, name: node[name], path, config)[last] = source
  config.selection = {"metric": f"eval/{name}/{form.counted[0].split('/', 1)[1]}"}


def _where(where: str | Values) -> Values:
  return {"split": where} if isinstance(where, str) else dict(where)


def check_counted(form: Form, metrics: Sequence[str] | None) -> None:
  """Raise UserError for a counted score that is not among the metrics of a run's evaluations; None
  are unknown."""
  names = [name.removeprefix("eval/") for name in metrics or ()]
  if names and (unknown := [name for name in form.counted if name not in names]):
    raise UserError(f"counted: found {unknown[0]!r}, expected some of {', '.join(names)}")


def mean_score(metrics: Mapping[str, float | None], counted: Sequence[str]) -> float:
  """Return the mean of a result's counted scores, `{"<evaluation>/<score>": value}`; undefined
  scores (None) are 0."""
  return sum(metrics[name] or 0.0 for name in counted) / len(counted)
