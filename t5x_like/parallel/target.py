"""The platform that a program is traced for; when planning, it differs from this process's platform."""

import contextlib
import contextvars
from collections.abc import Iterator

import jax

_target: contextvars.ContextVar[str | None] = contextvars.ContextVar("target", default=None)


def platform() -> str:
  """Return `cpu`, `gpu` or `tpu`: the platform of the mesh whose rules are active, or this process's default."""
  return _target.get() or jax.default_backend()


@contextlib.contextmanager
def target(name: str) -> Iterator[None]:
  """Make `platform` return `name` within the block."""
  token = _target.set(name)
  try:
    yield
  finally:
    _target.reset(token)
