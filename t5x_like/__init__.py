"""t5x_like: pretraining of Transformers in JAX, from a laptop to a TPU pod slice
(docs/how-to/use-from-python.md)."""

import importlib

_NAMES = {"load": "library.model", "Model": "library.model", "Run": "runs", "Task": "library.task"}


def __getattr__(name: str):
  if name in _NAMES:
    return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
  return [*globals(), *_NAMES]
