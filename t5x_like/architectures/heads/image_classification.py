"""Classification of images."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.dims import Dropout, subkey
from t5x_like.nn.linear import Linear
from t5x_like.nn.norm import Identity, LayerNorm
from t5x_like.slots import PositiveInt, Rate

Pooling = Literal["token", "mean", "both"]


@dataclasses.dataclass(frozen=True)
class ImagePooling:
  """A function from the last hidden states [B, E + T, D] to the features [B, W] of an image.

  Attributes:
    pooling: the class "token", the "mean" of the patches, or "both", concatenated.
    num_class_tokens: E.
  """

  pooling: Pooling
  num_class_tokens: int

  @classmethod
  def for_variant(cls, pooling: Pooling | None, variant) -> "ImagePooling":
    """Return the pooling of a variant; None is the class token if the model has one, else the mean.

    Raises:
      UserError: the model has no class token to read.
    """
    if pooling is None:
      pooling = "token" if variant.class_tokens else "mean"
    if pooling != "mean" and not variant.class_tokens:
      raise UserError(
        f"config.model.head.pooling: found {pooling!r}, but the model has no class "
        "token; expected 'mean'"
      )
    return cls(pooling, variant.class_tokens)

  def width(self, D: int) -> int:
    return 2 * D if self.pooling == "both" else D

  def __call__(self, x_BTD: jax.Array) -> jax.Array:
    token_BD = x_BTD[:, 0]
    mean_BD = jnp.mean(x_BTD[:, self.num_class_tokens :], axis=1)
    if self.pooling == "both":
      return jnp.concatenate([token_BD, mean_BD], axis=-1)
    return token_BD if self.pooling == "token" else mean_BD


class ImageClassifier(nnx.Module):
  """A head that returns {"logits": float32 [B, labels]}.

  Its kernel starts at 0, as ViT's, or with the design's `init_stddev`, as Swin's and DeiT's.

  Args:
    labels: the number of classes.
    pooling: see `ImagePooling`; DINOv2's classifier reads "both".
    hidden: whether a tanh layer as wide as the stack precedes the classifier, as in the pretraining
      of ViT.
    norm: the last norm: the encoder's own "before" pooling; instead a new LayerNorm "after"
      pooling, as in MAE's code for fine-tuning; or "both". For linear probes of a masked
      autoencoder, He et al. 2022, appendix A.1, have a batch norm without parameters where "both"
      has a LayerNorm.
    dropout: rate before the classifier.
  """

  def __init__(
    self,
    rngs: nnx.Rngs,
    variant,
    *,
    labels: PositiveInt = 1000,
    pooling: Pooling | None = None,
    hidden: bool = False,
    norm: Literal["before", "after", "both"] = "before",
    dropout: Rate = 0.0,
  ):
    self.pool = ImagePooling.for_variant(pooling, variant)
    D = self.pool.width(variant.dims.embed)
    design = variant.design
    init = design.kernel_init(D)
    self.norm_before = norm != "after"  # whether the encoder applies its own norm
    self.norm = Identity() if norm == "before" else LayerNorm(D, rngs, epsilon=design.norm_epsilon)
    self.hidden = Linear((D, D), ("embed", None), init, rngs, bias=True) if hidden else None
    out_init = init if design.init_stddev else params.zeros
    self.out = Linear((D, labels), ("embed", None), out_init, rngs, bias=True)
    self.dropout = Dropout(dropout)

  def __call__(self, x_BTD: jax.Array, embed=None, valid_BT=None, key=None) -> dict[str, jax.Array]:
    x_BD = self.norm(self.pool(x_BTD))
    if self.hidden is not None:
      x_BD = jnp.tanh(self.hidden(x_BD))
    return {"logits": self.out(self.dropout(x_BD, subkey(key, 0))).astype(jnp.float32)}


make = ImageClassifier
