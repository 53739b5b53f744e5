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

_LEAST = 1e-30  # of a vector's largest magnitude, so that no scale is 0 or denormal
Dimensions = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]


@dataclasses.dataclass(frozen=True)
class ScaledProduct:
  """A product of rounded factors, in place of `linear.matmul` and of the experts' product.

  Rounding counts as the identity in the gradient. Kernels split over devices are gathered in 8
  bits.

  Attributes:
    factors: dtype of inputs and kernels in all products.
    gradients: dtype of the result's gradient.
    rounds_kernel_gradient: whether the kernel's gradient multiplies rounded factors too. On a mesh, each device
      then rounds its own tokens.
  """

  factors: str
  gradients: str
  rounds_kernel_gradient: bool

  def __call__(self, x: jax.Array, kernel: jax.Array, dtype: jnp.dtype, axes: Axes) -> jax.Array:
    """Compute `x @ kernel` in `dtype`: [B, D] or [B, T, D] and [D, F] -> [..., F]; `axes` are the
    kernel's."""
    return _product(x, kernel, self, jnp.dtype(dtype), axes, TOKENS[: x.ndim - 1])

  def experts(self, rows_EBCX: jax.Array, kernel_EXY: jax.Array, axes: Axes) -> jax.Array:
    """Multiply each expert's rows by its matrix: -> [E, B, C, Y] in the dtype of the rows."""
    return _product(rows_EBCX, kernel_EXY, self, rows_EBCX.dtype, axes, EXPERT_AXES)


def quantize_block(product: ScaledProduct, block: nnx.Module) -> nnx.Module:
  """Give a block's projections this product: each `Linear` whose kernel's first axis has a name,
  and experts.

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


def round_to_8_bits(x: jax.Array, axes: tuple[int, ...], dtype: str) -> tuple[jax.Array, jax.Array]:
  """Round `x` to an 8-bit dtype, each vector along `axes` by a scale of its own.

  Returns:
    (values, float32 scales with length 1 along `axes`): `x` is about values * scales. Integers are
    off by at most half a scale, floats by 2^-4 (e4m3) or 2^-3 (e5m2) of themselves. A vector that
    is not finite has a scale that is not.
  """
  integer = jnp.issubdtype(dtype, jnp.integer)
  most = float((jnp.iinfo if integer else jnp.finfo)(dtype).max)
  x = x.astype(jnp.float32)
  scale = jnp.maximum(jnp.max(jnp.abs(x), axis=axes, keepdims=True), _LEAST) / most
  x = jnp.clip(x / scale, -most, most)
  return (jnp.round(x) if integer else x).astype(dtype), scale


def _multiplied(
  a: tuple[jax.Array, jax.Array], b: tuple[jax.Array, jax.Array], dims: Dimensions, dtype
) -> jax.Array:
  """Multiply two pairs (values, scales) by `dot_general`; their batch axes lead."""
  (values_a, scale_a), (values_b, scale_b) = a, b
  (axes_a, axes_b), (batch, _) = dims
  wide = jnp.int32 if values_a.dtype == jnp.int8 else jnp.float32
  y = jax.lax.dot_general(values_a, values_b, dims, preferred_element_type=wide)
  free_a = values_a.ndim - len(axes_a) - len(batch)
  free_b = values_b.ndim - len(axes_b) - len(batch)
  scale_a = jnp.squeeze(scale_a, axes_a)
  scale_b = jnp.squeeze(scale_b, axes_b)
  scale_a = jnp.expand_dims(scale_a, tuple(range(scale_a.ndim, scale_a.ndim + free_b)))
  scale_b = jnp.expand_dims(scale_b, tuple(range(len(batch), len(batch) + free_a)))
  return (y.astype(jnp.float32) * scale_a * scale_b).astype(dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def _product(x, kernel, scaled: ScaledProduct, dtype, axes: Axes, tokens: Axes) -> jax.Array:
  return _forward(x, kernel, scaled, dtype, axes, tokens)[0]


def _kernel(
  kernel, axis: int, scaled: ScaledProduct, axes: Axes, tokens: Axes
) -> tuple[jax.Array, jax.Array]:
  """Round a kernel along `axis` where its parts lie, and gather the rounded values."""
  across = tuple(None if i == axis else name for i, name in enumerate(axes))
  values, scale = round_to_8_bits(kernel, (axis,), scaled.factors)
  # Without constraints before it, the partitioner would gather the kernel first and round it on
  # every device.
  return gather(constrain(values, *axes), axes, tokens), gather(
    constrain(scale, *across), across, tokens
  )


def _forward(x, kernel, scaled, dtype, axes, tokens):
  shared = kernel.ndim - 2
  last = x.ndim - 1
  dims = (((last,), (shared,)), (tuple(range(shared)),) * 2)
  of_x = round_to_8_bits(x, (last,), scaled.factors)
  of_kernel = _kernel(kernel, shared, scaled, axes, tokens)
  return _multiplied(of_x, of_kernel, dims, dtype), (x, kernel)


def _backward(scaled, dtype, axes, tokens, residuals, g):
  x, kernel = residuals
  shared = kernel.ndim - 2
  last = x.ndim - 1
  batch = (tuple(range(shared)),) * 2
  of_g = round_to_8_bits(g, (last,), scaled.gradients)
  of_kernel = _kernel(kernel, shared + 1, scaled, axes, tokens)
  d_x = _multiplied(of_g, of_kernel, (((last,), (shared + 1,)), batch), x.dtype)
  summed = tuple(range(shared, last))

  def d_kernel(x, g):
    dims = ((summed, summed), batch)
    if scaled.rounds_kernel_gradient:
      return _multiplied(
        round_to_8_bits(x, summed, scaled.factors),
        round_to_8_bits(g, summed, scaled.gradients),
        dims,
        x.dtype,
      )
    if shared:
      return jax.lax.dot_general(x, g, dims, preferred_element_type=x.dtype)
    return contract(x, g, summed, summed, x.dtype)

  return d_x, reduce_scatter(d_kernel, x, g.astype(x.dtype), axes, tokens).astype(kernel.dtype)


_product.defvjp(_forward, _backward)
