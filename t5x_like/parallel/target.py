"""The platform that a program is traced for, which is another than this process's when a plan is made."""

import contextlib
import contextvars
from collections.abc import Iterator

import jax

_target: contextvars.ContextVar[str | None] = contextvars.ContextVar("target", default=None)


def platform() -> str:
  """`cpu`, `gpu` or `tpu`: that of the mesh whose rules are active, or this process's default."""
  return _target.get() or jax.default_backend()


@contextlib.contextmanager
def target(name: str) -> Iterator[None]:
  """Makes `platform` answer `name` within the block."""
  token = _target.set(name)
  try:
    yield
  finally:
    _target.reset(token)
