"""Classification and regression of whole texts, with their benchmarks' metrics."""

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import EvalContext, EvalResult, _labelled
from t5x_like.metrics.classification import SCORES, Classification, Correlation, MultiRc
from t5x_like.slots import PositiveInt


class Evaluator:
  """An evaluator of every example's likeliest class or, in a regression, of the predicted numbers.

  Examples without a label are predicted, but not scored.

  Args:
    scores: for classes: accuracy, f1 (of class 1), macro_f1, matthews_correlation; for numbers
      always Pearson's and Spearman's correlation. In percent, like all benchmark metrics.
    questions: fields that together identify an example's question; adds MultiRC's `f1a` and
      `exact_match`.
    ids: fields to copy to the predictions.
    max_examples: the number of examples, from the first; None means all.

  Raises:
    UserError: the model lacks the head, or its head has another number of classes; or a score or
      field is unknown.
  """

  def __init__(
    self,
    context: EvalContext,
    *,
    scores: tuple[str, ...] = ("accuracy",),
    questions: tuple[str, ...] = (),
    ids: tuple[str, ...] = (),
    max_examples: PositiveInt | None = None,
  ):
    classes = context.task.classes
    if unknown := [name for name in scores if name not in SCORES]:
      raise UserError(
        f"evaluator classification: scores: found {unknown[0]!r}, expected some of "
        f"{', '.join(SCORES)}"
      )
    if not classes and (scores != ("accuracy",) or questions):
      raise UserError(
        "evaluator classification: scores, questions: the labels are numbers, expected neither; "
        "leave them out, or name the classes with config.task.labels"
      )
    _labelled.check_labelled(context, "classification", {"logits": 2}, len(classes) or 1)
    self._classes = classes
    self._ids = ids
    self._metric = Classification(len(classes), scores) if classes else Correlation()
    self._rows = _labelled.LabelledRows(context, _outputs, max_examples)
    self._examples = context.task.examples((*ids, *questions))[: len(self._rows.tokens)]
    self._questions = questions

  def metric_names(self) -> tuple[str, ...]:
    """Return the names of all metrics it may write; no scores where no example has a label."""
    names = []
    if any(example["label"] is not None for example in self._examples):
      names += self._metric.names
      if self._questions and self._classes:
        names += MultiRc.names
    return (*names, "examples", "unlabelled")

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Return the scores and the number of `examples` and, if there are any, of `unlabelled`
    examples."""
    outputs = [logits for (logits,) in self._rows(arrays)]
    predictions = [self._prediction(*pair) for pair in zip(self._examples, outputs)]
    scored = [n for n, example in enumerate(self._examples) if example["label"] is not None]
    scores = {}
    if scored:
      gold = [self._examples[n]["label"] for n in scored]
      predicted = [predictions[n]["prediction"] for n in scored]
      if self._classes:
        gold = [self._classes.index(label) for label in gold]
        predicted = [self._classes.index(label) for label in predicted]
      scores = self._metric(gold, predicted)
      records = [self._examples[n]["record"] for n in scored]
      if self._questions:
        scores |= _labelled.question_scores(records, self._questions, gold, predicted)
    counts = {"examples": len(predictions)}
    if len(scored) < len(predictions):
      counts["unlabelled"] = len(predictions) - len(scored)
    return EvalResult(scores | counts, _labelled.sample_predictions(predictions), predictions)

  def _prediction(self, example: dict, logits: np.ndarray) -> dict:
    row = {"input": " | ".join(example["text"]), "target": example["label"]}
    if not self._classes:
      return _labelled.with_identifiers(
        row | {"prediction": float(logits[0])}, example["record"], self._ids
      )
    p = np.exp(logits - logits.max())
    probabilities = {name: round(float(x), 6) for name, x in zip(self._classes, p / p.sum())}
    row |= {"prediction": self._classes[int(logits.argmax())], "probabilities": probabilities}
    return _labelled.with_identifiers(row, example["record"], self._ids)


def _outputs(model, batch) -> tuple[jax.Array]:
  return (_labelled.example_outputs(model, batch)["logits"].astype(jnp.float32),)
