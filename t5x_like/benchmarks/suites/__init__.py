"""Suites of benchmarks, as data: one file each; the module path is the registry (`--suite=glue`).

A file defines `SUITE`. Its tasks name their data, as a TensorFlow dataset and as official files,
and the form in which each architecture learns them; a recipe of `configs/finetune/` defines
everything else.
"""

import dataclasses
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
    table = {key: value for key, value in dataclasses.asdict(self).items() if value}
    return "official:" + json.dumps(table)


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
    """Return the sources of a form by the config's keys.

    Args:
      official: whether to read the official files, instead of the source that needs no files.
      form: the form.
    """
    source = self.files.source if official else self.source
    keys = {"task.source": f"t5:{form.rewritten}:{source}" if form.rewritten else source}
    if official:
      for name, files in self.own_files.items():
        keys[f"evals.{name}.task.source"] = files.source
    return keys

  @property
  def decoder(self) -> Form | None:
    """GPT-1's form (Radford et al. 2018, section 3.3) for labels and options, else None."""
    form = self.encoder
    if form is None or form.task["name"] not in ("classification", "multiple_choice"):
      return None
    task = {**form.task, "architecture": "decoder"}
    if form.symmetric:
      task["both_orders"] = True
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
  evaluated = evaluated or {"dev": "validation"}
  labels = list(map(str, labels or ()))  # a TOML file's may be numbers
  default_counted = scores if labels else ("pearson", "spearman")
  counted = _name_counted(evaluated, counted or default_counted)
  task = {"name": "classification", "length": length, "text": text}
  if pair:
    task["pair"] = pair
  if labels:
    task["labels"] = labels
  if label_field != "label":
    task["label_field"] = label_field
  evaluator = {"name": "classification", "scores": list(scores), "ids": list(ids)}
  if questions:
    evaluator["questions"] = list(questions)
  encoder_form = Form(
    task=task,
    objective={"name": "classification"},
    evaluator=evaluator,
    counted=counted,
    head={"name": "classification", "labels": len(labels) if labels else 1},
    symmetric=symmetric,
  )
  text_form = inputs
  if isinstance(inputs, str):
    metrics = ["number"]
    if labels:
      metrics = [{"name": "labels", "classes": labels, "scores": list(scores)}]
    text_form = _text_form(
      inputs,
      f"{{{label_field}}}",
      metrics,
      counted,
      ids=ids,
      inputs_length=max(128, length),
      targets_length=16,
    )
  if files:
    files = dataclasses.replace(files, classes={label_field: labels})
  return Benchmark(source, files, examples, encoder_form, text_form, evaluated, test=test or {})


def _name_counted(evaluated: Mapping[str, Any], scores: Sequence[str]) -> tuple[str, ...]:
  """Return the counted scores: each of every evaluation, or of one if spelled as `dev/bleu`."""
  counted = []
  for name in evaluated:
    for score in scores:
      counted.append(score if "/" in score else f"{name}/{score}")
  return tuple(dict.fromkeys(counted))


def _text_form(
  inputs: str,
  targets: str,
  metrics: Sequence[str | Values],
  counted: tuple[str, ...],
  *,
  inputs_length: int,
  targets_length: int,
  ids: Sequence[str] = (),
  **evaluator_arguments: Any,
) -> Form:
  task = {
    "name": "text_to_text",
    "inputs": inputs,
    "targets": targets,
    "inputs_length": inputs_length,
    "targets_length": targets_length,
    "too_long": "truncate",
    "packed": False,
  }
  evaluator = {"name": "generation", "metrics": metrics, "ids": list(ids)} | evaluator_arguments
  return Form(task, {"name": "encoder_decoder"}, evaluator, counted)


