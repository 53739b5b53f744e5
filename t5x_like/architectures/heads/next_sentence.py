"""Next sentence prediction: whether the second segment follows the first.

Label 0 means that it does, 1 that it is random.
"""

from flax import nnx

from t5x_like.architectures.design import Variant
from t5x_like.architectures.heads.classification import SequenceClassifier


def make(
  rngs: nnx.Rngs, variant: Variant, dropout_rate: float, *, activation: str = "tanh"
) -> SequenceClassifier:
  return SequenceClassifier(rngs, variant, dropout_rate, labels=2, activation=activation)
