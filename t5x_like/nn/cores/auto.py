"""Choose the core for the platform, the lengths and the features of a call. No other place decides
this.

| platform | below LEAST logits a head | up to SHORT | more | more, with features that the kernel
lacks |
|---|---|---|---|---|
| TPU | short | fused | splash | fused, as far as it goes, or chunked |
| GPU | dense | dense | cudnn | chunked |
| CPU | dense | dense | chunked | chunked |

The dense core computes what a kernel refuses up to SHORT logits, and always biases by the query
(Shaw's, DeBERTa's).
"""

import jax

from t5x_like import slots
from t5x_like.nn import cores
from t5x_like.nn.cores import Core, Softmax
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.mask import Mask
from t5x_like.parallel.constrain import platform, ways

# T * S: up to here a head's logits are small, and one matrix product is faster than a loop over
# blocks
MAX_DENSE_LOGITS = 2**19

# By platform: the kernels, imported only where they are chosen, below LEAST logits a head, up to
# SHORT, and beyond.
_KERNELS = {"tpu": (("short",), ("fused",), ("splash", "fused")), "gpu": ((), (), ("cudnn",))}
MIN_KERNEL_LOGITS = 2**13

# "auto", and the cores that compute the same function.
EXACT_CORES = ("auto", "dense", "short", "fused", "chunked", "ring", "splash", "cudnn")


class Auto(Core):
  """A core that picks one from the table above for each call; it refuses nothing."""

  piecewise_bias_above = MAX_DENSE_LOGITS
  exact = True

  def select(self, q: jax.Array, k: jax.Array, mask: Mask, softmax: Softmax) -> Core:
    """Choose the core for a call with these queries [B, T, N, H] and keys [B, S, K, H]."""
    logits = q.shape[1] * k.shape[1]
    placed = not (mask.causal or mask.window is not None) or (mask.aligned and ways("length") == 1)
    names = _KERNELS.get(platform(), ((), (), ()))[
      (logits >= MIN_KERNEL_LOGITS) + (logits > MAX_DENSE_LOGITS)
    ]
    for kernel in map(_core, names if placed or logits <= MAX_DENSE_LOGITS else ()):
      if not kernel.unsupported(q, k, mask, softmax):
        return kernel()
    whole = softmax.position.query_dependent or isinstance(softmax.bias, jax.Array)
    return Dense() if logits <= MAX_DENSE_LOGITS or whole else _core("chunked")()

  def for_decoding(self) -> "Auto":
    return self


def _core(name: str) -> type[Core]:
  return slots.find("config.model.design.core", name, cores, "make")


make = Auto
