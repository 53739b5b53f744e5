"""Suites of benchmarks, as data: one file each, found by its name (`--suite=glue`).

A file defines `SUITE`. Each task of it names its data, as a TensorFlow dataset and as official
files, and its form for each architecture: how such a model reads, learns and is scored on it. A
recipe of `configs/finetune/` defines everything else.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import slots
from t5x_like.errors import UserError

SPLITS = {"train": "train", "validation": "dev", "test": "test"}  # our name: most archives' name
BUCKETS = 4  # `config.task.buckets`, the number of lengths of batches; see `training/buckets.py`
Values = dict[str, Any]  # values of a config's slot: its `name` and arguments


@dataclasses.dataclass(frozen=True)
class Files:
  """The official files of a benchmark, and how to read them.

  The attributes are the keys that `corpora/sources/official.py` explains.
  """

  name: str
  format: str
  splits: Mapping[str, Sequence[str | Sequence[str]]]
  header: Sequence[str] = ()
  fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
  classes: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
  ragged: bool = False

  @property
  def source(self) -> str:
    """The `task.source` that reads the files; it searches for them in `task.data_dir`."""
    table = {key: value for key, value in dataclasses.asdict(self).items() if value}
    return "official:" + json.dumps(table)


@dataclasses.dataclass(frozen=True)
class Form:
  """How one kind of model (encoder, decoder or text-to-text) learns a task.

  Attributes:
    task, objective, evaluator: values of the config's slots, `task` without its source.
    counted: names of the scores to average for the task's cell in a table, as
      `<evaluation>/<score>`.
    head: `config.model.head`, for encoders.
    scores: `config.model.scores`, the number of outputs of a decoder's scoring layer; 0 for none.
    symmetric: whether the two texts of a pair may be exchanged.
    t5_form: the form of `corpora/sources/t5.py` in which the task reads the records; None for the
      records unchanged.
  """

  task: Values
  objective: Values
  evaluator: Values
  counted: tuple[str, ...]
  head: Values | None = None
  scores: int = 0
  symmetric: bool = False
  t5_form: str | None = None


@dataclasses.dataclass(frozen=True)
class Benchmark:
  """A task of a suite.

  Attributes:
    source: a `task.source` that needs no files, such as a TensorFlow dataset; None if there is
      none.
    files: the official files; None if there are none.
    examples: the published number of training examples.
    encoder, text: the forms for encoders and for text-to-text models; None if the task has none.
    evaluated: the evaluations by name. Each is a split of the task's source, or a table of changes
      to the evaluation that includes `split`. The first one selects the checkpoint.
    own_files: the official files of each evaluation that reads another source than the task.
    test: the split to predict for each file of a submission.
    epochs, rates, seeds: passes over the training split, learning rates to try and number of seeds,
      unless the command sets them. If empty, they are the recipe's, and one seed.
    config: values of further keys of the recipe, such as `{"task.length": 48, "batch_size": 16}`.
    published: scores of other models on the evaluated split, by the model's name.
    table: a hash of a user's task, from a TOML file or a module, by which a finished run of a
      changed task is refused; None for the package's tasks.
    named: whether the recipes of `configs/finetune/` accept its name as their argument.
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
    """Return the data sources of the task and of its evaluations, by the config keys to set.

    Args:
      official: whether to read the official files instead of `source`.
      form: the form whose task reads the records.
    """
    source = self.files.source if official else self.source
    if form.t5_form:
      source = f"t5:{form.t5_form}:{source}"
    keys = {"task.source": source}
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
    numbered: the tasks whose submission files hold the index of a class in the task's labels; those
      of the other tasks hold its name.
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
  """Make a benchmark that assigns a label to a text or a pair of texts.

  Args:
    text, pair: templates of the texts.
    labels: the names of the labels; None for a benchmark that predicts a number.
    inputs: the template of the text form's inputs, with the label's name as target; or the whole
      text form.
    questions: fields that identify the question of a row, for scores over questions.

  `Benchmark` and `Form` describe the other arguments, as for the functions below.
  """
  evaluated = evaluated or {"dev": "validation"}
  labels = [str(label) for label in labels or ()]  # in a TOML file they may be numbers
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
  """Name the counted scores as `<evaluation>/<score>`.

  A score without an evaluation is counted in every one; `dev/bleu` is counted in `dev` alone.
  """
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
  """Make the form of text-to-text models from templates of inputs and targets."""
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
  """Make a text form that reads the texts into which `corpora/sources/t5.py` rewrites records.

  Args:
    form: the name of the rewriting in that module, such as "stsb".
    counted: names of the counted scores on the dev set.
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
  return dataclasses.replace(text_form, t5_form=form)


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
  text_form: Form | None = None,
  evaluated: Mapping[str, str] | None = None,
  test: Mapping[str, str] | None = None,
  **task: Any,
) -> Benchmark:
  """Make a multiple-choice benchmark; encoders score each option in a separate row.

  Args:
    text: the template of the text.
    options: a template for each option, or the field with the list of options.
    choices: the number of options.
    text_form: the form for text-to-text models; None if there is none.
    task: further arguments of the task.
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
    label_field = task.get("label_field", "label")
    labels = [str(label) for label in task.get("labels", range(choices))]
    files = dataclasses.replace(files, classes={label_field: labels})
  return Benchmark(source, files, examples, form, text_form, evaluated, test=test or {})


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
  """Make a benchmark of generated text, for text-to-text models only."""
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
  """Make a benchmark of word tags. Only the score of the first evaluation is counted.

  In the text form, a sentinel precedes each word of the inputs and each tag of the targets.
  """
  evaluated = evaluated or {"dev": "validation"}
  first_evaluation = next(iter(evaluated))
  counted = (f"{first_evaluation}/{score}",)
  tag_names = [str(tag) for tag in tags]
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
  """Make a benchmark of answers that are spans of a text.

  It has a text form, which generates the answer, only if all questions are answerable and
  `evaluated` is not given (the evaluations in other languages have none).
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
  """Return the learned tasks of all suites with a form for a kind of model, by `SUITE/TASK`.

  Args:
    kind: `encoder`, `decoder` or `text`.
  """
  benchmarks = {}
  for suite_name in slots.names(__name__):
    suite = slots.find("suite", suite_name, __name__, "SUITE")
    if not isinstance(suite, Suite):  # its questions are answered without training
      continue
    for task, benchmark in suite.tasks.items():
      if getattr(benchmark, kind):
        benchmarks[f"{suite_name}/{task}"] = benchmark
  return benchmarks


def apply_form(config: Any, benchmark: Benchmark, form: Form, official: bool = False) -> None:
  """Set a recipe's task, objective, head, evaluations and selection metric to those of a form.

  Args:
    config: the recipe's config, which is modified.
    benchmark: the benchmark that has the form.
    form: the form for the recipe's architecture.
    official: whether to read the official files in `config.task.data_dir` even if the benchmark has
      a source that needs no files.
  """
  task = {"source": None}
  is_custom_task = ":" in form.task["name"]  # a user's task need not have the argument `buckets`
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
    form: the form with the counted scores.
    metrics: the names of the run's metrics; None or empty if they are not known.
  """
  names = [name.removeprefix("eval/") for name in metrics or ()]
  unknown = [name for name in form.counted if name not in names]
  if names and unknown:
    raise UserError(f"counted: found {unknown[0]!r}, expected some of {', '.join(names)}")


def mean_score(metrics: Mapping[str, float | None], counted: Sequence[str]) -> float:
  """Return the mean of the counted scores; an undefined score (None) counts as 0.

  Args:
    metrics: the scores by `<evaluation>/<score>`.
    counted: the names of the scores to average.
  """
  return sum(metrics[name] or 0.0 for name in counted) / len(counted)
