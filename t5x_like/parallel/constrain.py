"""Give layers access to the mesh, by logical axis names, and to its platform.

Layers are single-device code: they know only the logical names of their activations' axes.
`parallel.rules.Rules.activate` maps these to mesh axes around a traced step; outside of it there is
one device.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax

Axes = tuple[str | None, ...]
TOKENS = ("batch", "length")


class Layout(Protocol):
  """The interface that `Rules` implement; see the functions of the same names."""

  def constrain(self, x: jax.Array, axes: Axes, first: str | None) -> jax.Array: ...
  def exchange(self, x: jax.Array, before: Axes, after: Axes) -> jax.Array: ...
  def gather(self, kernel: jax.Array, axes: Axes, tokens: Axes) -> jax.Array: ...
  def reduce_scatter(
    self, contract: Callable, x: jax.Array, g: jax.Array, axes: Axes, tokens: Axes
  ) -> jax.Array: ...
  def per_device(self, function: Callable, arguments: tuple, axes: tuple) -> jax.Array: ...
  def ways(self, name: str) -> int: ...
  def axes(self, name: str) -> tuple[str, ...]: ...


_layout: contextvars.ContextVar[Layout | None] = contextvars.ContextVar("layout", default=None)
current = _layout.get  # () -> the active layout, None on one device
_target: contextvars.ContextVar[str | None] = contextvars.ContextVar("target", default=None)


def constrain(x: jax.Array, *axes: str | None, first: str | None = None) -> jax.Array:
  """Constrain the layout of `x`: one logical axis name (or None) for each axis.

  If rules map several names to the same mesh axis, the axis named `first` gets it, otherwise the
  first in order.
  """
  layout = _layout.get()
  return x if layout is None else layout.constrain(x, axes, first)


def exchange(x: jax.Array, before: Axes, after: Axes) -> jax.Array:
  """Change the layout of `x` from `before` to `after` by an all-to-all.

  The last axis of `before` has priority.
  """
  layout = _layout.get()
  return x if layout is None else layout.exchange(x, before, after)


def gather(kernel: jax.Array, axes: Axes, tokens: Axes = TOKENS) -> jax.Array:
  """Gather a parameter along the mesh axes that split the `batch` and `length` of `tokens`.

  Args:
    axes: the logical axes of the parameter.
  """
  layout = _layout.get()
  return kernel if layout is None else layout.gather(kernel, axes, tokens)


def reduce_scatter(
  contract: Callable, x: jax.Array, g: jax.Array, axes: Axes, tokens: Axes = TOKENS
) -> jax.Array:
  """Reduce-scatter a kernel's gradient `contract(x, g)`, a sum over tokens.

  Args:
    contract: sums over the axes `batch` and `length` of both arguments.
    axes: logical axes of the result.
    tokens: logical axes of both arguments' leading axes.
  """
  layout = _layout.get()
  return contract(x, g) if layout is None else layout.reduce_scatter(contract, x, g, axes, tokens)


def per_device(function: Callable, arguments: tuple[Any, ...], axes: tuple[Axes, ...]) -> jax.Array:
  """Run `function(*arguments)` on each device on its own pieces, without the partitioner.

  Args:
    arguments: pytrees of arrays, the first an array.
    axes: for each argument, the logical names of its arrays' axes; all must occur in the first
      argument's. An axis of length 1 is whole on every device.
  Returns:
    An array with the shape and layout of the first argument.
  """
  layout = _layout.get()
  return function(*arguments) if layout is None else layout.per_device(function, arguments, axes)


def ways(name: str) -> int:
  """Return the number of parts into which the logical axis `name` is split."""
  layout = _layout.get()
  return 1 if layout is None else layout.ways(name)


def mesh_axes(name: str) -> tuple[str, ...]:
  """Return the mesh axes over which the logical axis `name` is split."""
  layout = _layout.get()
  return () if layout is None else layout.axes(name)


@contextlib.contextmanager
def use_layout(layout: Layout | None) -> Iterator[None]:
  """Lay out the layers called within the block by `layout`."""
  token = _layout.set(layout)
  try:
    yield
  finally:
    _layout.reset(token)


def platform() -> str:
  """Return `cpu`, `gpu` or `tpu`: of the mesh whose rules are active, or the default one.

  A plan's mesh has another platform than the process that makes the plan.
  """
  return _target.get() or jax.default_backend()


@contextlib.contextmanager
def use_platform(name: str) -> Iterator[None]:
  """Make `platform` return `name` within the block."""
  token = _target.set(name)
  try:
    yield
  finally:
    _target.reset(token)
