"""The features of images, for models that are published without a classifier."""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.heads.image_classification import ImagePooling, Pooling
from t5x_like.nn.linear import Linear
from t5x_like.nn.norm import Identity, LayerNorm


class ImageFeatures(nnx.Module):
  """{"logits": float32 [B, T, D], the last hidden states; "pooled": float32 [B, D], one vector for
  each image}.

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
    kernel_init = variant.design.kernel_init(D)
    self.norm_before = pooler != "norm"
    self.dense = (
      Linear((D, D), ("embed", None), kernel_init, rngs, bias=True) if pooler == "dense" else None
    )
    self.norm = (
      LayerNorm(D, rngs, epsilon=variant.design.norm_epsilon) if pooler == "norm" else Identity()
    )

  def __call__(self, x_BTD: jax.Array, embed=None, valid_BT=None, key=None) -> dict[str, jax.Array]:
    x_BD = self.norm(self.pool(x_BTD))
    x_BD = x_BD if self.dense is None else jnp.tanh(self.dense(x_BD))
    return {"logits": x_BTD.astype(jnp.float32), "pooled": x_BD.astype(jnp.float32)}


make = ImageFeatures
