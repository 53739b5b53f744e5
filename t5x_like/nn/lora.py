"""Low-rank adapters: `y = x @ W + alpha / rank * (x @ A) @ B`, with W frozen.

They follow Hu et al. 2021, section 4.1. A model is built as usual; some of its `Linear`s are then
replaced by `LoraLinear`s. Models therefore need no code for adapters, and kernels keep their names,
with `lora_a` and `lora_b` next to them. A stack's adapters have its layers axis and are scanned,
split over stages and checkpointed with it. A is drawn like the kernels and B is zero, so that a
fresh adapter changes nothing.

W is frozen, so neither its gradient nor optimizer state for it is ever computed.
"""

import fnmatch
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.linear import Linear, linears, map_linears, matmul


class LoraLinear(Linear):
  """A `Linear` with an adapter.

  Args:
    linear: source of the kernel [..., D, F] and the bias.
    rank: R of A [..., D, R] and B [..., R, F], which are split over devices like the kernel along D
      and F.
    scale: factor of the adapter's output.
    key: random key for A, drawn from a normal distribution with standard deviation 1/sqrt(D).
  """

  has_adapter = True

  def __init__(self, linear: Linear, rank: int, scale: float, key: jax.Array):
    self.kernel = linear.kernel
    self.bias = linear.bias
    self.scale = scale
    self.multiply = linear.multiply
    *layers, D, F = linear.kernel.shape
    *layer_axes, D_axis, F_axis = linear.kernel.axes
    *layer_units, D_unit, F_unit = linear.kernel.unit
    a = jax.random.normal(key, (*layers, D, rank), jnp.float32) / math.sqrt(D)
    self.lora_a = nnx.Param(a, axes=(*layer_axes, D_axis, None), unit=(*layer_units, D_unit, 1))
    b = jnp.zeros((*layers, rank, F), jnp.float32)
    self.lora_b = nnx.Param(b, axes=(*layer_axes, None, F_axis), unit=(*layer_units, 1, F_unit))

  def finish_product(self, y: jax.Array, x: jax.Array) -> jax.Array:
    hidden = matmul(x, self.lora_a[...], x.dtype, self.lora_a.axes[-2:])
    adapter = matmul(hidden, self.lora_b[...], x.dtype, self.lora_b.axes[-2:])
    return super().finish_product(y, x) + self.scale * adapter

  def without_adapter(self, *, merged: bool) -> Linear:
    kernel = self.kernel[...]
    has_bias = self.bias is not None
    axes = self.kernel.axes
    if merged:
      with jax.default_matmul_precision("highest"):
        # by jax for arrays of numpy too, so that a model is merged to the same bits wherever it is
        product = jnp.matmul(self.lora_a[...], self.lora_b[...])
        kernel = kernel + self.scale * product
    # eval_shape builds the layer without allocating parameters, which are replaced below.
    linear = jax.eval_shape(
      lambda: Linear(kernel.shape, axes, params.zeros, nnx.Rngs(0), bias=has_bias)
    )
    linear.kernel = nnx.Param(kernel, axes=axes, unit=self.kernel.unit)
    linear.multiply = self.multiply
    if has_bias:
      linear.bias = self.bias
    return linear


def add_adapters(
  model,
  targets: Sequence[str],
  rank: int,
  alpha: float,
  key: jax.Array,
  excluded: Sequence[str] = (),
):
  """Add an adapter to every `Linear` that matches one of `targets`; return the new model.

  Args:
    targets: patterns of whole names or of their last parts, such as `query`,
      `cross_attention/layer/*`, `*`.
    rank: R of the adapters' A [..., D, R] and B [..., R, F].
    alpha: an adapter's output is scaled by alpha / rank.
    key: random key; each layer's A is drawn from a key derived from it.
    excluded: patterns of whole names of kernels that get no adapter, such as `head/*/*`.

  Raises:
    UserError: a target matches no `Linear`.
  """
  names = [name for name, _ in linears(model) if not _is_excluded(f"{name}/kernel", excluded)]
  for target in targets:
    if not any(_matches(name, (target,)) for name in names):
      last_parts = sorted({name.rpartition("/")[2] for name in names})
      raise UserError(
        f"config.tuning.targets: {target!r} names no kernel that can have an adapter; these can: "
        f"{', '.join(last_parts)}"
      )
  # Keys are numbered over all candidates, so that a layer's key does not depend on the targets.
  keys = {}
  for number, name in enumerate(sorted(names)):
    keys[name] = jax.random.fold_in(key, number)

  def adapt(name: str, linear: Linear) -> Linear:
    if name not in keys or not _matches(name, targets):
      return linear
    return LoraLinear(linear, rank, alpha / rank, keys[name])

  return map_linears(model, adapt)


def _is_excluded(kernel: str, patterns: Sequence[str]) -> bool:
  return any(fnmatch.fnmatchcase(kernel, pattern) for pattern in patterns)


def _matches(name: str, patterns: Sequence[str]) -> bool:
  """Return whether a pattern matches the whole name or its last parts."""
  for pattern in patterns:
    if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*/{pattern}"):
      return True
  return False
