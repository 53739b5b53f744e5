"""1 for a text whose final number equals an answer's final number, as for GSM8K; else 0.

Cobbe et al. 2021 (arXiv:2110.14168): a solution is right if its final number is. It is read as by
the metric of GSM8K.
"""

from typing import Any

from t5x_like.contrib.feedback.rewards import right_answers
from t5x_like.metrics.answers import final_number


def reward(texts: list[str], examples: list[dict[str, Any]]) -> list[float]:
  """Return a reward for each text; see `rewards/__init__.py`."""
  rewards = []
  for text, example in zip(texts, examples, strict=True):
    right = {final_number(answer) for answer in right_answers(example)} - {None}
    rewards.append(float(final_number(text) in right))
  return rewards
