"""1 for a text that equals one of the example's answers, white space around both aside; else 0."""

from typing import Any

from t5x_like.contrib.feedback.rewards import right_answers


def reward(texts: list[str], examples: list[dict[str, Any]]) -> list[float]:
  """Return a reward for each text; see `rewards/__init__.py`."""
  return [
    float(text.strip() in right_answers(example))
    for text, example in zip(texts, examples, strict=True)
  ]
