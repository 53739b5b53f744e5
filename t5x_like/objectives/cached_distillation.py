"""Distillation of a language model from a teacher's likeliest tokens, stored in advance.

`tools.cache_teacher` stores them.
"""

import dataclasses

import jax

from t5x_like.objectives._losses import Batch, Sums
from t5x_like.objectives._token_distillation import TokenDistillation, top_k_divergence


@dataclasses.dataclass(frozen=True)
class Objective(TokenDistillation):
  """`(1 - share) * CE(student, target) + share * KL(teacher || student)`; the teacher is not run.

  The divergence is over the teacher's k likeliest tokens and one event for all others together.
  With k = V it equals the divergence of `token_distillation` at temperature 1. The metric
  `remainder` is the probability of the others.

  Attributes:
    share: the teacher's share of the loss.
  """

  unit = "nats per target token"
  likelihood = True  # the reported `loss` is the cross-entropy of the targets only
  extra_features = ("teacher_tokens", "teacher_log_probabilities")
  reported_sums = ("loss", "correct", "distillation_loss", "agreement", "remainder")
  advice = (
    "store the teacher's likeliest tokens with python -m tools.cache_teacher, and set "
    "--config.task.name=taught"
  )

  share: float = 0.5

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the model on a batch.

    Args:
      model: the student.
      batch: as for `DecoderTargets`, and the teacher's likeliest tokens, in order: `teacher_tokens`
        int32 and `teacher_log_probabilities` float32, [B, T, k].

    Returns:
      (loss sum, sums), see `TokenDistillation.mix_losses`, with `distillation_loss`, `remainder`
      and `agreement`.
    """
    teacher = (batch["teacher_tokens"], batch["teacher_log_probabilities"])
    return self.mix_losses(model.outputs(batch, key), batch, top_k_divergence, (), *teacher)
