"""t5x_like: pretraining of Transformers in JAX, from a laptop CPU to a TPU pod slice.

`import t5x_like as t5x` gives `t5x.load`, `t5x.Model`, `t5x.Run` and `t5x.Task`; docs/how-to/use-from-python.md.
"""

import importlib

_NAMES = {"load": "library.model", "Model": "library.model", "Run": "train", "Task": "library.task"}


def __getattr__(name: str):
  if name not in _NAMES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)


def __dir__() -> list[str]:
  return sorted({*globals(), *_NAMES})
