"""Classification of sequences, or regression."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.design import Variant
from t5x_like.architectures.heads._pooler import Pooler
from t5x_like.nn.dims import Dropout, subkey
from t5x_like.nn.embed import Embed
from t5x_like.nn.linear import Linear
from t5x_like.slots import PositiveInt


class SequenceClassifier(nnx.Module):
  """Logits [B, labels] from the first token; one label is a regression.

  Args:
    activation: activation of the pooler ("tanh" in BERT and RoBERTa, "gelu" in Hugging Face's
      ELECTRA); None for no pooler, as in the code of ELECTRA's authors.
  """

  def __init__(
    self,
    rngs: nnx.Rngs,
    variant: Variant,
    dropout_rate: float,
    *,
    labels: PositiveInt = 2,
    activation: str | None = "tanh",
  ):
    D = variant.dims.embed
    self.pooler = None if activation is None else Pooler(rngs, variant, activation)
    self.out = Linear((D, labels), ("embed", None), variant.design.kernel_init(D), rngs, bias=True)
    self.dropout_rate = dropout_rate

  def __call__(
    self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None
  ) -> dict[str, jax.Array]:
    first_BD = x_BTD[:, 0] if self.pooler is None else self.pooler(x_BTD)
    x_BD = Dropout(self.dropout_rate)(first_BD, subkey(key, 0))
    return {"logits": self.out(x_BD).astype(jnp.float32)}


make = SequenceClassifier
