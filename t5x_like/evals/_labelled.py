"""Read and run the rows of labelled tasks, and check the tasks before training."""

import abc
import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import BaseEvaluator, EvalContext
from t5x_like.metrics.classification import MultiRc
from t5x_like.objectives import flatten_rows
from t5x_like.rows import merge_lengths, padded_length, run_in_batches
from t5x_like.slots import PositiveInt

_READ_BATCH_SIZE = 256
SAMPLE_COUNT = 8


class LabelledRows:
  """All rows of a labelled task, and a function compiled for them.

  Args:
    function: `(model, batch) -> a tuple of arrays` with a leading axis B.
    max_examples: the number of rows, from the first; None means all.

  Attributes:
    tokens: int32 [N, S], the tokens of all rows; [N, C, S] if each example has C rows.
  """

  def __init__(self, context: EvalContext, function: Callable, max_examples: int | None):
    from t5x_like.data import loader  # tensorflow: only where data is read

    self._context = context
    self._run = context.jit(function)
    parts: dict[str, list[np.ndarray]] = {}
    for batch in loader.eval_batches(
      context.task, batch_size=_READ_BATCH_SIZE, max_examples=max_examples
    ):
      is_example = batch["example_index"] >= 0  # rows that fill up the last batch have -1
      for name, array in batch.items():
        if name.startswith(("encoder_", "decoder_")):
          parts.setdefault(name, []).append(array[is_example])
    self._rows = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    if "decoder_input_tokens" in self._rows:
      self.tokens = self._rows["decoder_input_tokens"]
      is_token = self._rows["decoder_segment_ids"] > 0
    else:
      self.tokens = self._rows["encoder_input_tokens"]
      is_token = self.tokens != context.task.vocabulary.pad_id
    N, *_, S = self.tokens.shape
    num_padding = np.argmax(is_token[..., ::-1], axis=-1)
    used_N = (S - num_padding).reshape(N, -1).max(axis=1)
    self._lengths = merge_lengths(padded_lengths(context.model, used_N, S), context.batch_size)

  def __call__(self, arrays: dict[str, jax.Array]) -> list[tuple[np.ndarray, ...]]:
    """Return the function's outputs for every row in order, computed in batches of like lengths.

    Args:
      arrays: the model's parameters by name.
    """
    shape = self.tokens.shape[1:]

    def features(numbers: list[int], length: int) -> dict[str, np.ndarray]:
      batch = {}
      for name, array in self._rows.items():
        rows = array[numbers]
        batch[name] = rows[..., :length] if rows.shape[1:] == shape else rows
      return batch

    context = self._context
    return run_in_batches(
      lambda batch: self._run(arrays, batch),
      context.rules,
      context.batch_size,
      self._lengths,
      features,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledEvaluator(BaseEvaluator):
  """An evaluator of labelled rows, each of which has an entry in the predictions.

  Attributes:
    ids: fields to copy to the predictions.
    max_examples: the number of examples, from the first; None means all.
  """

  questions: ClassVar[tuple[str, ...]] = ()  # fields that identify a question

  ids: tuple[str, ...] = ()
  max_examples: PositiveInt | None = None

  def __post_init__(self):
    self.check()
    _ = self.examples  # read before the first step

  @abc.abstractmethod
  def check(self) -> None:
    """Raise UserError if arguments, task or model do not fit."""

  @functools.cached_property
  def rows(self) -> LabelledRows:
    """The rows of the task; a call returns the outputs of `compute` for each."""
    return LabelledRows(self.context, self.compute, self.max_examples)

  @functools.cached_property
  def examples(self) -> list[dict[str, Any]]:
    """The example of each row; see `data.task.Task.examples`."""
    fields = (*self.ids, *self.questions)
    return self.context.task.examples(fields)[: len(self.rows.tokens)]


def padded_lengths(model, lengths: Sequence[int], longest: int) -> list[int]:
  """Return the padded length of each row; `longest` if the model's core needs a fixed length."""
  if model.variant.design.core not in ("auto", "dense"):
    return [longest] * len(lengths)
  return [padded_length(int(length), longest) for length in lengths]


def example_outputs(
  model, batch: dict[str, jax.Array], is_choice: bool = False
) -> dict[str, jax.Array]:
  """Return the model's outputs for each example, however many rows it has.

  A decoder's `scores` replace its logits. If the rows of an example are options to choose from
  (`is_choice`), there is one score for each row. If they are the two orders of a pair of texts, the
  scores are added over the rows.
  """
  tokens = next(array for name, array in batch.items() if name.endswith("_input_tokens"))
  outputs = model(flatten_rows(batch) if tokens.ndim == 3 else batch)
  if "scores" not in outputs:
    return outputs
  scores_BRC = outputs["scores"].reshape(*batch["decoder_input_tokens"].shape[:2], -1)
  logits = scores_BRC[..., 0] if is_choice else scores_BRC.sum(axis=1)
  return outputs | {"logits": logits}


def check_labelled(
  context: EvalContext,
  evaluator: str,
  required: dict[str, int],
  labels: int | None = None,
  key: str = "labels",
) -> None:
  """Check that the task has labels and the model has the outputs that an evaluator needs.

  Args:
    required: the required outputs of the model and their numbers of axes.
    labels: the required length of the last axis of `logits`.
    key: the head's argument that sets this length.

  Raises:
    UserError: the task or the model does not fit; names the setting to change.
  """
  task = context.task
  if task.examples is None:
    raise UserError(
      f"evaluator {evaluator}: found task {task.name} without labelled records; choose another task"
    )
  batch = context.abstract_batch()
  if "decoder_input_tokens" in batch and "example_weights" not in batch:
    raise UserError(
      f"evaluator {evaluator}: found task {task.name} with {', '.join(batch)}, expected labelled "
      "texts; choose another task"
    )
  outputs = jax.eval_shape(
    functools.partial(example_outputs, is_choice="option_labels" in batch), context.model, batch
  )
  for name, axes in required.items():
    if name not in outputs or outputs[name].ndim != axes:
      shape = list(outputs[name].shape) if name in outputs else "none"
      raise UserError(
        f"evaluator {evaluator}: needs the output {name!r} with {axes} axes, found {shape}; set "
        "--config.model.head, or for a decoder --config.model.scores"
      )
  if labels is not None and outputs["logits"].shape[-1] != labels:
    raise UserError(
      f"config.model.head.{key}: found {outputs['logits'].shape[-1]}, but task {task.name} has "
      f"{labels} ({', '.join(task.classes) or 'a number'}); set --config.model.head.{key}={labels}"
    )


def question_scores(
  records: Sequence[dict],
  fields: Sequence[str],
  gold: Sequence[int],
  predictions: Sequence[int | None],
) -> dict[str, float]:
  """Return MultiRC's scores of labels 0 and 1, grouped by question.

  Args:
    records: the records of the answers.
    fields: the fields that together identify a question.
    gold: the correct label of each answer.
    predictions: the predicted labels; None counts as wrong.
  """
  from t5x_like.corpora.sources import field_value

  gold_by_question = collections.defaultdict(list)
  predictions_by_question = collections.defaultdict(list)
  for record, label, prediction in zip(records, gold, predictions):
    question = tuple(str(field_value(record, field, "")) for field in fields)
    if prediction is None:
      prediction = 1 - label
    gold_by_question[question].append(label)
    predictions_by_question[question].append(prediction)
  return MultiRc()(tuple(gold_by_question.values()), tuple(predictions_by_question.values()))


def prepend_ids(
  row: dict[str, Any], record: dict[str, Any], names: Sequence[str]
) -> dict[str, Any]:
  """Return a row of predictions, preceded by the fields that identify its record."""
  ids = {name: record[name] for name in names if name in record}
  return {**ids, **row}


def sample_predictions(predictions: list[dict[str, Any]]) -> list[dict[str, str]]:
  """Return the first predictions, as samples for the report."""
  samples = []
  for row in predictions[:SAMPLE_COUNT]:
    samples.append({key: str(row[key]) for key in ("input", "target", "prediction")})
  return samples
