"""Make the loader prepare few steps at once, which is faster in tests."""

import pytest

from t5x_like.data import loader


@pytest.fixture(autouse=True)
def few_steps_at_once(monkeypatch):
  monkeypatch.setattr(loader, "_MAX_STEPS_PER_CALL", 4)
