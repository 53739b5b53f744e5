"""Loader settings for tests: a small number of steps is made at once."""

import pytest

from t5x_like.data import loader


@pytest.fixture(autouse=True)
def few_steps_at_once(monkeypatch):
  monkeypatch.setattr(loader, "_MAX_STEPS_PER_CALL", 4)
