"""Which cores a traced program calls: recorded by place, or replaced to count what they stand for."""

import contextlib
import contextvars
from collections.abc import Iterator

_used: contextvars.ContextVar[dict[str, set[str]] | None] = contextvars.ContextVar("used", default=None)
_stand_in: contextvars.ContextVar = contextvars.ContextVar("stand_in", default=None)


@contextlib.contextmanager
def cores_used() -> Iterator[dict[str, set[str]]]:
  """Within the block, the names of the cores in traced calls are collected by their place in the model."""
  used: dict[str, set[str]] = {}
  token = _used.set(used)
  try:
    yield used
  finally:
    _used.reset(token)


@contextlib.contextmanager
def replaced_by(core) -> Iterator[None]:
  """Within the block, `core` stands in for all exact cores, whose results it shares."""
  token = _stand_in.set(core)
  try:
    yield
  finally:
    _stand_in.reset(token)


def computing(core, place: str, label: str):
  """The core that computes a call of `core`, which is noted under its label."""
  if (used := _used.get()) is not None:
    used.setdefault(place, set()).add(label)
  stand_in = _stand_in.get()
  return stand_in if core.exact and stand_in is not None else core
