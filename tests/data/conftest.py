"""Small calls of the loader: tests read a few steps, of which it would otherwise make 64 at once,
several times."""

import pytest

from t5x_like.data import loader


@pytest.fixture(autouse=True)
def few_steps_at_once(monkeypatch):
  monkeypatch.setattr(loader, "_MAX_STEPS_PER_CALL", 4)
