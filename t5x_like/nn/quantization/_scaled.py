"""Products of factors rounded to 8 bits, with one scale for each vector.

For `sum_i a[m, i] b[i, n]`, each row m of `a` and each column n of `b` is scaled by its largest
magnitude. The product is multiplied by both scales afterwards. No scale is shared between rows. A
token's result therefore depends on that token alone, and causality, packing and decoding hold as
they do without rounding.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn.feed_forward.moe import EXPERT_AXES, Moe
from t5x_like.nn.linear import Linear, contract
from t5x_like.nn.params import Axes
from t5x_like.parallel.constrain import TOKENS, constrain, gather, reduce_scatter

_MIN_MAGNITUDE = 1e-30  # of a vector, so that no scale is 0 or denormal
_AxisPair = tuple[tuple[int, ...], tuple[int, ...]]  # axes of each factor
_Quantized = tuple[jax.Array, jax.Array]  # values and scales


@dataclasses.dataclass(frozen=True)
class ScaledProduct:
  """A product of rounded factors, instead of `linear.matmul` and of the experts' product.

  The gradient treats rounding as the identity. Kernels split over devices are gathered in 8 bits.

  Attributes:
    factors: dtype of inputs and kernels in all products.
    gradients: dtype of the result's gradient.
    rounds_kernel_gradient: whether the kernel's gradient multiplies rounded factors too. On a mesh,
      each device then rounds its own tokens.
  """

  factors: str
  gradients: str
  rounds_kernel_gradient: bool

  def __call__(self, x: jax.Array, kernel: jax.Array, dtype: jnp.dtype, axes: Axes) -> jax.Array:
    """Compute `x @ kernel` in `dtype`: [B, D] or [B, T, D] and [D, F] -> [..., F].

    Args:
      axes: the logical axes of the kernel.
    """
    return _product(x, kernel, self, jnp.dtype(dtype), axes, TOKENS[: x.ndim - 1])

  def experts(self, rows_EBCX: jax.Array, kernel_EXY: jax.Array, axes: Axes) -> jax.Array:
    """Multiply each expert's rows by its matrix: -> [E, B, C, Y] in the dtype of the rows."""
    return _product(rows_EBCX, kernel_EXY, self, rows_EBCX.dtype, axes, EXPERT_AXES)


def quantize_block(product: ScaledProduct, block: nnx.Module) -> nnx.Module:
  """Make the projections of a block multiply by `product`, in place; return the block.

  The projections are every `Linear` whose kernel names its input axis, and experts.

  Raises:
    UserError: experts are not dispatched by capacity.
  """
  for _, part in list(nnx.iter_modules(block)):
    if isinstance(part, Linear) and part.kernel.axes[-2] is not None:
      part.multiply = product
    elif isinstance(part, Moe):
      if part.experts.dispatch != "capacity":
        raise UserError(
          f"config.model.design.quantization: found {product.factors} factors with experts "
          f"dispatched as {part.experts.dispatch!r}, expected 'capacity'; set "
          "--config.model.design.experts.dispatch=capacity"
        )
      part.multiply = product.experts
  return block


def round_to_8_bits(x: jax.Array, axes: tuple[int, ...], dtype: str) -> _Quantized:
  """Round `x` to an 8-bit dtype, with one scale for each vector along `axes`.

  Returns:
    (values, float32 scales with length 1 along `axes`): `x` is about values * scales. Integers are
    off by at most half a scale, floats by 2^-4 (e4m3) or 2^-3 (e5m2) of themselves. The scale of a
    vector that is not finite is not finite either.
  """
  is_integer = jnp.issubdtype(dtype, jnp.integer)
  limits = jnp.iinfo(dtype) if is_integer else jnp.finfo(dtype)
  largest = float(limits.max)
  x = x.astype(jnp.float32)
  magnitude = jnp.max(jnp.abs(x), axis=axes, keepdims=True)
  scale = jnp.maximum(magnitude, _MIN_MAGNITUDE) / largest
  x = jnp.clip(x / scale, -largest, largest)
  if is_integer:
    x = jnp.round(x)
  return x.astype(dtype), scale


