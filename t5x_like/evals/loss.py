"""Loss, perplexity and token accuracy over every example exactly once, beside the unigram entropy of the targets."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.evals import Result, Setting


class Evaluator:
  """Teacher-forced evaluation.

  The unigram entropy (nats) is the loss of the best predictor that knows only how often each target token occurs: a
  model whose loss is above it has learned nothing from its input.

  Args:
    max_examples: only the first so many examples; None is all of them.
  """

  def __init__(self, setting: Setting, *, max_examples: int | None = None):
    self._setting = setting
    self._max_examples = max_examples
    size = setting.task.vocabulary.size

    def sums(model, batch):
      _, sums = setting.objective(model, batch)
      name, weights = next((name, batch[weights]) for name, weights in _TARGETS.items() if name in batch)
      targets = batch[name].astype(jnp.int32)  # of a regression no classes, and its entropy says little
      counts_V = jnp.zeros(size, jnp.float32).at[targets].add((weights > 0).astype(jnp.float32), mode="drop")
      return sums | {"counts": counts_V, "examples": jnp.sum(batch["example_index"] >= 0)}

    self._sums = setting.jit(sums)

  def __call__(self, arrays: dict[str, jax.Array]) -> Result:
    """`loss`, `perplexity`, `accuracy`, `unigram_entropy`, `examples` and `target_tokens` of these parameters, and the
    means of what else the objective sums."""
    pending, total = [], None
    for batch in self._setting.global_batches(self._max_examples):
      pending.append(self._sums(arrays, batch))
      if len(pending) > 1:  # one batch is computing while the one before it is read
        total = _add(total, pending.pop(0))
    for sums in pending:
      total = _add(total, sums)
    weights = max(float(total["weights"]), 1.0)
    loss = float(total["loss"]) / weights
    further = {name: float(total[name]) / weights for name in total.keys() - _TOKENS}
    share = total["counts"][total["counts"] > 0] / max(total["counts"].sum(), 1.0)
    return Result(
      {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),
        **({"accuracy": float(total["correct"]) / weights} if "correct" in total else {}),
        "unigram_entropy": float(-np.sum(share * np.log(share))),
        "examples": float(total["examples"]),
        "target_tokens": float(total["weights"]),
      }
      | further
    )


_TARGETS = {  # what is predicted, by the first of these names that a batch has, and its weights
  "decoder_target_tokens": "decoder_loss_weights",
  "encoder_target_tokens": "encoder_loss_weights",
  "label": "example_weights",
  "span_start": "example_weights",
}
_TOKENS = {"loss", "z_loss", "correct", "weights", "counts", "examples"}  # sums with a place of their own, or none


def _add(total: dict[str, np.ndarray] | None, sums: dict[str, jax.Array]) -> dict[str, np.ndarray]:
  """Adds up in float64: many batches of float32 sums would lose the last examples."""
  sums = {name: np.asarray(value, np.float64) for name, value in jax.device_get(sums).items()}
  return sums if total is None else {name: total[name] + sums[name] for name in sums}
