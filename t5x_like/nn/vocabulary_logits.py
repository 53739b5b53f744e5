"""Deferred logits over the vocabulary.

Their array [B, T, V] is often the largest of a step. A language model's head therefore returns
their factors, and an objective computes them piece by piece; see `objectives/_cross_entropy.py`.
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
    """Compute all logits, float32 [B, T, V], from inputs in the compute dtype."""
    logits_BTV = constrain(self.product(), "batch", "length", "activation_vocab")
    if self.bias is not None:
      logits_BTV = logits_BTV + self.bias
    return self.cap(logits_BTV)

  def product(self) -> jax.Array:
    """Compute `x @ kernel`, before bias and bound: float32 [B, T, V]."""
    kernel_DV = self.kernel.T if self.tied else self.kernel
    return matmul(self.x, kernel_DV, jnp.float32, ("embed", "vocab"))

  def cap(self, logits: jax.Array) -> jax.Array:
    if self.softcap is None:
      return logits
    return self.softcap * jnp.tanh(logits / self.softcap)


jax.tree_util.register_dataclass(VocabularyLogits)


def materialise_logits(outputs: dict) -> dict[str, jax.Array]:
  """Compute all deferred logits among a model's outputs."""
  outputs = dict(outputs)
  for name, output in outputs.items():
    if isinstance(output, VocabularyLogits):
      outputs[name] = output.dense()
  return outputs
