"""Distillation of a language model from a fixed teacher's distribution at every token."""

import dataclasses
import functools

import jax

from t5x_like.errors import UserError
from t5x_like.objectives._losses import Batch, Sums
from t5x_like.objectives._token_distillation import TokenDistillation, full_divergence
from t5x_like.slots import PositiveFloat


@dataclasses.dataclass(frozen=True)
class Objective(TokenDistillation):
  """Distillation of a language model from a teacher that runs in every step.

  The loss is `(1 - share) * CE(student, target) + share * T^2 KL(teacher || student)`. The
  teacher, `model.reference`, sees the student's features without dropout. It may be of any
  family with the same vocabulary, whose table may be padded to another size. `cached_distillation`
  learns from its likeliest tokens, stored once.

  Attributes:
    share: the teacher's share of the loss.
    temperature: T, which divides the logits of both in the divergence.
  """

  unit = "nats per target token"
  likelihood = True  # the reported `loss` is the cross-entropy of the targets only
  reported_sums = ("loss", "correct", "distillation_loss", "agreement")
  teacher = True

  share: float = 0.5
  temperature: PositiveFloat = 1.0

  @classmethod
  def check(cls, model, features: dict) -> None:
    for name in model.reference.REQUIRED_FEATURES:
      if name not in features:
        raise UserError(
          f"config.teacher: needs the feature {name!r}, which the task does not "
          "make; choose another"
        )
    batch = {
      name: jax.ShapeDtypeStruct((1, *feature.shape), feature.dtype)
      for name, feature in features.items()
    }
    student_logits = jax.eval_shape(lambda m, b: m(b), model, batch)["logits"]
    teacher_logits = jax.eval_shape(lambda m, b: m(b), model.reference, batch).get("logits")
    if teacher_logits is None or teacher_logits.shape[:-1] != student_logits.shape[:-1]:
      shape = "none" if teacher_logits is None else list(teacher_logits.shape[1:])
      raise UserError(
        f"config.teacher: found logits {shape}, expected {list(student_logits.shape[1:])}, "
        "the student's"
      )

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the model and its teacher on a batch.

    Args:
      model: the student; its teacher is `model.reference`.
      batch: as for `DecoderTargets`.
      key: dropout key of the student; None evaluates.

    Returns:
      (loss sum, sums), see `TokenDistillation.mix_losses`, with `distillation_loss` and
      `agreement`, the tokens for which both predict the same.
    """
    teacher = jax.lax.stop_gradient(model.reference.outputs(batch)["logits"])
    divergence = functools.partial(full_divergence, temperature=self.temperature)
    return self.mix_losses(model.outputs(batch, key), batch, divergence, (teacher,))
