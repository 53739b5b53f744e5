"""These tests need torch and transformers, which only `make parity` installs."""

import importlib.util

collect_ignore_glob = (
  [] if all(map(importlib.util.find_spec, ("torch", "transformers"))) else ["test_*.py"]
)
