"""Rewards that a program computes from a text, one per file: the module path is the registry.

  config.objective = {"name": "grpo", "reward": "exact"}

A file here has a function `reward`; a recipe may also name one of its own, `module:function`. It is
called with all texts of this process at once, and is a pure function of them:

  rewards = reward(texts, examples)

Further arguments come from the recipe: {"name": "model", "workdir": "runs/reward"}.

`texts` are completions, without the token that ends them. `examples` has a dict for each text, with
the fields (`config.task.fields`) of its record. The function returns a finite number for each text.
A function with the attribute `together = True` runs on the mesh of all processes; each of them
calls it with the texts of all.
"""

import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from t5x_like import slots
from t5x_like.errors import UserError, one_line
from t5x_like.metrics.texts import reference_texts as right_texts

_WHERE = "config.objective.reward"
Reward = Callable[[list[str], list[dict[str, Any]]], Sequence[float]]


def find_reward(value: str | dict[str, Any]) -> Reward:
  """Return the function of a name, or of a name and arguments.

  Raises:
    UserError: there is none, it may not be imported (`trust.import_function`), or it takes other
      arguments.
  """
  name, arguments = slots.name_and_arguments(_WHERE, value)
  function = slots.find(_WHERE, name, sys.modules[__name__], "reward")
  if value == name and ":" in name:  # a function of the user's, of any signature
    return function
  return functools.partial(
    function, **slots.fill(_WHERE, arguments, function, supplied=slots.argument_names(function)[:2])
  )


def needs_all_processes(value: str | dict[str, Any]) -> bool:
  """Return whether all processes must call a reward with the same texts."""
  reward = find_reward(value)
  return getattr(getattr(reward, "func", reward), "together", False)


def pack_fields(fields: dict[str, Any], length: int, where: str) -> np.ndarray:
  """Return the fields of a record as a task's feature, uint8 [length].

  The feature is the UTF-8 of their JSON, padded with 0.

  Raises:
    UserError: they are longer, or are no JSON.
  """
  try:
    content = json.dumps(fields, ensure_ascii=False, allow_nan=False).encode()
  except (TypeError, ValueError) as error:
    raise UserError(
      f"{where}: found fields that are no JSON ({one_line(error)}); choose others for fields"
    ) from None
  if len(content) > length:
    raise UserError(
      f"{where}: found {len(content)} bytes in its fields {', '.join(fields)}, expected at most "
      f"{length}; raise --config.task.fields_length"
    )
  return np.frombuffer(content.ljust(length, b"\0"), np.uint8)


def unpack_fields(fields_RF: np.ndarray) -> list[dict[str, Any]]:
  """Invert `pack_fields` for rows; a row of zeros is {}."""
  return [json.loads(bytes(row).rstrip(b"\0") or b"{}") for row in np.asarray(fields_RF, np.uint8)]


def completion_ends(task) -> tuple[int, ...]:
  """Return the ids that end a completion in any part of a task."""
  return tuple(
    {task.vocabulary.eos_id, *(end for leaf in task.leaves.values() for end in leaf.end_ids)}
  )


def decode_completions(tokens_RN: np.ndarray, vocabulary, ends: Sequence[int]) -> list[str]:
  """Return the texts of completions up to their ends."""
  texts = []
  for row in tokens_RN.tolist():
    end = next((n for n, i in enumerate(row) if i in ends), len(row))
    texts.append(vocabulary.decode([i for i in row[:end] if i < vocabulary.size]))
  return texts


def right_answers(example: dict[str, Any]) -> set[str]:
  """Return the right texts in the fields of an example, without surrounding white space.

  The fields are listed at `metrics.texts.reference_texts`.

  A truth value is right in Python's spelling and in JSON's. Empty texts are no answers, so that no
  empty completion is rewarded.

  Raises:
    ValueError: the example has fields, but none of them holds a text or a number.
  """
  answers = set()
  for value in example.values():
    if isinstance(value, bool):
      answers |= {str(value), str(value).lower()}
      continue
    if isinstance(value, float):
      answers.add(str(value))  # 18.0, in addition to the 18 of `reference_texts`
    try:
      answers.update(text.strip() for text in right_texts(value))
    except ValueError:  # such as the messages of a conversation
      continue
  answers.discard("")
  if example and not answers:
    raise ValueError(f"found no text or number in the fields {', '.join(example)} of an example")
  return answers


def reward_texts(
  value: str | dict[str, Any], texts: list[str], examples: list[dict[str, Any]]
) -> np.ndarray:
  """Return the rewards of texts, float32 [R].

  Raises:
    UserError: the function does not give a finite number for each text.
  """
  reward = find_reward(value)
  name, _ = slots.name_and_arguments(_WHERE, value)
  where = f"{_WHERE}: {name}"
  try:
    reward_R = np.asarray(reward(texts, examples), np.float32)
  except (Exception, SystemExit) as error:
    raise UserError(f"{where} failed: {type(error).__name__}: {one_line(error)}") from error
  fault = ""
  if reward_R.shape != (len(texts),):
    fault = f"shape {list(reward_R.shape)}"
  elif not np.isfinite(reward_R).all():
    fault = "a number that is not finite"
  if fault:
    raise UserError(
      f"{where}: found {fault}, expected a finite number for each of {len(texts)} texts"
    )
  return reward_R
