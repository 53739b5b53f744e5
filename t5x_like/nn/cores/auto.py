"""Choose the core for the platform, the lengths and the features of a call; only this file decides.

| platform | < MIN_KERNEL_LOGITS | <= MAX_DENSE_LOGITS | above | above, if refused |
|---|---|---|---|---|
| TPU | short | fused | splash | fused, up to its limit, or chunked |
| GPU | dense | dense | cudnn | chunked |
| CPU | dense | dense | chunked | chunked |

Logits are counted for one head, T * S. Up to MAX_DENSE_LOGITS the dense core computes the calls
that a kernel refuses, and always biases that depend on the query (Shaw's, DeBERTa's).
"""

import jax

from t5x_like import slots
from t5x_like.nn import cores
from t5x_like.nn.cores import Core, Softmax
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.mask import Mask
from t5x_like.parallel.constrain import platform, ways

# Up to here a head's logits are small, and one matrix product is faster than a loop over blocks.
MAX_DENSE_LOGITS = 2**19

# Below, a TPU runs the kernel for short sequences.
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
    for name in _kernels(logits, mask):
      kernel = _find_core(name)
      if not kernel.unsupported(q, k, mask, softmax):
        return kernel()
    needs_dense = softmax.position.query_dependent or isinstance(softmax.bias, jax.Array)
    if logits <= MAX_DENSE_LOGITS or needs_dense:
      return Dense()
    return _find_core("chunked")()

  def for_decoding(self) -> "Auto":
    return self


def _kernels(logits: int, mask: Mask) -> tuple[str, ...]:
  """Return the platform's kernels for this number of logits a head, the preferred one first."""
  if logits > MAX_DENSE_LOGITS:
    # The kernels for long sequences apply causality and windows by array index, not by position.
    uses_index = mask.causal or mask.window is not None
    if uses_index and not (mask.aligned and ways("length") == 1):
      return ()
    return {"tpu": ("splash", "fused"), "gpu": ("cudnn",)}.get(platform(), ())
  if platform() != "tpu":
    return ()
  return ("fused",) if logits >= MIN_KERNEL_LOGITS else ("short",)


def _find_core(name: str) -> type[Core]:
  """Return a core's class, whose module is imported only if it is chosen."""
  return slots.find("config.model.design.core", name, cores, "make")


make = Auto
