"""What layers may ask of the mesh, by logical axis name.

Layers are single-device code: all they know of a mesh is the logical names of their activations' axes.
`parallel.rules.Rules.activate` maps these to mesh axes around a traced step; outside of it there is one device.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax

Axes = tuple[str | None, ...]


class Layout(Protocol):
  """What `Rules` offer here; see the functions of the same names."""

  def constrain(self, x: jax.Array, axes: Axes) -> jax.Array: ...
  def per_device(self, function: Callable, arguments: tuple, axes: tuple) -> jax.Array: ...
  def split(self, name: str) -> int: ...
  def axes(self, name: str) -> tuple[str, ...]: ...


_layout: contextvars.ContextVar[Layout | None] = contextvars.ContextVar("layout", default=None)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
  """Tells the partitioner how `x` is laid out: one logical axis name (or None) for each axis of `x`."""
  layout = _layout.get()
  return x if layout is None else layout.constrain(x, axes)


def per_device(function: Callable, arguments: tuple[Any, ...], axes: tuple[Axes, ...]) -> jax.Array:
  """`function(*arguments)`, run by each device on its own pieces instead of being partitioned by the compiler.

  Args:
    arguments: pytrees of arrays, the first an array.
    axes: for each argument, the logical names of the axes of its arrays; an axis of length 1 is whole on every device.
  Returns:
    An array of the shape and the layout of the first argument.
  """
  layout = _layout.get()
  return function(*arguments) if layout is None else layout.per_device(function, arguments, axes)


def ways(name: str) -> int:
  """The number of parts into which the logical axis `name` is split."""
  layout = _layout.get()
  return 1 if layout is None else layout.split(name)


def mesh_axes(name: str) -> tuple[str, ...]:
  """The mesh axes over which the logical axis `name` is split."""
  layout = _layout.get()
  return () if layout is None else layout.axes(name)


@contextlib.contextmanager
def activated(layout: Layout | None) -> Iterator[None]:
  """Within the block, layers are laid out by `layout`."""
  token = _layout.set(layout)
  try:
    yield
  finally:
    _layout.reset(token)
