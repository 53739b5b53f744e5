"""The features of images, for models that are published without a classifier."""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.heads.image_classification import ImagePooling, Pooling
from t5x_like.nn.linear import Linear
from t5x_like.nn.norm import Identity, LayerNorm


class ImageFeatures(nnx.Module):
  """A head that returns hidden states and one vector for each image.

  The outputs are {"logits": float32 [B, T, D], the last hidden states; "pooled": float32 [B, D]}.

  Args:
    pooling: see `image_classification.ImagePooling`.
    pooler: the layer after pooling: none, a "dense" layer with tanh as in `ViTModel`, or a "norm"
      instead of the encoder's last, as in `ConvNextModel`.
  """

  def __init__(
    self,
    rngs: nnx.Rngs,
    variant,
    *,
    pooling: Pooling | None = None,
    pooler: Literal["none", "dense", "norm"] = "none",
  ):
    self.pool = ImagePooling.for_variant(pooling, variant)
    D = self.pool.width(variant.dims.embed)
    design = variant.design
    init = design.kernel_init(D)
    has_dense = pooler == "dense"
    has_norm = pooler == "norm"
    self.norm_before = not has_norm
    self.dense = Linear((D, D), ("embed", None), init, rngs, bias=True) if has_dense else None
    self.norm = LayerNorm(D, rngs, epsilon=design.norm_epsilon) if has_norm else Identity()

  def __call__(self, x_BTD: jax.Array, embed=None, valid_BT=None, key=None) -> dict[str, jax.Array]:
    x_BD = self.norm(self.pool(x_BTD))
    if self.dense is not None:
      x_BD = jnp.tanh(self.dense(x_BD))
    return {"logits": x_BTD.astype(jnp.float32), "pooled": x_BD.astype(jnp.float32)}


make = ImageFeatures
