"""Sharding constraints by logical name, for use inside layers.

Layers are single-device code: all they know of a mesh is the logical names of their activations' axes.
`parallel.rules.Rules.activate` maps these to mesh axes around a traced step; outside of it `constrain` does nothing.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import jax

_constraint: contextvars.ContextVar[Callable | None] = contextvars.ContextVar("constraint", default=None)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
  """Tells the partitioner how `x` is laid out: one logical axis name (or None) for each axis of `x`."""
  apply = _constraint.get()
  return x if apply is None else apply(x, axes)


@contextlib.contextmanager
def constraint(apply: Callable[[jax.Array, tuple[str | None, ...]], jax.Array]) -> Iterator[None]:
  """Makes `constrain` call `apply(x, axes)` within the block."""
  token = _constraint.set(apply)
  try:
    yield
  finally:
    _constraint.reset(token)
