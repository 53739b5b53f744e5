"""Multiple choice: which of several sequences is the answer."""

import jax
from flax import nnx

from t5x_like.architectures.design import Variant
from t5x_like.architectures.heads.classification import SequenceClassifier
from t5x_like.nn.embed import Embed
from t5x_like.slots import PositiveInt


class MultipleChoice(SequenceClassifier):
  """One score for each choice.

  A batch holds the choices of an example in consecutive rows: [B * choices, T].
  """

  def __init__(
    self,
    rngs: nnx.Rngs,
    variant: Variant,
    dropout_rate: float,
    *,
    choices: PositiveInt = 4,
    activation: str = "tanh",
  ):
    super().__init__(rngs, variant, dropout_rate, labels=1, activation=activation)
    self.choices = choices

  def __call__(
    self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None
  ) -> dict[str, jax.Array]:
    """Return {"logits" [B, choices]}."""
    logits = super().__call__(x_BTD, embed, valid_BT, key)["logits"]
    return {"logits": logits.reshape(-1, self.choices)}


make = MultipleChoice
