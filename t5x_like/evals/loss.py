"""Compute loss, perplexity, accuracy and unigram entropy over every example exactly once."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import BaseEvaluator, EvalResult
from t5x_like.objectives import METRIC_NAMES, denominator, evaluate
from t5x_like.slots import PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(BaseEvaluator):
  """An evaluator of the objective, teacher-forced.

  The unigram entropy (nats) is the loss of the best predictor that knows only the frequency of each
  target token: a model with a higher loss has learned nothing from its input. Pixels have no such
  entropy, and only tokens have a perplexity; an objective whose loss is no likelihood has neither.

  Attributes:
    max_examples: the number of examples, from the first; None means all.

  Raises:
    UserError: the task lacks a feature that the objective needs.
  """

  max_examples: PositiveInt | None = None

  def __post_init__(self):
    task = self.context.task
    missing = self.context.objective.missing_features(task.features)
    if missing:
      raise UserError(
        f"evaluator loss: the objective needs the feature {missing[0]!r}, which task "
        f"{task.name} does not make (it makes {', '.join(task.features)}); choose another task"
      )

  @property
  def _has_entropy(self):
    """Whether the loss is the likelihood of classes or tokens, one for each weight."""
    objective = self.context.objective
    features = self.context.task.features
    target = features[objective.targets]
    has_one_target = target.shape == features[objective.weights].shape
    return objective.likelihood and has_one_target and target.dtype.startswith("int")

  @property
  def _has_perplexity(self):
    has_tokens = "tokens" in self.context.objective.targets
    return has_tokens and not getattr(self.context.task, "classes", ())

  def compute(self, model, batch):
    """Return the objective's sums, the number of examples and the counts [V] of the targets."""
    objective = self.context.objective
    _, sums = evaluate(objective, model, batch)
    sums = sums | {"examples": jnp.sum(batch["example_index"] >= 0)}
    if not self._has_entropy:
      return sums
    weights = (batch[objective.weights] > 0).astype(jnp.float32)
    counts_V = jnp.zeros(self.context.task.vocabulary.size, jnp.float32)
    counts_V = counts_V.at[batch[objective.targets]].add(weights, mode="drop")
    return sums | {"counts": counts_V}

  def metric_names(self):
    batch = self.context.abstract_batch()
    batch["example_index"] = jax.ShapeDtypeStruct((self.context.batch_size,), jnp.int32)
    with self.context.rules.activate():
      shapes = jax.eval_shape(self.compute, self.context.model, batch)
    names = []
    for name in shapes:
      if not name.endswith("weights") and name not in ("counts", "examples"):
        names.append(METRIC_NAMES.get(name, name))
    if "counts" in shapes:
      if self._has_perplexity:
        names.append("perplexity")
      names.append("unigram_entropy")
    return (*names, "examples", "target_tokens")

  def __call__(self, arrays):
    """Return the means of the objective's sums (`loss`, `accuracy`, …) and other metrics.

    The others are `examples`, `target_tokens` and, where it has one, `unigram_entropy` and
    `perplexity`.
    """
    pending = []
    total = None
    for batch in self.context.global_batches(self.max_examples):
      pending.append(self.run(arrays, batch))
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
      if self._has_perplexity:
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
