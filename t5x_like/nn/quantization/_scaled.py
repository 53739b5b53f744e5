"""Products of factors rounded to 8 bits, each vector by a scale of its own.

For `sum_i a[m, i] b[i, n]`, row m of `a` is divided by its largest magnitude, and so is column n of
`b`. The product is multiplied by both scales afterwards. Scales never cross rows. A token's result
therefore depends on that token alone, so that causality, packing and decoding hold as they do
without rounding.
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
_AxisPair = tuple[tuple[int, ...], tuple[int, ...]]  # of the two factors
_Quantized = tuple[jax.Array, jax.Array]  # values and scales


@dataclasses.dataclass(frozen=True)
class ScaledProduct:
  """A product of rounded factors, in place of `linear.matmul` and of the experts' product.

  Rounding counts as the identity in the gradient. Kernels split over devices are gathered in 8
  bits.

  Attributes: factors: dtype of inputs and kernels in all products. gradients: dtype of the result's
    gradient. rounds_kernel_gradient: whether the kernel's gradient multiplies rounded factors too.
    On a mesh, each device
      then rounds its own tokens.
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
  """Set the product of a block's projections, and return the block.

  Projections are each `Linear` whose kernel's first axis has a name, and experts.

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
  """Round `x` to an 8-bit dtype, each vector along `axes` by a scale of its own.

  Returns:
    (values, float32 scales with length 1 along `axes`): `x` is about values * scales. Integers are
    off by at most half a scale, floats by 2^-4 (e4m3) or 2^-3 (e5m2) of themselves. A vector that
    is not finite has a scale that is not.
  """
  is_integer = jnp.issubdtype(dtype, jnp.integer)
  limits = jnp.iinfo(dtype) if is_integer else jnp.finfo(dtype)
  largest = float(limits.max)
  x = x.astype(jnp.float32)
  magnitude = jnp.maximum(jnp.max(jnp.abs(x), axis=axes, keepdims=True), _MIN_MAGNITUDE)
  scale = magnitude / largest
  x = jnp.clip(x / scale, -largest, largest)
  if is_integer:
    x = jnp.round(x)
  return x.astype(dtype), scale


def _multiply(
  a: _Quantized, b: _Quantized, axes: _AxisPair, batch_axes: _AxisPair, dtype
) -> jax.Array:
  """Multiply two pairs (values, scales) over `axes`; their batch axes lead."""
  values_a, scale_a = a
  values_b, scale_b = b
  axes_a, axes_b = axes
  batch = len(batch_axes[0])
  sum_dtype = jnp.int32 if values_a.dtype == jnp.int8 else jnp.float32
  y = jax.lax.dot_general(values_a, values_b, (axes, batch_axes), preferred_element_type=sum_dtype)
  free_a = values_a.ndim - len(axes_a) - batch
  free_b = values_b.ndim - len(axes_b) - batch
  scale_a = jnp.squeeze(scale_a, axes_a)
  scale_b = jnp.squeeze(scale_b, axes_b)
  scale_a = jnp.expand_dims(scale_a, tuple(range(scale_a.ndim, scale_a.ndim + free_b)))
  scale_b = jnp.expand_dims(scale_b, tuple(range(batch, batch + free_a)))
  return (y.astype(jnp.float32) * scale_a * scale_b).astype(dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def _product(x, kernel, scaled: ScaledProduct, dtype, axes: Axes, tokens: Axes) -> jax.Array:
  return _forward(x, kernel, scaled, dtype, axes, tokens)[0]


def _quantize_kernel(
  kernel, axis: int, scaled: ScaledProduct, axes: Axes, tokens: Axes
) -> _Quantized:
  """Round a kernel along `axis` where its parts lie, and gather the rounded values."""
  scale_axes = tuple(None if i == axis else name for i, name in enumerate(axes))
  values, scale = round_to_8_bits(kernel, (axis,), scaled.factors)
  # Without constraints before it, the partitioner would gather the kernel first and round it on
  # every device.
  values = gather(constrain(values, *axes), axes, tokens)
  scale = gather(constrain(scale, *scale_axes), scale_axes, tokens)
  return values, scale


def _forward(x, kernel, scaled, dtype, axes, tokens):
  batch = tuple(range(kernel.ndim - 2))
  x_axis = x.ndim - 1
  kernel_axis = len(batch)
  quantized_x = round_to_8_bits(x, (x_axis,), scaled.factors)
  quantized_kernel = _quantize_kernel(kernel, kernel_axis, scaled, axes, tokens)
  y = _multiply(quantized_x, quantized_kernel, ((x_axis,), (kernel_axis,)), (batch, batch), dtype)
  return y, (x, kernel)


def _backward(scaled, dtype, axes, tokens, residuals, g):
  x, kernel = residuals
  batch = tuple(range(kernel.ndim - 2))
  last = x.ndim - 1
  kernel_axis = len(batch) + 1
  quantized_g = round_to_8_bits(g, (last,), scaled.gradients)
  quantized_kernel = _quantize_kernel(kernel, kernel_axis, scaled, axes, tokens)
  d_x = _multiply(quantized_g, quantized_kernel, ((last,), (kernel_axis,)), (batch, batch), x.dtype)
  token_axes = tuple(range(len(batch), last))

  def kernel_gradient(x, g):
    if scaled.rounds_kernel_gradient:
      quantized_x = round_to_8_bits(x, token_axes, scaled.factors)
      quantized_g = round_to_8_bits(g, token_axes, scaled.gradients)
      return _multiply(quantized_x, quantized_g, (token_axes, token_axes), (batch, batch), x.dtype)
    if batch:
      dimensions = ((token_axes, token_axes), (batch, batch))
      return jax.lax.dot_general(x, g, dimensions, preferred_element_type=x.dtype)
    return contract(x, g, token_axes, token_axes, x.dtype)

  d_kernel = reduce_scatter(kernel_gradient, x, g.astype(x.dtype), axes, tokens)
  return d_x, d_kernel.astype(kernel.dtype)


_product.defvjp(_forward, _backward)
