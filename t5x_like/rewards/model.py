"""The score of a reward model, a decoder that was trained by `objectives/reward.py` on preferences.

  {"name": "model", "workdir": "runs/reward", "prompt": "question"}

The prompt is the field of that name in an example, so `config.task.fields` must have it: a user's
message, or a list of messages. Prompt and text are written in the chat template of the reward
model's own run and in its vocabulary, which may differ from the trained model's. Several processes
score the texts of all on the mesh of that run.
"""

import functools
from typing import Any

from t5x_like import slots, trust
from t5x_like.errors import UserError


def reward(
  texts: list[str],
  examples: list[dict[str, Any]],
  *,
  workdir: str,
  step: int | None = None,
  prompt: str = "prompt",
) -> list[float]:
  """Return the score of each text as the answer to its prompt; see `t5x_like.rewards`.

  Args:
    workdir: the reward model's run.
    step: its checkpoint; None is the newest.
    prompt: the field that holds the prompt.
  """
  trust.check_location("reward model: workdir", workdir)
  for names in (", ".join(example) or "none" for example in examples if prompt not in example):
    raise UserError(
      f"found no {prompt!r} among {names}; name the prompt's field in config.task.fields"
    )
  return _judge(workdir, step)([example[prompt] for example in examples], texts)


reward.together = True


@functools.lru_cache(2)
def _judge(workdir: str, step: int | None):
  return slots.module("judge", "t5x_like.library").Judge(workdir, step)
