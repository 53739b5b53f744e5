"""Which cases of a property `make test` shows, and which only `make test-more`."""

import pytest


def beyond(first: int, cases):
  """The cases, those after the first few marked `more`. A case of several arguments is a tuple."""
  return [case if i < first else later(case) for i, case in enumerate(cases)]


def later(case):
  return pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.more)
