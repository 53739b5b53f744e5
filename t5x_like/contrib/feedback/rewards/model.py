"""The score of a reward model, a decoder that was trained by `objectives/reward.py` on preferences.

  {"name": "model", "workdir": "runs/reward", "prompt": "question"}

The prompt is the field of that name in an example, so `config.task.fields` must have it: a user's
message, or a list of messages. Prompt and text are written in the chat template of the reward
model's own run and in its vocabulary, which may differ from the trained model's. Several processes
score the texts of all on the mesh of that run.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from t5x_like import slots, trust, vocabularies
from t5x_like.data.supervised.chat import ASSISTANT, Message, read_messages
from t5x_like.data.supervised.published_template import build_chat
from t5x_like.errors import UserError
from t5x_like.rows import Runner, padded_length
from t5x_like.runtime import process
from t5x_like.saved_model import open_saved_model

_BATCH_SIZE = 32  # rows


def reward(
  texts: list[str],
  examples: list[dict[str, Any]],
  *,
  workdir: str,
  step: int | None = None,
  prompt: str = "prompt",
) -> list[float]:
  """Return the score of each text as the answer to its prompt; see `rewards/__init__.py`.

  Args:
    workdir: the reward model's run.
    step: its checkpoint; None is the newest.
    prompt: the field that holds the prompt.
  """
  trust.check_location("reward model: workdir", workdir)
  for example in examples:
    if prompt not in example:
      raise UserError(
        f"found no {prompt!r} among {', '.join(example) or 'none'}; name the prompt's field in "
        "config.task.fields"
      )
  return _judge(workdir, step)([example[prompt] for example in examples], texts)


reward.together = True


@functools.lru_cache(2)
def _judge(workdir: str, step: int | None):
  return Judge(workdir, step)


class Judge:
  """A trained reward model, called as `judge(prompts, answers) -> scores`.

  Args:
    workdir: the run, whose mesh is used; every process calls the judge with the same prompts and
      answers.
    step: its checkpoint; None is the newest.
  Raises:
    UserError: there is no such run, its mesh does not fit the devices, or it is no reward model.
  """

  _has_warned = False  # that rows are cut

  def __init__(self, workdir: str, step: int | None = None):
    saved = open_saved_model(workdir, flag="reward model: workdir")
    if getattr(saved.model, "scores", None) is None:
      raise UserError(
        f"{workdir}: found no reward model, expected a run of the objective 'reward' on preferences"
      )
    _, arrays = saved.restore(step)
    template = slots.to_plain(saved.config.task.get("template"))
    self._workdir = workdir
    self._run = Runner(saved.model, saved.rules, arrays, _BATCH_SIZE)
    self._chat = build_chat(template or "plain", saved.vocabulary)  # the task's default
    self._start = vocabularies.start_id(saved.vocabulary)
    (self._longest,) = saved.feature_shapes["decoder_input_tokens"][-1:]

  def __call__(self, prompts: Sequence[Any], answers: Sequence[str]) -> list[float]:
    """Return the score of each answer.

    Prompt and answer are encoded in a row as in training; a row that is too long loses its
    beginning.

    Args:
      prompts: a user's message, or a list of messages, before each answer.
    Raises:
      UserError: a message does not fit the chat template.
    """
    conversations = [
      [*self._prompt_messages(prompt), Message(ASSISTANT, answer)]
      for prompt, answer in zip(prompts, answers)
    ]
    rows = [self._chat(conversation)[0][:-1].tolist() for conversation in conversations]
    max_ids = self._longest - 1
    if not self._has_warned and max(map(len, rows)) > max_ids:
      self._has_warned = True
      process.log(
        f"rewards: {self._workdir} reads {self._longest} tokens; longer rows lose their beginning"
      )
    rows = [[self._start, *row[-max_ids:]] for row in rows]
    outputs = self._run(_scores, rows, {}, lambda length: padded_length(length, self._longest))
    return [float(score) for (score,) in outputs]

  def _prompt_messages(self, prompt: Any) -> list[Message]:
    if not isinstance(prompt, list):
      return [Message("user", str(prompt))]
    messages = read_messages({"prompt": prompt}, "prompt", self._workdir)
    self._chat.check_prompt(messages, self._workdir)
    return messages


def _scores(model, batch: dict[str, np.ndarray]) -> tuple[jax.Array]:
  outputs = model.outputs(
    {"decoder_input_tokens": batch["tokens"], "decoder_segment_ids": batch["valid"]}
  )
  return (outputs["scores"][:, 0],)
