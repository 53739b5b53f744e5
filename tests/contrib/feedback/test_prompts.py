"""Prompts of models that learn from rewards are conversations without the assistant's answer."""

import numpy as np
import pytest

import json_lines
from t5x_like import vocabularies
from t5x_like.data import task
from t5x_like.data.supervised.chat import Chat, Message
from t5x_like.errors import UserError

BYTES = vocabularies.load("bytes")
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}]


def build(folder, *talks):
  json_lines.write(folder / "prompts.jsonl", [{"messages": talk} for talk in talks])
  source = f"jsonl:{folder}/prompts.jsonl"
  return task.build(
    "prompts",
    "train",
    source=source,
    cache=f"{folder}/cache",
    messages="messages",
    template="plain",
    prompt_length=96,
    new_tokens=4,
    completions=2,
  )


def test_a_conversation_is_a_prompt_without_its_answer(tmp_path, capsys):
  answered = [*TALK, {"role": "assistant", "content": "Hello."}]
  longer = [*answered, TALK[1]]
  prompts = build(tmp_path, TALK, answered, longer)
  assert "1 records skipped (an answer at the end of the prompt)" in capsys.readouterr().out
  chat = Chat("plain", BYTES)
  expected = []
  for talk in (TALK, longer):
    expected.append(chat.prompt([Message(**message) for message in talk]))
  no_fields = ()
  rows = [np.asarray(example["ids"]).tolist() for example in prompts.examples(no_fields)]
  assert rows == expected


def test_an_unknown_role_is_refused_in_one_line(tmp_path):
  words = "found role 'usr' in message 0, expected one of system, user, assistant"
  with pytest.raises(UserError, match=words):
    build(tmp_path, [{"role": "usr", "content": "Hi!"}])
