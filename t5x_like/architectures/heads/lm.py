"""The language model head: logits over the vocabulary."""

from collections.abc import Callable

import jax
from flax import nnx

from t5x_like.architectures.design import Design, Variant
from t5x_like.nn import params
from t5x_like.nn.embed import Embed
from t5x_like.nn.vocabulary_logits import VocabularyLogits


class LmHead(nnx.Module):
  """Logits over the vocabulary, from the token table (tied) or a separate kernel.

  Args:
    shape: shape of the separate kernel, [D, V]; None ties.
    scale: factor of the hidden states (T5 1.0 divides them by sqrt(D)).
    softcap: logits become `softcap * tanh(logits / softcap)`.
    bias: size of the bias; None for none.
  """

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    shape: tuple[int, int] | None = None,
    init: Callable | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    bias: int | None = None,
  ):
    self.kernel = None if shape is None else params.param(rngs, init, shape, ("embed", "vocab"))
    self.bias = None if bias is None else params.param(rngs, params.zeros, (bias,), ("vocab",))
    self.scale = scale
    self.softcap = softcap

  def __call__(
    self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None
  ) -> dict[str, VocabularyLogits]:
    if self.scale != 1.0:
      x_BTD = x_BTD * self.scale
    tied = self.kernel is None
    bias = None if self.bias is None else self.bias[...]
    kernel = embed.table[...] if tied else self.kernel[...]
    logits = VocabularyLogits(x_BTD, kernel, bias, tied, self.softcap)
    return {"logits": logits}


def hidden_scale(design: Design, width: int) -> float:
  """Return the design's factor of hidden states of this width."""
  if design.logits_scale is True:
    return width**-0.5
  return design.logits_scale or 1.0


def make(rngs: nnx.Rngs, variant: Variant) -> LmHead:
  """Build the head of the variant's design."""
  design = variant.design
  D = variant.dims.embed
  V = variant.vocab_size
  return LmHead(
    rngs,
    shape=None if design.tied else (D, V),
    init=design.kernel_init(D),
    scale=hidden_scale(design, D),
    softcap=design.logits_softcap,
    bias=V if design.logits_bias else None,
  )
