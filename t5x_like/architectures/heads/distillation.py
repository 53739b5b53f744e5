"""Two image classifiers: the class token's learns from labels, the distillation token's from a
teacher (DeiT)."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.linear import Linear
from t5x_like.slots import PositiveInt


class DistillationHead(nnx.Module):
  """{"logits", "class_logits", "distillation_logits"}, each float32 [B, labels]; the first is the
  mean of the others (Touvron et al. 2021, section 4)."""

  def __init__(self, rngs: nnx.Rngs, variant, *, labels: PositiveInt = 1000):
    if variant.class_tokens < 2:
      raise UserError(
        f"config.model.class_tokens: found {variant.class_tokens}, the head 'distillation' reads 2"
      )
    D = variant.dims.embed
    design = variant.design
    init = design.kernel_init(D) if design.init_stddev else params.zeros
    self.out, self.distilled = (
      Linear((D, labels), ("embed", None), init, rngs, bias=True) for _ in range(2)
    )

  def pool(self, x_BTD: jax.Array) -> jax.Array:
    """Return the class token's state, [B, D]."""
    return x_BTD[:, 0]

  def __call__(self, x_BTD: jax.Array, embed=None, valid_BT=None, key=None) -> dict[str, jax.Array]:
    """Classify from the first two states of x_BTD: the class token's and the distillation
    token's."""
    logits, distilled = (
      f(x_BTD[:, n]).astype(jnp.float32) for n, f in enumerate((self.out, self.distilled))
    )
    return {
      "logits": (logits + distilled) / 2,
      "class_logits": logits,
      "distillation_logits": distilled,
    }


make = DistillationHead
