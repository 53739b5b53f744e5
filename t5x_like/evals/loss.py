"""Compute loss, perplexity, accuracy and unigram entropy over every example exactly once."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import EvalContext, EvalResult
from t5x_like.objectives import METRIC_NAMES, denominator, evaluate
from t5x_like.slots import PositiveInt


class Evaluator:
  """An evaluator of the objective, teacher-forced.

  The unigram entropy (nats) is the loss of the best predictor that knows only the frequency of each
  target token: a model with a higher loss has learned nothing from its input. Pixels have none, and
  only tokens have a perplexity. Objectives whose loss is no likelihood of the targets have neither.

  Args:
    max_examples: the number of examples, from the first; None means all.

  Attributes:
    sums: `(model, batch) -> sums`, computed for every batch.

  Raises:
    UserError: the task lacks a feature that the objective needs.
  """

  def __init__(self, context: EvalContext, *, max_examples: PositiveInt | None = None):
    self._context = context
    self._max_examples = max_examples
    objective = context.objective
    size = context.task.vocabulary.size
    missing = objective.missing_features(context.task.features)
    if missing:
      raise UserError(
        f"evaluator loss: the objective needs the feature {missing[0]!r}, which task "
        f"{context.task.name} does not make (it makes {', '.join(context.task.features)}); choose "
        "another task"
      )

    features = context.task.features
    target = features[objective.targets]
    has_class_targets = target.shape == features[objective.weights].shape
    has_class_targets = has_class_targets and target.dtype.startswith("int")
    has_entropy = objective.likelihood and has_class_targets
    has_tokens = "tokens" in objective.targets and not getattr(context.task, "classes", ())
    self._count_metrics = ("unigram_entropy",)
    if has_tokens:
      self._count_metrics = ("perplexity", "unigram_entropy")

    def compute_sums(model, batch):
      _, sums = evaluate(objective, model, batch)
      sums = sums | {"examples": jnp.sum(batch["example_index"] >= 0)}
      if not has_entropy:
        return sums
      weights = (batch[objective.weights] > 0).astype(jnp.float32)
      targets = batch[objective.targets]
      counts_V = jnp.zeros(size, jnp.float32).at[targets].add(weights, mode="drop")
      return sums | {"counts": counts_V}

    self.sums = compute_sums
    self._sums = context.jit(compute_sums)

  def metric_names(self) -> tuple[str, ...]:
    batch = self._context.abstract_batch()
    batch["example_index"] = jax.ShapeDtypeStruct((self._context.batch_size,), jnp.int32)
    with self._context.rules.activate():
      shapes = jax.eval_shape(self.sums, self._context.model, batch)
    names = []
    for name in shapes:
      if not name.endswith("weights") and name not in ("counts", "examples"):
        names.append(METRIC_NAMES.get(name, name))
    if "counts" in shapes:
      names += self._count_metrics
    return (*names, "examples", "target_tokens")

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Return the means of the objective's sums (`loss`, `accuracy`, …) and two counts.

    The counts are `examples` and `target_tokens`. Classes also have the `unigram_entropy`, tokens
    the `perplexity`.
    """
    pending = []
    total = None
    for batch in self._context.global_batches(self._max_examples):
      pending.append(self._sums(arrays, batch))
      if len(pending) > 1:  # read one batch's sums while the next is computing
        total = _add(total, pending.pop(0))
    for sums in pending:
      total = _add(total, sums)
    counts = total.pop("counts", None)
    examples = total.pop("examples")
    means = {}
    for name, value in total.items():
      if not name.endswith("weights"):
        weight = max(float(total[denominator(name, total)]), 1.0)
        means[METRIC_NAMES.get(name, name)] = float(value) / weight
    if counts is not None:
      p = counts[counts > 0] / max(counts.sum(), 1.0)
      means["unigram_entropy"] = float(-np.sum(p * np.log(p)))
      if "perplexity" in self._count_metrics:
        means["perplexity"] = math.exp(min(means["loss"], 700.0))
    means["examples"] = float(examples)
    means["target_tokens"] = float(total["weights"])
    return EvalResult(means)


def _add(total: dict[str, np.ndarray] | None, sums: dict[str, jax.Array]) -> dict[str, np.ndarray]:
  """Add a batch's sums to the total, in float64 to keep precision over many batches."""
  sums = {name: np.asarray(value, np.float64) for name, value in jax.device_get(sums).items()}
  if total is None:
    return sums
  return {name: total[name] + sums[name] for name in sums}
