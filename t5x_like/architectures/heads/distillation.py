"""Two image classifiers: one learns from labels, the other from a teacher (DeiT)."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.linear import Linear
from t5x_like.slots import PositiveInt


class DistillationHead(nnx.Module):
  """A classifier of the class token, for labels, and one of the distillation token, for a teacher.

  Kernels start at 0 unless the design has an `init_stddev`, as in `image_classification`.
  The outputs are {"logits", "class_logits", "distillation_logits"}, each float32 [B, labels]; the
  first is the mean of the others (Touvron et al. 2021, section 4).
  """

  def __init__(self, rngs: nnx.Rngs, variant, *, labels: PositiveInt = 1000):
    if variant.class_tokens < 2:
      raise UserError(
        f"config.model.class_tokens: found {variant.class_tokens}, the head 'distillation' reads 2"
      )
    D = variant.dims.embed
    design = variant.design
    init = design.kernel_init(D) if design.init_stddev else params.zeros
    self.out = Linear((D, labels), ("embed", None), init, rngs, bias=True)
    self.distilled = Linear((D, labels), ("embed", None), init, rngs, bias=True)

  def pool(self, x_BTD: jax.Array) -> jax.Array:
    """Return the class token's state, [B, D]."""
    return x_BTD[:, 0]

  def __call__(self, x_BTD: jax.Array, embed=None, valid_BT=None, key=None) -> dict[str, jax.Array]:
    """Classify from the states of the class token and of the distillation token."""
    class_logits = self.out(x_BTD[:, 0]).astype(jnp.float32)
    distillation_logits = self.distilled(x_BTD[:, 1]).astype(jnp.float32)
    return {
      "logits": (class_logits + distillation_logits) / 2,
      "class_logits": class_logits,
      "distillation_logits": distillation_logits,
    }


make = DistillationHead
