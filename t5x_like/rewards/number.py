"""1 for a text whose last number is the last number of one of the example's fields, as for GSM8K; else 0.

Cobbe et al. 2021 (arXiv:2110.14168): a solution is right if its final number is. Commas within numbers do not count.
"""

import re
from typing import Any

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def last_number(text: str) -> float | None:
  """Return the last number in a text, None if there is none."""
  found = _NUMBER.findall(text)
  return float(found[-1].replace(",", "")) if found else None


def reward(texts: list[str], examples: list[dict[str, Any]]) -> list[float]:
  """Return a reward for each text; see `t5x_like.rewards`."""
  right = [{last_number(str(value)) for value in example.values()} - {None} for example in examples]
  return [float(last_number(text) in answers) for text, answers in zip(texts, right, strict=True)]
