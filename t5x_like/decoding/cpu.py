"""Layers for decoding on a CPU, where reading the kernels takes most of the time.

XLA on CPU reads a kernel up to twice as fast if it is the left factor of a product, and each
product has a fixed cost. Kernels are therefore transposed, cast and joined once, before the loop
over tokens.
"""

import copy
import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.linear import Linear, contract, map_linears, matmul
from t5x_like.nn.vocabulary_logits import VocabularyLogits
from t5x_like.parallel.constrain import platform, ways

# Transposing the product of at most this many rows costs less than reading a kernel.
_MAX_ROWS_TO_TRANSPOSE = 64


def prepare_for_loop(module: nnx.Module, dtype: jnp.dtype) -> nnx.Module:
  """Return the module for a loop that reads its kernels at every step.

  Kernels are cast to `dtype` once. On CPU each becomes a `KernelFirst`, except stacked kernels and
  kernels split over devices; quantised layers are unchanged. In float32, the layers that a module
  lists in `SHARED_INPUT` become one `FusedLinear`. In bfloat16 they are not fused, as XLA on CPU
  reads several small kernels faster than a large one.
  """

  def prepare(_, linear: Linear) -> Linear:
    if type(linear) is not Linear or linear.multiply is not matmul:  # adapted or quantised
      return linear
    kernel = linear.kernel
    if kernel[...].ndim == 2 and is_left_factor(kernel.axes):
      return KernelFirst(linear, dtype)
    cast_linear = copy.copy(linear)
    cast_values = kernel[...].astype(dtype)
    cast_linear.kernel = nnx.Param(cast_values, axes=kernel.axes, unit=kernel.unit)
    return cast_linear

  prepared = map_linears(module, prepare)
  if dtype == jnp.float32:
    for _, part in list(nnx.iter_modules(prepared)):
      _fuse_shared_inputs(part)
  return prepared


def _fuse_shared_inputs(module: nnx.Module) -> None:
  """Fuse the layers of a module that read the same input, if all of them are `KernelFirst`."""
  names = getattr(module, "SHARED_INPUT", ())
  layers = [getattr(module, name) for name in names]
  if not layers or not all(isinstance(layer, KernelFirst) for layer in layers):
    return
  setattr(module, names[0], FusedLinear(layers))
  for name in names[1:]:
    setattr(module, name, FusedInto())


def is_left_factor(axes: params.Axes) -> bool:
  """Return whether a kernel with these logical axes is read fastest as the left factor.

  This holds on CPU for kernels that are not split over devices.
  """
  return platform() == "cpu" and all(ways(axis) == 1 for axis in axes if axis is not None)


class KernelFirst(Linear):
  """A `Linear` for few rows, computed as `kernel @ x^T`.

  The kernel is [F, D], in the compute dtype.
  """

  def __init__(self, linear: Linear, dtype: jnp.dtype):
    kernel = linear.kernel[...].astype(dtype)
    axes = linear.kernel.axes[-2:]
    unit = linear.kernel.unit[-2:]
    self.kernel = nnx.Param(kernel.T, axes=axes[::-1], unit=unit[::-1])
    self.bias = linear.bias

  def __call__(self, x: jax.Array) -> jax.Array:
    y = kernel_first(self.kernel[...], x, x.dtype)
    return self.finish_product(y, x)


class FusedLinear(nnx.Module):
  """Several `KernelFirst` layers fused into one product; replaces the first of them."""

  def __init__(self, layers: Sequence[KernelFirst]):
    first, *_ = layers
    self.sizes = tuple(layer.kernel[...].shape[0] for layer in layers)
    kernels = jnp.concatenate([layer.kernel[...] for layer in layers])
    self.kernel = nnx.Param(kernels, axes=first.kernel.axes, unit=first.kernel.unit)
    self.biases = nnx.List([layer.bias for layer in layers])

  def apply_jointly(self, layers: Sequence[nnx.Module], x: jax.Array) -> list[jax.Array]:
    """Apply all fused layers to `x`; see `nn.linear.apply_jointly`.

    Args:
      layers: this layer and the placeholders of the others, which are not read.
      x: the input that the layers share.
    """
    y = kernel_first(self.kernel[...], x, x.dtype)
    parts = jax.lax.split(y, self.sizes, axis=y.ndim - 1)
    outputs = []
    for part, bias in zip(parts, self.biases, strict=True):
      if bias is not None:
        part = part + bias[...].astype(x.dtype)
      outputs.append(part)
    return outputs


class FusedInto(nnx.Module):
  """Placeholder for a layer fused into a `FusedLinear`."""


@dataclasses.dataclass(frozen=True, eq=False)
class KernelFirstLogits(VocabularyLogits):
  """`VocabularyLogits` for few rows; the kernel, [V, D], is the left factor."""

  def product(self) -> jax.Array:
    return kernel_first(self.kernel, self.x, jnp.float32)


jax.tree_util.register_dataclass(KernelFirstLogits)


def kernel_first(kernel_FD: jax.Array, x: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """Compute `x @ kernel^T` in `dtype`: [F, D] and [..., D] -> [..., F]."""
  F, D = kernel_FD.shape
  # Both factors have two axes: with three, XLA on CPU may generate a bfloat16 product that it
  # cannot compute.
  x_MD = x.reshape(-1, D).astype(kernel_FD.dtype)
  y_FM = contract(kernel_FD, x_MD, 1, 1, dtype)  # over D
  if y_FM.shape[1] <= _MAX_ROWS_TO_TRANSPOSE:
    # Without the barrier, XLA merges the transposition and makes the kernel the right factor, as it
    # may for more rows.
    y_FM = jax.lax.optimization_barrier(y_FM)
  return y_FM.T.reshape(*x.shape[:-1], F)
