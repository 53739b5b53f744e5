"""Multiple choice: the option with the highest score."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import EvalResult, _labelled
from t5x_like.metrics.squad import SquadV1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(_labelled.LabelledEvaluator):
  """An evaluator of the option with the highest score.

  Examples without a label are predicted but not scored.

  Attributes:
    scores: "accuracy", or "answers": exact match and F1 of the option's text with the nearest right
      answer, as in ReCoRD (Zhang et al. 2018). In percent.

  Raises:
    UserError: the task is not multiple choice, the model lacks the head, or a score or field is
      unknown.
  """

  scores: tuple[str, ...] = ("accuracy",)

  def check(self) -> None:
    unknown = [name for name in self.scores if name not in ("accuracy", "answers")]
    if unknown:
      raise UserError(
        f"evaluator multiple_choice: scores: found {unknown[0]!r}, expected accuracy or answers"
      )
    task = self.context.task
    if "option_labels" not in task.features:
      raise UserError(
        f"evaluator multiple_choice: found task {task.name} without options; choose another "
        "evaluator"
      )
    choices = task.features["option_labels"].shape[0]
    _labelled.check_labelled(self.context, "multiple_choice", {"logits": 2}, choices, "choices")

  def compute(self, model, batch):
    """Return the score of every option, float32 [B, C]."""
    outputs = _labelled.example_outputs(model, batch, is_choice=True)
    return (outputs["logits"].astype(jnp.float32),)

  def metric_names(self):
    """Return the names of all metrics it may write; no scores where no example has a label."""
    names = []
    if any(example["answers"] for example in self.examples):
      if "accuracy" in self.scores:
        names.append("accuracy")
      if "answers" in self.scores:
        names += SquadV1.names
    return (*names, "examples", "unlabelled")

  def __call__(self, arrays):
    """Return the scores, and the numbers of `examples` and of `unlabelled` examples, if any."""
    outputs = [logits_C for (logits_C,) in self.rows(arrays)]
    predictions = []
    for example, logits_C in zip(self.examples, outputs):
      predictions.append(self._describe_prediction(example, logits_C))
    scored = [n for n, example in enumerate(self.examples) if example["answers"]]
    metrics: dict[str, float] = {}
    if scored and "accuracy" in self.scores:
      right = []
      for n in scored:
        example = self.examples[n]
        best = outputs[n][: len(example["options"])].argmax()
        right.append(best in example["right"])
      metrics["accuracy"] = 100.0 * float(np.mean(right))
    if scored and "answers" in self.scores:
      gold = [self.examples[n]["answers"] for n in scored]
      metrics |= SquadV1()(gold, [predictions[n]["answer"] for n in scored])
    metrics["examples"] = len(predictions)
    if len(scored) < len(predictions):
      metrics["unlabelled"] = len(predictions) - len(scored)
    return EvalResult(metrics, _labelled.sample_predictions(predictions), predictions)

  def _describe_prediction(self, example: dict, logits_C: np.ndarray) -> dict:
    """Return the entry of an example in the predictions."""
    logits_C = logits_C[: len(example["options"])]
    best = int(logits_C.argmax())  # an index, as several options may have the same text
    p_C = np.exp(logits_C - logits_C.max())
    by_text = "answers" in self.scores
    row = {
      "input": example["text"],
      "options": example["options"],
      "target": example["answers"] if by_text else example["label"],
      "prediction": example["options"][best] if by_text else self.context.task.classes[best],
      "answer": example["options"][best],
      "probabilities": [round(float(p), 6) for p in p_C / p_C.sum()],
    }
    return _labelled.prepend_ids(row, example["record"], self.ids)
