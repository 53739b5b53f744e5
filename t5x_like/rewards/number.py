"""1 for a text whose final number is that of one of the example's fields, as for GSM8K; else 0.

Cobbe et al. 2021 (arXiv:2110.14168): a solution is right if its final number is. It is read as by the metric of GSM8K.
"""

from typing import Any

from t5x_like.metrics.answers import final_number


def reward(texts: list[str], examples: list[dict[str, Any]]) -> list[float]:
  """Return a reward for each text; see `t5x_like.rewards`."""
  right = [{final_number(str(value)) for value in example.values()} - {None} for example in examples]
  return [float(final_number(text) in answers) for text, answers in zip(texts, right, strict=True)]
