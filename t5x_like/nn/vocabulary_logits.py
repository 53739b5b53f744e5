"""Deferred logits over the vocabulary.

The array of logits [B, T, V] is often the largest array of a step. A language model's head
therefore returns its factors, and an objective computes the logits in chunks; see
`objectives/_cross_entropy.py`.
"""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.nn.linear import matmul
from t5x_like.parallel.constrain import constrain


@dataclasses.dataclass(frozen=True, eq=False)
class VocabularyLogits:
  """The logits `cap(x @ kernel + bias)`, not yet computed.

  Attributes:
    x: hidden states [B, T, D] in the compute dtype.
    kernel: float32 [D, V], or the token table [V, D] if `tied`.
    bias: float32 [V], or None for no bias.
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
    """Compute `x @ kernel`, without bias and cap: float32 [B, T, V]."""
    kernel_DV = self.kernel.T if self.tied else self.kernel
    return matmul(self.x, kernel_DV, jnp.float32, ("embed", "vocab"))

  def cap(self, logits: jax.Array) -> jax.Array:
    """Bound logits by `softcap`."""
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
