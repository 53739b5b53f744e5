"""Classification and regression of whole texts, with their benchmarks' metrics."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import EvalResult, _labelled
from t5x_like.metrics.classification import SCORES, Classification, Correlation, MultiRc


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(_labelled.LabelledEvaluator):
  """An evaluator of every example's likeliest class or, in a regression, of the predicted numbers.

  Examples without a label are predicted but not scored.

  Attributes:
    scores: for classes, some of accuracy, f1 (of class 1), macro_f1 and matthews_correlation;
      numbers always have Pearson's and Spearman's correlation. All are in percent.
    questions: fields that together identify an example's question; adds MultiRC's `f1a` and
      `exact_match`.

  Raises:
    UserError: the model lacks the head, or its head has another number of classes; or a score or
      field is unknown.
  """

  scores: tuple[str, ...] = ("accuracy",)
  questions: tuple[str, ...] = ()

  def check(self) -> None:
    unknown = [name for name in self.scores if name not in SCORES]
    if unknown:
      raise UserError(
        f"evaluator classification: scores: found {unknown[0]!r}, expected some of "
        f"{', '.join(SCORES)}"
      )
    if not self._classes and (self.scores != ("accuracy",) or self.questions):
      raise UserError(
        "evaluator classification: found scores or questions for labels that are numbers, expected "
        "neither; leave them out, or name the classes with config.task.labels"
      )
    num_labels = len(self._classes) or 1
    _labelled.check_labelled(self.context, "classification", {"logits": 2}, num_labels)

  @property
  def _classes(self):
    return self.context.task.classes

  @property
  def _metric(self):
    """The metric of the task's labels, classes or numbers."""
    if self._classes:
      return Classification(len(self._classes), self.scores)
    return Correlation()

  def compute(self, model, batch):
    """Return the logits of the examples, float32 [B, V]."""
    return (_labelled.example_outputs(model, batch)["logits"].astype(jnp.float32),)

  def metric_names(self):
    """Return the names of all metrics it may write; no scores where no example has a label."""
    names = []
    if any(example["label"] is not None for example in self.examples):
      names += self._metric.names
      if self.questions and self._classes:
        names += MultiRc.names
    return (*names, "examples", "unlabelled")

  def __call__(self, arrays):
    """Return the scores, and the numbers of `examples` and of `unlabelled` examples, if any."""
    predictions = []
    for example, (logits_V,) in zip(self.examples, self.rows(arrays)):
      predictions.append(self._describe_prediction(example, logits_V))
    scored = [n for n, example in enumerate(self.examples) if example["label"] is not None]
    scores = {}
    if scored:
      gold = [self.examples[n]["label"] for n in scored]
      predicted = [predictions[n]["prediction"] for n in scored]
      if self._classes:
        gold = [self._classes.index(label) for label in gold]
        predicted = [self._classes.index(label) for label in predicted]
      scores = self._metric(gold, predicted)
      records = [self.examples[n]["record"] for n in scored]
      if self.questions:
        scores |= _labelled.question_scores(records, self.questions, gold, predicted)
    counts = {"examples": len(predictions)}
    if len(scored) < len(predictions):
      counts["unlabelled"] = len(predictions) - len(scored)
    return EvalResult(scores | counts, _labelled.sample_predictions(predictions), predictions)

  def _describe_prediction(self, example: dict, logits_V: np.ndarray) -> dict:
    """Return the entry of an example in the predictions."""
    row = {"input": " | ".join(example["text"]), "target": example["label"]}
    if self._classes:
      p_V = np.exp(logits_V - logits_V.max())
      p_V /= p_V.sum()
      row["prediction"] = self._classes[int(logits_V.argmax())]
      row["probabilities"] = {name: round(float(p), 6) for name, p in zip(self._classes, p_V)}
    else:
      row["prediction"] = float(logits_V[0])
    return _labelled.prepend_ids(row, example["record"], self.ids)
