"""A reward model as a judge of answers; see `rewards/model.py`."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from t5x_like import vocabularies
from t5x_like.data.supervised.chat import ASSISTANT, Message, read_messages
from t5x_like.data.supervised.published_template import build_chat
from t5x_like.errors import UserError
from t5x_like.library.model import load
from t5x_like.rows import padded_length
from t5x_like.runtime import process


class Judge:
  """A trained reward model, called as `judge(prompts, answers) -> scores`.

  Args:
    workdir: the run, on its own mesh, of whose processes each calls the judge with the same prompts
      and answers.
    step: its checkpoint; None is the newest.
  Raises:
    UserError: there is no such run, its mesh does not fit the devices, or it is no reward model.
  """

  _has_warned = False  # that rows are cut

  def __init__(self, workdir: str, step: int | None = None):
    reward_model = load(workdir, step=step)
    if getattr(reward_model.model, "scores", None) is None:
      raise UserError(
        f"{workdir}: found no reward model, expected a run of the objective 'reward' on preferences"
      )
    self._workdir = workdir
    self._run = reward_model.run
    self._chat = build_chat(
      reward_model.template or "plain", reward_model.vocabulary
    )  # the task's default
    self._start = vocabularies.start_id(reward_model.vocabulary)
    (self._longest,) = reward_model.features["decoder_input_tokens"]

  def __call__(self, prompts: Sequence[Any], answers: Sequence[str]) -> list[float]:
    """Return the score of each answer, in the row that training would make of it; a longer one
    loses its beginning.

    Args:
      prompts: a user's message, or a list of messages, before each answer.
    Raises:
      UserError: a message is none of its template's.
    """
    talks = [
      [*self._prompt_messages(prompt), Message(ASSISTANT, answer)]
      for prompt, answer in zip(prompts, answers)
    ]
    rows = [self._chat(talk)[0][:-1].tolist() for talk in talks]
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
