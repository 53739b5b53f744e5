"""Loss, perplexity, token accuracy and the unigram entropy of the targets, over every example
exactly once."""

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
    if lacking := objective.missing_features(context.task.features):
      raise UserError(
        f"evaluator loss: the objective needs the feature {lacking[0]!r}, which task "
        f"{context.task.name} does not make (it makes {', '.join(context.task.features)}); choose "
        "another task"
      )

    features = context.task.features
    target = features[objective.targets]
    has_class_targets = target.shape == features[objective.weights].shape
    has_class_targets = has_class_targets and target.dtype.startswith("int")
    has_entropy = objective.likelihood and has_class_targets
    tokens = "tokens" in objective.targets and not getattr(context.task, "classes", ())
    self._counted = ("perplexity", "unigram_entropy") if tokens else ("unigram_entropy",)

    def sums(model, batch):
      sums = evaluate(objective, model, batch)[1] | {
        "examples": jnp.sum(batch["example_index"] >= 0)
      }
      if not has_entropy:
        return sums
      counted = (batch[objective.weights] > 0).astype(jnp.float32)
      counts_V = jnp.zeros(size, jnp.float32).at[batch[objective.targets]].add(counted, mode="drop")
      return sums | {"counts": counts_V}

    self.sums = sums
    self._sums = context.jit(sums)

  def metric_names(self) -> tuple[str, ...]:
    batch = self._context.abstract_batch()
    batch["example_index"] = jax.ShapeDtypeStruct((self._context.batch_size,), jnp.int32)
    with self._context.rules.activate():
      shapes = jax.eval_shape(self.sums, self._context.model, batch)
    classes = self._counted if "counts" in shapes else ()
    means = (
      name for name in shapes if not name.endswith("weights") and name not in ("counts", "examples")
    )
    return (
      *(METRIC_NAMES.get(name, name) for name in means),
      *classes,
      "examples",
      "target_tokens",
    )

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Return the means of the objective's sums (`loss`, `accuracy`, …), `examples` and
    `target_tokens`; for classes also `unigram_entropy`, for tokens `perplexity`."""
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
    means = {
      METRIC_NAMES.get(name, name): float(value) / max(float(total[denominator(name, total)]), 1.0)
      for name, value in total.items()
      if not name.endswith("weights")
    }
    if counts is not None:
      share = counts[counts > 0] / max(counts.sum(), 1.0)
      means["unigram_entropy"] = float(-np.sum(share * np.log(share)))
      if "perplexity" in self._counted:
        means["perplexity"] = math.exp(min(means["loss"], 700.0))
    return EvalResult(
      means | {"examples": float(examples), "target_tokens": float(total["weights"])}
    )


def _add(total: dict[str, np.ndarray] | None, sums: dict[str, jax.Array]) -> dict[str, np.ndarray]:
  """Add a batch's sums to the total, in float64, because float32 would lose precision over many
  batches."""
  sums = {name: np.asarray(value, np.float64) for name, value in jax.device_get(sums).items()}
  return sums if total is None else {name: total[name] + sums[name] for name in sums}
