"""Record the cores that a traced program calls, by place, or replace them to count FLOPs."""

import contextlib
import contextvars
from collections.abc import Iterator

_used: contextvars.ContextVar[dict[str, set[str]] | None] = contextvars.ContextVar("used", default=None)
_stand_in: contextvars.ContextVar = contextvars.ContextVar("stand_in", default=None)


@contextlib.contextmanager
def cores_used() -> Iterator[dict[str, set[str]]]:
  """Collect the labels of the cores in calls traced within the block, by their place in the model."""
  used: dict[str, set[str]] = {}
  token = _used.set(used)
  try:
    yield used
  finally:
    _used.reset(token)


@contextlib.contextmanager
def replaced_by(core) -> Iterator[None]:
  """Let `core` stand in for all exact cores, which compute the same results, within the block."""
  token = _stand_in.set(core)
  try:
    yield
  finally:
    _stand_in.reset(token)


def computing(core, place: str, label: str):
  """Record a call of `core` under its label; return the core that computes it."""
  if (used := _used.get()) is not None:
    used.setdefault(place, set()).add(label)
  stand_in = _stand_in.get()
  return stand_in if core.exact and stand_in is not None else core
