"""The case of rewards in `tests/evals/test_splits.py`."""

import json

from tests.evals.splits import Case, Training, expect_a, source, task_flag


def label_is_a(texts: list[str], examples: list[dict]) -> list[float]:
  """Return the reward 1 for examples with the label "a", whatever the text."""
  return [float(example["label"] == "a") for example in examples]


def reward_flags(folder) -> list[str]:
  values = {
    "source": source(folder, "tsv", "{}.tsv"),
    "prompt": "{text}",
    "fields": ["label"],
    "vocabulary": "bytes",
    "prompt_length": 8,
    "new_tokens": 4,
    "fields_length": 32,
    "completions": 2,
  }
  objective = {"name": "grpo", "reward": f"{__name__}:label_is_a", "beta": 0.0}
  return [task_flag(folder, name="prompts", **values), f"objective={json.dumps(objective)}"]


def expect_reward(run, split: str) -> set[float]:
  return {score / 100 for score in expect_a(run, split)}


CASE = Case(
  Training("rewards", "tests/recipes/nano_decoder.py", reward_flags), "reward", expect_reward
)
