"""Linear projections and their matrix product."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.custom_batching import custom_vmap

from t5x_like.nn import params
from t5x_like.parallel.constrain import TOKENS, gather, platform, reduce_scatter, ways

ADAPTERS = ("lora_a", "lora_b")  # names of the parameters of a low-rank adapter; see `nn.lora`


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def matmul(x: jax.Array, kernel: jax.Array, dtype: jnp.dtype, axes: params.Axes) -> jax.Array:
  """Compute `x @ kernel` in `dtype`: [B, D] or [B, T, D] and [D, F] -> [..., F].

  The kernel is split over devices by its logical `axes`. It is cast to the dtype of `x` and then
  gathered, in the forward and again in the backward pass. Its gradient is scattered in that dtype.

  The kernel's gradient is `x^T @ g`, or in float32 on CPU `(g^T @ x)^T` if `x` is the wider of the
  two: XLA transposes the first factor there, and fuses its producer, such as a GELU or its
  gradient, into that strided copy.
  """
  return _matmul_forward(x, kernel, dtype, axes)[0]


def _matmul_forward(x, kernel, dtype, axes):
  gathered_kernel = gather(kernel.astype(x.dtype), axes)
  y = contract(x, gathered_kernel, x.ndim - 1, 0, dtype)
  return y, (x, kernel)


def _matmul_backward(dtype, axes, residuals, g):
  x, kernel = residuals
  g = g.astype(x.dtype)  # logits are wider than their factors
  batch_axes = tuple(range(x.ndim - 1))
  product = partial(contract, a_axes=batch_axes, b_axes=batch_axes, dtype=x.dtype)
  is_transposed = platform() == "cpu" and x.dtype == jnp.float32 and x.shape[-1] > g.shape[-1]

  def kernel_gradient(x, g):
    if is_transposed:
      return product(g, x).T
    return product(x, g)

  d_kernel = reduce_scatter(kernel_gradient, x, g, axes, TOKENS[: len(batch_axes)])
  gathered_kernel = gather(kernel.astype(x.dtype), axes)
  dx = contract(g, gathered_kernel, x.ndim - 1, 1, x.dtype)
  return dx, d_kernel.astype(kernel.dtype)


matmul.defvjp(_matmul_forward, _matmul_backward)


class Linear(nnx.Module):
  """`x @ kernel`, or `x @ kernel + bias`, computed in the dtype of `x`.

  Attributes:
    has_adapter: whether it has a low-rank adapter.
    multiply: its product, `matmul` or one of `nn.quantization`.
  """

  has_adapter = False
  multiply = staticmethod(matmul)

  def __init__(
    self,
    shape: tuple[int, int],
    axes: params.Axes,
    init: Callable,
    rngs: nnx.Rngs,
    *,
    unit: tuple[int, ...] = (),
    bias: bool = False,
  ):
    self.kernel = params.param(rngs, init, shape, axes, unit)
    self.bias = params.param(rngs, params.zeros, shape[1:], axes[1:], unit[1:]) if bias else None

  def __call__(self, x: jax.Array) -> jax.Array:
    y = self.multiply(x, self.kernel[...], x.dtype, self.kernel.axes[-2:])
    return self.finish_product(y, x)

  def finish_product(self, y: jax.Array, x: jax.Array) -> jax.Array:
    """Complete the product `y` of `x` and the kernel: add the bias."""
    if self.bias is None:
      return y
    return y + self.bias[...].astype(y.dtype)

  def without_adapter(self, *, merged: bool) -> "Linear":
    """Return the layer without its adapter, which is either added to the kernel or dropped."""
    return self

  @staticmethod
  def apply_jointly(layers: Sequence["Linear"], x: jax.Array) -> list[jax.Array]:
    """Apply layers that read the same input; see `apply_jointly`.

    Kernels split over devices only by their first axis (FSDP) are joined: one gather, one product
    and one reduce-scatter replace several, and a small collective costs as much as a large one.
    """
    input_axis = layers[0].kernel.axes[-2]
    outputs_are_split = any(ways(layer.kernel.axes[-1]) > 1 for layer in layers)
    if ways(input_axis) == 1 or outputs_are_split:
      return [layer(x) for layer in layers]
    kernels = [layer.kernel[...].astype(x.dtype) for layer in layers]
    widths = [kernel.shape[-1] for kernel in kernels]
    joined_kernel = jnp.concatenate(kernels, axis=-1)
    joined_y = layers[0].multiply(x, joined_kernel, x.dtype, (input_axis, None))
    parts = jax.lax.split(joined_y, widths, axis=joined_y.ndim - 1)
    outputs = []
    for layer, y in zip(layers, parts, strict=True):
      outputs.append(layer.finish_product(y, x))
    return outputs


def apply_jointly(layers: Sequence[Linear], x: jax.Array) -> list[jax.Array]:
  """Apply several layers to the same `x` and return their results in order."""
  return layers[0].apply_jointly(layers, x)


def map_linears(module: nnx.Module, function: Callable[[str, Linear], Linear]) -> nnx.Module:
  """Copy the module, replacing every `Linear` by `function(name, linear)`."""
  copied = jax.tree.map(lambda x: x, module)  # new modules, the same arrays
  for name, linear in list(linears(copied)):
    *path, last = name.split("/")
    parent = copied
    for attribute in path:
      parent = getattr(parent, attribute)
    setattr(parent, last, function(name, linear))
  return copied


def without_adapters(module: nnx.Module, *, merged: bool) -> nnx.Module:
  """Copy the module without adapters.

  If they are `merged` into the kernels, the copy computes the same function, else the function of
  the frozen kernels.
  """
  return map_linears(module, lambda _, linear: linear.without_adapter(merged=merged))


def has_adapters(module: nnx.Module) -> bool:
  """Return whether any `Linear` of a module has a low-rank adapter."""
  return any(linear.has_adapter for _, linear in linears(module))


def linears(module: nnx.Module, path: str = "") -> Iterator[tuple[str, Linear]]:
  """Yield every `Linear` of a module with its name, such as `mlp/layer/wi`."""
  for name, child in vars(module).items():
    if isinstance(child, Linear):
      yield path + name, child
    elif isinstance(child, nnx.Module):
      yield from linears(child, f"{path}{name}/")


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def wide_einsum(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
  """Compute an einsum as float32, such as attention's logits, with gradients in the dtype of `a`.

  By JAX's own rule, the gradients would be products of the float32 cotangent, which a GPU computes
  several times slower and a TPU reads from twice the memory. Here, the cotangent is cast first.
  """
  return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def _wide_einsum_forward(equation, a, b):
  return wide_einsum(equation, a, b), (a, b)


def _wide_einsum_backward(equation, factors, g):
  _, gradients = jax.vjp(partial(jnp.einsum, equation), *factors)
  return gradients(g.astype(factors[0].dtype))


wide_einsum.defvjp(_wide_einsum_forward, _wide_einsum_backward)


def contract(
  a, b, a_axes: int | tuple[int, ...], b_axes: int | tuple[int, ...], dtype
) -> jax.Array:
  """Multiply `a` and `b` over the given axes, accumulating in float32 and returning `dtype`."""
  if isinstance(a_axes, int):
    a_axes = (a_axes,)
  if isinstance(b_axes, int):
    b_axes = (b_axes,)
  product = partial(jax.lax.dot_general, dimension_numbers=((a_axes, b_axes), ((), ())))
  if platform() != "cpu" or dtype == jnp.float32:
    return product(a, b, preferred_element_type=dtype)

  # On CPU, XLA has fast bfloat16 products (AMX: four times float32's rate) only with float32
  # results and without a batch axis.
  @custom_vmap
  def multiply_wide(a, b):
    return product(a, b, preferred_element_type=jnp.float32).astype(dtype)

  @multiply_wide.def_vmap
  def _(size, batched, a, b):
    in_axes = [0 if is_batched else None for is_batched in batched]
    multiply_batch = jax.vmap(partial(product, preferred_element_type=dtype), in_axes)
    return multiply_batch(a, b), True

  return multiply_wide(a, b)
