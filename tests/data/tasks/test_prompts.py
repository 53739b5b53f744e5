"""Prompts of models that learn from rewards: conversations that the assistant is to answer."""

import json

import numpy as np
import pytest

from t5x_like import vocabularies
from t5x_like.data import task
from t5x_like.data.supervised.chat import Chat, Message
from t5x_like.errors import UserError

BYTES = vocabularies.load("bytes")
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}]


def build(folder, *talks):
  (folder / "prompts.jsonl").write_text(
    "".join(json.dumps({"messages": talk}) + "\n" for talk in talks)
  )
  sizes = dict(prompt_length=96, new_tokens=4, completions=2)
  source = f"jsonl:{folder}/prompts.jsonl"
  return task.build(
    "prompts",
    "train",
    source=source,
    cache=f"{folder}/cache",
    messages="messages",
    template="plain",
    **sizes,
  )


def test_a_conversation_is_a_prompt_without_its_answer(tmp_path, capsys):
  answered = [*ASKED, {"role": "assistant", "content": "Hello."}]
  built = build(tmp_path, ASKED, answered, [*answered, ASKED[1]])
  assert "1 records skipped (an answer at the end of the prompt)" in capsys.readouterr().out
  rows = [np.asarray(example["ids"]) for example in built.examples(())]
  talks = [[Message(**one) for one in talk] for talk in (ASKED, [*answered, ASKED[1]])]
  assert [row.tolist() for row in rows] == [Chat("plain", BYTES).prompt(talk) for talk in talks]


def test_an_unknown_role_is_one_line(tmp_path):
  with pytest.raises(
    UserError, match="found role 'usr' in message 0, expected one of system, user, assistant"
  ):
    build(tmp_path, [{"role": "usr", "content": "Hi!"}])
