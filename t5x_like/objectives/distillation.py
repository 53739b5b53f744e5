"""Distillation: a classifier learns from labels and from a fixed teacher.

The method is DeiT's (Touvron et al. 2021, section 3, https://arxiv.org/abs/2012.12877), which also
applies to text classifiers.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from t5x_like.errors import UserError
from t5x_like.objectives import BaseObjective
from t5x_like.objectives._class_losses import LABEL_LOSSES, label_losses
from t5x_like.objectives._losses import Sums, add_auxiliary
from t5x_like.resolution import height_and_width
from t5x_like.slots import Rate


@dataclasses.dataclass(frozen=True)
class Objective(BaseObjective):
  """`(1 - share) * CE(class head, label) + share * D(distillation head, teacher)`.

  D is the cross-entropy of the teacher's likeliest class (`hard`, equation 3 with a share of 1/2),
  or `temperature^2 * KL(softmax(teacher / temperature) || softmax(student / temperature))` (`soft`,
  equation 2, where the paper takes a share of 0.1 and a temperature of 3). A model without a
  distillation head learns both with its only head. The teacher, `model.reference`, sees the
  student's augmented and mixed pixels or tokens, without dropout.

  Attributes:
    kind: the teacher's likeliest class as a label, or its softened probabilities.
    share: lambda, the teacher's share of the loss.
    temperature: divides the logits of teacher and student for `soft`.
    label_smoothing: smoothing of the labels; the teacher's classes are not smoothed.
    loss: the loss of the labels; see `objectives/classification.py`.
  """

  model_inputs = ("encoder_input_tokens", "image")
  targets = "label"
  weights = "example_weights"
  outputs = {"logits": 2}
  reported_sums = ("loss", "correct", "distillation_loss", "teacher_correct", "agreement")
  teacher = True
  unit = "mean of examples"
  predict_inputs = ("images",)

  kind: Literal["hard", "soft"] = "hard"
  share: float = 0.5
  temperature: float = 3.0
  label_smoothing: Rate = 0.0
  loss: Literal[*LABEL_LOSSES] = "softmax"

  @property
  def likelihood(self) -> bool:
    return self.loss == "softmax"

  def __post_init__(self):
    if not 0 <= self.share <= 1 or self.temperature <= 0:
      raise UserError(
        f"config.objective: found share {self.share} and temperature {self.temperature}, "
        "expected a share of 0 to 1 and a temperature above 0"
      )

  @classmethod
  def check(cls, model, features: dict) -> None:
    teacher = model.reference
    label = features["label"].dtype
    if not jnp.issubdtype(label, jnp.integer):
      raise UserError(
        f"config.objective: distillation is for labels that are classes, found {label}"
      )
    for name in teacher.REQUIRED_FEATURES:
      if name not in features:
        raise UserError(
          f"config.teacher: needs the feature {name!r}, which the task does not make; choose a "
          "classifier"
        )
    if hasattr(teacher.variant, "resolution"):
      shape = features["image"].shape
      variant = teacher.variant
      expected = (*height_and_width(variant.resolution), variant.channels)
      if shape != expected:
        raise UserError(
          f"config.teacher: is for images of {list(expected)}, found {list(shape)} (height, "
          "width, channels); choose another teacher, or set config.task and config.model to match"
        )
    batch = {
      name: jax.ShapeDtypeStruct((1, *feature.shape), feature.dtype)
      for name, feature in features.items()
    }
    student_logits = jax.eval_shape(lambda m, b: m(b), model, batch)["logits"]
    teacher_logits = jax.eval_shape(lambda m, b: m(b), teacher, batch).get("logits")
    if teacher_logits is None or teacher_logits.shape != student_logits.shape:
      shape = "none" if teacher_logits is None else list(teacher_logits.shape[1:])
      raise UserError(
        f"config.teacher: found logits {shape}, expected {list(student_logits.shape[1:])}, the "
        "student's"
      )

  def __call__(
    self, model, batch: dict[str, jax.Array], key: jax.Array | None = None
  ) -> tuple[jax.Array, Sums]:
    """Run the model and its teacher on a batch.

    Args:
      model: the student; its teacher is `model.reference`.
      batch: see `objectives/classification.py`; labels are int32.
      key: dropout key of the model; None evaluates.

    Returns:
      (loss sum, sums): `loss` (of the labels), `correct` (of the predictions, the mean of both
      heads), `distillation_loss` (D), `teacher_correct`, `agreement` (how often both predict the
      same class), `weights`, and the scalars of the model.
    """
    outputs = model(batch, key)
    weights_B = batch["example_weights"]
    teacher_BV = jax.lax.stop_gradient(model.reference(batch)["logits"].astype(jnp.float32))
    predicted_BV = outputs["logits"]
    student_BV = outputs.get("distillation_logits", predicted_BV).astype(jnp.float32)
    loss, sums = label_losses(
      outputs.get("class_logits", predicted_BV), batch, self.label_smoothing, self.loss
    )
    best_B = jnp.argmax(teacher_BV, axis=-1)
    if self.kind == "hard":
      distillation_B = -jnp.take_along_axis(
        jax.nn.log_softmax(student_BV), best_B[:, None], axis=-1
      )[:, 0]
    else:
      log_p_BV = jax.nn.log_softmax(teacher_BV / self.temperature)
      log_q_BV = jax.nn.log_softmax(student_BV / self.temperature)
      divergence_B = jnp.sum(jnp.exp(log_p_BV) * (log_p_BV - log_q_BV), axis=-1)
      distillation_B = self.temperature**2 * divergence_B
    distillation = jnp.sum(distillation_B * weights_B)
    _, student_sums = label_losses(predicted_BV, batch)
    _, teacher_sums = label_losses(teacher_BV, batch)
    sums |= {
      "correct": student_sums["correct"],
      "distillation_loss": distillation,
      "teacher_correct": teacher_sums["correct"],
      "agreement": jnp.sum((jnp.argmax(predicted_BV, axis=-1) == best_B) * weights_B),
    }
    return add_auxiliary((1 - self.share) * loss + self.share * distillation, sums, outputs)
