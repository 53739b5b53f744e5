"""Mark cases of parametrized tests that run only in `make test-more`."""

import pytest


def beyond(first: int, cases):
  """Return the cases, with all after the first few marked `more`.

  A case of several arguments is a tuple.
  """
  return [case if i < first else later(case) for i, case in enumerate(cases)]


def later(case):
  """Return a case that is marked `more`."""
  return pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.more)