def t5_text_form(
  form: str,
  metrics: Sequence[str | Values],
  counted: Sequence[str],
  *,
  inputs_length: int = 128,
  targets_length: int = 16,
  ids: Sequence[str] = ("idx",),
  **evaluator_arguments: Any,
) -> Form:
  """Make the text form of records that a form of `corpora/sources/t5.py` rewrites.

  `counted` are scores on the dev set.
  """
  text_form = _text_form(
    "{inputs}",
    "{targets}",
    list(metrics),
    tuple(f"dev/{score}" for score in counted),
    ids=ids,
    inputs_length=inputs_length,
    targets_length=targets_length,
    **evaluator_arguments,
  )
  return dataclasses.replace(text_form, rewritten=form)


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
  form_task = {
    "name": "multiple_choice",
    "length": length,
    "text": text,
    "options": options if isinstance(options, str) else list(options),
    "choices": choices,
    **task,
  }
  form = Form(
    task=form_task,
    objective={"name": "multiple_choice"},
    evaluator={"name": "multiple_choice", "scores": list(scores), "ids": list(ids)},
    counted=_name_counted(evaluated, counted),
    head={"name": "multiple_choice", "choices": choices},
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
  **evaluator_arguments: Any,
) -> Benchmark:
  """Make a benchmark of generated text."""
  evaluated = evaluated or {"dev": "validation"}
  text_form = _text_form(
    inputs,
    targets,
    list(metrics),
    _name_counted(evaluated, counted),
    inputs_length=inputs_length,
    targets_length=targets_length,
    **evaluator_arguments,
  )
  return Benchmark(source, files, examples, text=text_form, evaluated=evaluated)


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
  """Make a benchmark of word tags, counted by the first evaluation.

  As text, each word and each tag follows its own sentinel.
  """
  evaluated = evaluated or {"dev": "validation"}
  counted = (f"{next(iter(evaluated))}/{score}",)
  tag_names = list(map(str, tags))
  encoder_form = Form(
    task={"name": "tagging", "tags_field": field, "tags": tag_names, "length": length},
    objective={"name": "tagging"},
    evaluator={"name": "tagging"},
    counted=counted,
    head={"name": "tokens", "labels": len(tags)},
  )
  text_form = _text_form(
    "tag: {tokens.<*>}",
    f"{{{field}.<*>}}",
    ["tags"] if score == "accuracy" else ["entities", "tags"],
    counted,
    inputs_length=128,
    targets_length=256,  # a tag may be several tokens
  )
  return Benchmark(source, files, examples, encoder_form, text_form, evaluated)


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
  exact_match = "exact" if unanswerable else "exact_match"
  if not counted:
    counted = _name_counted(evaluated or {"dev": ""}, (exact_match, "f1"))
  evaluator = {"name": "span_qa"}
  if unanswerable:
    evaluator["unanswerable"] = True
  encoder_form = Form(
    task={"name": "span_qa", "length": length, "stride": stride},
    objective={"name": "span_qa"},
    evaluator=evaluator,
    counted=tuple(counted),
    head={"name": "spans"},
  )
  text_form = None
  if not unanswerable and not evaluated:
    text_form = t5_text_form(
      "squad",
      ["answers"],
      ("exact_match", "f1"),
      ids=["id"],
      references="answers",
      inputs_length=512,
      targets_length=32,
    )
  evaluated = evaluated or {"dev": "validation"}
  return Benchmark(source, files, examples, encoder_form, text_form, evaluated, own_files or {})


def benchmarks_for(kind: str) -> dict[str, Benchmark]:
  """Return the tasks of all suites, by `SUITE/TASK`, that have a form for a kind of models.

  Args:
    kind: `encoder`, `decoder` or `text`.
  """
  benchmarks = {}
  for suite_name in slots.names(__name__):
    suite = slots.find("suite", suite_name, __name__, "SUITE")
    for task, benchmark in suite.tasks.items():
      if getattr(benchmark, kind):
        benchmarks[f"{suite_name}/{task}"] = benchmark
  return benchmarks


def apply_form(config: Any, benchmark: Benchmark, form: Form, official: bool = False) -> None:
  """Fill in a recipe's slots: task, objective, head, evaluators, and the metric for selection.

  Args:
    config: the recipe's config, which is changed.
    benchmark: the benchmark.
    form: its form for the recipe's architecture.
    official: whether to read the official files in `config.task.data_dir`, even if there is another
      source.
  """
  task = {"source": None}
  is_custom_task = ":" in form.task["name"]  # its arguments are its own
  if not is_custom_task:
    task["buckets"] = BUCKETS
  config.task = task | form.task
  config.objective = dict(form.objective)
  if form.head:
    config.model.head = dict(form.head)
  if form.scores:
    config.model.scores = form.scores
  config.train_split = "train"
  evaluations = {}
  for name, evaluation in benchmark.evaluated.items():
    changes = {"split": evaluation} if isinstance(evaluation, str) else evaluation
    evaluations[name] = dict(form.evaluator) | changes
  config.evals = evaluations
  first_name, first_evaluation = next(iter(evaluations.items()))
  config.eval_split = first_evaluation["split"]
  for key, source in benchmark.sources(official or benchmark.source is None, form).items():
    *path, last = key.split(".")
    node = config
    for part in path:
      node = node[part]
    node[last] = source
  score = form.counted[0].split("/", 1)[1]
  config.selection = {"metric": f"eval/{first_name}/{score}"}


def check_counted(form: Form, metrics: Sequence[str] | None) -> None:
  """Raise UserError for a counted score that is not a metric of a run's evaluations.

  Args:
    form: the form.
    metrics: the names of the metrics; None if they are not known.
  """
  names = [name.removeprefix("eval/") for name in metrics or ()]
  unknown = [name for name in form.counted if name not in names]
  if names and unknown:
    raise UserError(f"counted: found {unknown[0]!r}, expected some of {', '.join(names)}")


def mean_score(metrics: Mapping[str, float | None], counted: Sequence[str]) -> float:
  """Return the mean of a result's counted scores; undefined scores (None) are 0.

  Args:
    metrics: the scores by `<evaluation>/<score>`.
    counted: the names of those to average.
  """
  return sum(metrics[name] or 0.0 for name in counted) / len(counted)
