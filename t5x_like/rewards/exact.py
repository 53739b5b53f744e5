"""1 for a text that equals one of the example's fields, white space around both aside; else 0."""

from typing import Any


def reward(texts: list[str], examples: list[dict[str, Any]]) -> list[float]:
  """Return a reward for each text; see `t5x_like.rewards`."""
  right = [{str(value).strip() for value in example.values()} for example in examples]
  return [float(text.strip() in answers) for text, answers in zip(texts, right, strict=True)]
