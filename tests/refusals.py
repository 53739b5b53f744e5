"""Assert that bad input is refused in one line that names the key, file or tensor."""

import contextlib

import pytest

from t5x_like.errors import UserError


@contextlib.contextmanager
def refuses(*names: str, error: type[Exception] = UserError):
  """Assert that the block raises `error` with a message of one line that contains all `names`."""
  with pytest.raises(error) as refusal:
    yield
  message = str(refusal.value)
  assert "\n" not in message
  for name in names:
    assert name in message, f"{message!r} does not name {name!r}"
