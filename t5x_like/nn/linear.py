"""Linear projections and their matrix product."""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.custom_batching import custom_vmap

from t5x_like.nn import params
from t5x_like.parallel.constrain import TOKENS, gathered, scattered, ways
from t5x_like.parallel.target import platform

_FEW = 64  # rows, of which transposing costs less than reading a kernel


class Linear(nnx.Module):
  """`x @ kernel`, or `x @ kernel + bias`, computed in the dtype of `x`."""

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
    return self.completed(matmul(x, self.kernel[...], x.dtype, self.kernel.axes[-2:]), x)

  def completed(self, y: jax.Array, x: jax.Array) -> jax.Array:
    """The layer's result, from the product `y` of `x` and the kernel."""
    return y if self.bias is None else y + self.bias[...].astype(y.dtype)


def together(layers: Sequence[Linear], x: jax.Array) -> list[jax.Array]:
  """What each of the layers makes of `x`.

  Kernels that are split over devices by their first axis alone (FSDP) are one kernel here: one gather, one product and
  one reduce-scatter instead of several, of which small ones cost as much as large ones.
  """
  if isinstance(layers[0], Joined):
    return layers[0].all(x)
  (first, _), *_ = axes = [layer.kernel.axes[-2:] for layer in layers]
  if ways(first) == 1 or any(ways(last) > 1 for _, last in axes):
    return [layer(x) for layer in layers]
  kernels = [layer.kernel[...].astype(x.dtype) for layer in layers]
  y = matmul(x, jnp.concatenate(kernels, axis=-1), x.dtype, (first, None))
  parts = jax.lax.split(y, [kernel.shape[-1] for kernel in kernels], axis=y.ndim - 1)
  return [layer.completed(part, x) for layer, part in zip(layers, parts, strict=True)]


class KernelFirst(Linear):
  """A `Linear` for few rows, computed as `kernel @ x^T` from a kernel [F, D] in the compute dtype."""

  def __init__(self, linear: Linear, dtype: jnp.dtype):
    kernel = linear.kernel[...].astype(dtype)
    axes, unit = linear.kernel.axes[-2:], linear.kernel.unit[-2:]
    self.kernel = nnx.Param(kernel.T, axes=axes[::-1], unit=unit[::-1])
    self.bias = linear.bias

  def __call__(self, x: jax.Array) -> jax.Array:
    return self.completed(kernel_first(self.kernel[...], x, x.dtype), x)


class Joined(nnx.Module):
  """In the place of the first of several `KernelFirst` that are applied together: one kernel of theirs, as each product
  costs some time of its own. Of bfloat16, XLA on CPU reads the small ones faster."""

  def __init__(self, layers: Sequence[KernelFirst]):
    first, *_ = layers
    self.sizes = tuple(layer.kernel[...].shape[0] for layer in layers)
    kernels = jnp.concatenate([layer.kernel[...] for layer in layers])
    self.kernel = nnx.Param(kernels, axes=first.kernel.axes, unit=first.kernel.unit)
    self.biases = nnx.List([layer.bias for layer in layers])

  def all(self, x: jax.Array) -> list[jax.Array]:
    """What each of the layers makes of `x`."""
    y = kernel_first(self.kernel[...], x, x.dtype)
    parts = jax.lax.split(y, self.sizes, axis=y.ndim - 1)
    return [part if b is None else part + b[...].astype(x.dtype) for part, b in zip(parts, self.biases, strict=True)]


class InJoined(nnx.Module):
  """In the place of the others."""


