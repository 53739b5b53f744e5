"""1 for a text that equals an answer of the example but for surrounding white space; else 0."""

from typing import Any

from t5x_like.contrib.feedback.rewards import right_answers


def reward(texts: list[str], examples: list[dict[str, Any]]) -> list[float]:
  """Return a reward for each text; see `rewards/__init__.py`."""
  rewards = []
  for text, example in zip(texts, examples, strict=True):
    rewards.append(float(text.strip() in right_answers(example)))
  return rewards