def _multiply(
  a: _Quantized, b: _Quantized, axes: _AxisPair, batch_axes: _AxisPair, dtype
) -> jax.Array:
  """Contract two pairs (values, scales) over `axes`; the batch axes come first in both."""
  values_a, scale_a = a
  values_b, scale_b = b
  axes_a, axes_b = axes
  num_batch_axes = len(batch_axes[0])
  sum_dtype = jnp.int32 if values_a.dtype == jnp.int8 else jnp.float32
  y = jax.lax.dot_general(values_a, values_b, (axes, batch_axes), preferred_element_type=sum_dtype)
  # The result's axes are the batch axes, the free axes of a and the free axes of b.
  num_free_a = values_a.ndim - len(axes_a) - num_batch_axes
  num_free_b = values_b.ndim - len(axes_b) - num_batch_axes
  scale_a = jnp.squeeze(scale_a, axes_a)
  scale_b = jnp.squeeze(scale_b, axes_b)
  free_axes_b = tuple(range(scale_a.ndim, scale_a.ndim + num_free_b))
  free_axes_a = tuple(range(num_batch_axes, num_batch_axes + num_free_a))
  scale_a = jnp.expand_dims(scale_a, free_axes_b)
  scale_b = jnp.expand_dims(scale_b, free_axes_a)
  scaled = y.astype(jnp.float32) * scale_a * scale_b
  return scaled.astype(dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def _product(x, kernel, product: ScaledProduct, dtype, axes: Axes, token_axes: Axes) -> jax.Array:
  """Multiply `x`, whose leading axes are `token_axes`, by a kernel with the logical `axes`."""
  y, _ = _forward(x, kernel, product, dtype, axes, token_axes)
  return y


def _quantize_kernel(
  kernel, axis: int, product: ScaledProduct, axes: Axes, token_axes: Axes
) -> _Quantized:
  """Round a kernel along `axis` on the devices that have its parts; gather the rounded values."""
  scale_axes = (*axes[:axis], None, *axes[axis + 1 :])
  values, scale = round_to_8_bits(kernel, (axis,), product.factors)
  # Without a constraint on the rounded kernel, the partitioner would gather the kernel first and
  # round it on every device.
  values = constrain(values, *axes)
  gathered_values = gather(values, axes, token_axes)
  scale = constrain(scale, *scale_axes)
  gathered_scale = gather(scale, scale_axes, token_axes)
  return gathered_values, gathered_scale


def _forward(x, kernel, product, dtype, axes, token_axes):
  batch = tuple(range(kernel.ndim - 2))
  x_axis = x.ndim - 1
  kernel_axis = len(batch)
  quantized_x = round_to_8_bits(x, (x_axis,), product.factors)
  quantized_kernel = _quantize_kernel(kernel, kernel_axis, product, axes, token_axes)
  contracted = ((x_axis,), (kernel_axis,))
  y = _multiply(quantized_x, quantized_kernel, contracted, (batch, batch), dtype)
  return y, (x, kernel)


def _backward(product, dtype, axes, token_axes, residuals, g):
  x, kernel = residuals
  batch = tuple(range(kernel.ndim - 2))
  last_axis = x.ndim - 1
  kernel_axis = len(batch) + 1
  quantized_g = round_to_8_bits(g, (last_axis,), product.gradients)
  quantized_kernel = _quantize_kernel(kernel, kernel_axis, product, axes, token_axes)
  contracted = ((last_axis,), (kernel_axis,))
  d_x = _multiply(quantized_g, quantized_kernel, contracted, (batch, batch), x.dtype)
  summed = tuple(range(len(batch), last_axis))  # the kernel's gradient is a sum over tokens

  def compute_kernel_gradient(x, g):
    if product.rounds_kernel_gradient:
      quantized_x = round_to_8_bits(x, summed, product.factors)
      quantized_g = round_to_8_bits(g, summed, product.gradients)
      return _multiply(quantized_x, quantized_g, (summed, summed), (batch, batch), x.dtype)
    if batch:
      dimensions = ((summed, summed), (batch, batch))
      return jax.lax.dot_general(x, g, dimensions, preferred_element_type=x.dtype)
    return contract(x, g, summed, summed, x.dtype)

  d_kernel = reduce_scatter(compute_kernel_gradient, x, g.astype(x.dtype), axes, token_axes)
  return d_x, d_kernel.astype(kernel.dtype)


_product.defvjp(_forward, _backward)
