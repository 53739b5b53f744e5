"""These tests need torch and transformers, which only `make parity` installs."""

import importlib.util

collect_ignore_glob = []
for package in ("torch", "transformers"):
  if importlib.util.find_spec(package) is None:
    collect_ignore_glob = ["test_*.py"]
