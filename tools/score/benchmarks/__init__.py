"""Every benchmark by name, from the tables `BENCHMARKS` of this folder's files, one file for each kind.

An entry is a function that returns a `Benchmark`; its keyword arguments are the benchmark's own flags.
"""

import importlib
import sys

from t5x_like import slots

BENCHMARKS = {
  name: make
  for file in slots.names(sys.modules[__name__])
  for name, make in importlib.import_module(f"{__name__}.{file}").BENCHMARKS.items()
}
