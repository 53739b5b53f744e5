"""Logits over the vocabulary that are not computed yet.

An array [B, T, V] of them is often the largest of a step. So a language model's head returns what they are made of, and
an objective computes them a piece at a time; see `objectives/_cross_entropy.py`.
"""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.nn.linear import matmul
from t5x_like.parallel.constrain import constrain


@dataclasses.dataclass(frozen=True, eq=False)
class VocabularyLogits:
  """`cap(x @ kernel + bias)`.

  Attributes:
    x: hidden states [B, T, D] in the compute dtype.
    kernel: float32 [V, D] if `tied`, the token table, else [D, V].
    bias: float32 [V], or None.
    softcap: logits become `softcap * tanh(logits / softcap)`; None for no bound.
  """

  x: jax.Array
  kernel: jax.Array
  bias: jax.Array | None = None
  tied: bool = dataclasses.field(default=False, metadata={"static": True})
  softcap: float | None = dataclasses.field(default=None, metadata={"static": True})

  @property
  def vocab(self) -> int:
    return self.kernel.shape[0 if self.tied else 1]

  @property
  def shape(self) -> tuple[int, int, int]:
    return (*self.x.shape[:2], self.vocab)

  @property
  def ndim(self) -> int:
    return self.x.ndim

  def dense(self) -> jax.Array:
    """float32 [B, T, V]: inputs in the compute dtype, accumulated and returned in float32."""
    logits_BTV = constrain(self.product(), "batch", "length", "activation_vocab")
    if self.bias is not None:
      logits_BTV = logits_BTV + self.bias
    return self.capped(logits_BTV)

  def product(self) -> jax.Array:
    """float32 [B, T, V]: `x @ kernel`, before bias and bound."""
    kernel_DV = self.kernel.T if self.tied else self.kernel
    return matmul(self.x, kernel_DV, jnp.float32, ("embed", "vocab"))

  def capped(self, logits: jax.Array) -> jax.Array:
    return logits if self.softcap is None else self.softcap * jnp.tanh(logits / self.softcap)


jax.tree_util.register_dataclass(VocabularyLogits)


def dense(outputs: dict) -> dict[str, jax.Array]:
  """A model's outputs with all logits computed."""
  return {name: x.dense() if isinstance(x, VocabularyLogits) else x for name, x in outputs.items()}