def kernel_first(kernel_FD: jax.Array, x: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """`x @ kernel^T`: [F, D] and [..., D] -> [..., F], without a gradient of its own.

  XLA on CPU reads a kernel that is the left factor up to twice as fast as a right one, and for few rows a product costs
  what reading its kernel costs.
  """
  F, D = kernel_FD.shape
  # Two axes each: with three, XLA on CPU may leave itself a product of bfloat16 that it then cannot compute.
  y_FM = _contract(kernel_FD, x.reshape(-1, D).astype(kernel_FD.dtype), 1, 1, dtype)
  if y_FM.shape[1] <= _FEW:  # or XLA makes one product of this and the transposition, the kernel on the right
    y_FM = jax.lax.optimization_barrier(y_FM)
  return y_FM.T.reshape(*x.shape[:-1], F)


def decoding(module: nnx.Module, dtype: jnp.dtype) -> nnx.Module:
  """The module for a loop that reads its kernels at every step: cast once to the compute dtype and, on CPU, as
  `KernelFirst`, except stacked ones and those that are split over devices. In float32, those that a module names in
  `TOGETHER` are `Joined`."""

  def held(_, linear: Linear) -> Linear:
    if type(linear) is not Linear:
      return linear
    kernel = linear.kernel
    if kernel[...].ndim == 2 and reads_first(kernel.axes):
      return KernelFirst(linear, dtype)
    cast = copy.copy(linear)
    cast.kernel = nnx.Param(kernel[...].astype(dtype), axes=kernel.axes, unit=kernel.unit)
    return cast

  made = replaced(module, held)
  for _, part in list(nnx.iter_modules(made)) if dtype == jnp.float32 else ():
    layers = [getattr(part, name) for name in getattr(part, "TOGETHER", ())]
    if layers and all(isinstance(layer, KernelFirst) for layer in layers):
      for name, joined in zip(part.TOGETHER, [Joined(layers), *(InJoined() for _ in layers[1:])], strict=True):
        setattr(part, name, joined)
  return made


def reads_first(axes: params.Axes) -> bool:
  """Whether a kernel with these logical axes is read fastest as the left factor: on CPU, if no device has a part."""
  return platform() == "cpu" and all(ways(axis) == 1 for axis in axes if axis is not None)


def replaced(module: nnx.Module, function: Callable[[str, Linear], Linear]) -> nnx.Module:
  """A copy of the module with `function(name, linear)` for every `Linear`."""
  made = jax.tree.map(lambda x: x, module)
  for name, linear in list(linears(made)):
    parent = made
    *path, last = name.split("/")
    for part in path:
      parent = getattr(parent, part)
    setattr(parent, last, function(name, linear))
  return made


def linears(module: nnx.Module, path: str = "") -> Iterator[tuple[str, Linear]]:
  """Every `Linear` of a module by name, such as `mlp/layer/wi`."""
  for name, child in vars(module).items():
    if isinstance(child, Linear):
      yield path + name, child
    elif isinstance(child, nnx.Module):
      yield from linears(child, f"{path}{name}/")


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def matmul(x: jax.Array, kernel: jax.Array, dtype: jnp.dtype, axes: params.Axes) -> jax.Array:
  """`x @ kernel`: [B, D] or [B, T, D] and [D, F] -> [..., F], accumulated and returned in `dtype`.

  The kernel is cast to the dtype of `x` before it is gathered from the devices that it is split over by its logical
  `axes`, which is done again for the backward pass, and its gradient is scattered in that dtype.

  The gradient of the kernel is computed as `x^T @ g`. JAX's own rule computes `(g^T @ x)^T`; on CPU, XLA then
  transposes `g`, often the wider of the two, and fuses whatever made `g`, such as the gradient of a GELU, into that
  strided copy.
  """
  return _matmul_forward(x, kernel, dtype, axes)[0]


def _matmul_forward(x, kernel, dtype, axes):
  return _contract(x, gathered(kernel.astype(x.dtype), axes), x.ndim - 1, 0, dtype), (x, kernel)


def _matmul_backward(dtype, axes, residuals, g):
  x, kernel = residuals
  batch = tuple(range(x.ndim - 1))
  whole = gathered(kernel.astype(x.dtype), axes)
  d_kernel = scattered(partial(_contract, a_axes=batch, b_axes=batch, dtype=x.dtype), x, g, axes, TOKENS[: len(batch)])
  return _contract(g, whole, x.ndim - 1, 1, x.dtype), d_kernel.astype(kernel.dtype)


matmul.defvjp(_matmul_forward, _matmul_backward)


def _contract(a, b, a_axes: int | tuple[int, ...], b_axes: int | tuple[int, ...], dtype):
  axes = tuple((i,) if isinstance(i, int) else i for i in (a_axes, b_axes))
  product = partial(jax.lax.dot_general, dimension_numbers=(axes, ((), ())))
  if platform() != "cpu" or dtype == jnp.float32:
    return product(a, b, preferred_element_type=dtype)

  # On CPU, XLA has fast products of bfloat16 (AMX: four times float32's rate) only for results in float32, and these
  # only without a batch axis.
  wide = custom_vmap(lambda a, b: product(a, b, preferred_element_type=jnp.float32).astype(dtype))

  @wide.def_vmap
  def _(size, batched, a, b):
    in_axes = [0 if is_batched else None for is_batched in batched]
    return jax.vmap(partial(product, preferred_element_type=dtype), in_axes)(a, b), True

  return wide(a, b)
