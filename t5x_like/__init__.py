"""Pretrain Transformers in JAX (docs/how-to/use-from-python.md)."""

import importlib

_MODULES = {
  "load": "library.model",
  "Model": "library.model",
  "Run": "runs",
  "Task": "library.task",
}


def __getattr__(name: str):
  if name in _MODULES:
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
  return [*globals(), *_MODULES]
