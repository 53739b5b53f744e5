"""The core that suits the platform, the lengths and what is asked; the one place where that is decided.

| platform | up to SHORT logits a head | more | more, with what the kernel cannot do |
|---|---|---|---|
| TPU | dense | splash | chunked |
| GPU | dense | cudnn | chunked |
| CPU | dense | chunked | chunked |

Positions that depend on the query (Shaw) are left to the dense core. All of these compute the same function.
"""

import jax

from t5x_like import slots
from t5x_like.nn import cores
from t5x_like.nn.cores import Core, Softmax
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.mask import Mask
from t5x_like.parallel.constrain import ways
from t5x_like.parallel.target import platform

SHORT = 2**19  # T * S: up to here a head's logits are small, and one matrix product is quicker than a loop over blocks

_KERNELS = {"tpu": "splash", "gpu": "cudnn"}  # by platform; imported only where they are chosen

# The cores that compute the same function, and the name of this choice among them.
EXACT = ("auto", "dense", "chunked", "ring", "splash", "cudnn")


class Auto(Core):
  """The core of the table above for each call; it refuses nothing."""

  pieces_above = SHORT

  def chosen(self, q: jax.Array, k: jax.Array, mask: Mask, softmax: Softmax) -> Core:
    """The core for a call with these queries [B, T, N, H] and keys [B, S, K, H]."""
    if q.shape[1] * k.shape[1] <= SHORT or softmax.position.query_dependent:
      return Dense()
    placed = not (mask.causal or mask.window is not None) or (mask.aligned and ways("length") == 1)
    name = _KERNELS.get(platform())
    if name is not None and placed:
      kernel = _core(name)
      if not kernel.refused(q, k, mask, softmax):
        return kernel()
    return _core("chunked")()

  def decoding(self) -> "Auto":
    return self


def _core(name: str) -> type[Core]:
  return slots.find("config.model.design.core", name, cores, "make")


make = Auto
