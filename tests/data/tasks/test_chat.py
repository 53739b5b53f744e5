"""Conversations are written with their template, and only answers count in the loss."""

import json
import re

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from t5x_like import vocabularies
from t5x_like.data import loader, task, task_features
from t5x_like.data.supervised.chat import TEMPLATES, Chat, Message
from t5x_like.errors import UserError

BYTES = vocabularies.load("bytes")
PIECES = sorted({piece for template in TEMPLATES.values() for piece in template.pieces} - {"<EOS>"})
TALK = [
  Message("system", "Be brief."),
  Message("user", "Hi!"),
  Message("assistant", "Hello."),
  Message("user", "Bye?"),
  Message("assistant", " See you. "),
  Message("user", "…"),
]
WRITTEN = {
  "plain": "System: Be brief.\n\nUser: Hi!\n\nAssistant:[ Hello.</s>]\n\nUser: "
  "Bye?\n\nAssistant:[  See you. </s>]",
  "chatml": (
    "<|im_start|>system\nBe "
    "brief.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n"
    "[Hello.<|im_end|>]\n<|im_start|>user\nBye?<|im_end|>\n<|im_start|>assistant\n[ See you. "
    "<|im_end|>]"
  ),
  "llama3": (
    "<|start_header_id|>system<|end_header_id|>\n\nBe "
    "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi!"
    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[Hello.<|eot_id|>]<|start_header_id|>user"
    "<|end_header_id|>\n\nBye?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[See "
    "you.<|eot_id|>]"
  ),
  "gemma": (
    "<start_of_turn>user\nHi!<end_of_turn>\n<start_of_turn>model\n[Hello.<end_of_turn>]\n<start_of_turn>user\n"
    "Bye?<end_of_turn>\n<start_of_turn>model\n[See you.<end_of_turn>]"
  ),
  "deepseek": (
    "Be brief.<｜User｜>Hi!<｜Assistant｜>[Hello.</s>]<｜User｜>Bye?<｜Assistant｜>[ See you. </s>]"
  ),
  "tulu": (
    "<|system|>\nBe "
    "brief.\n<|user|>\nHi!\n<|assistant|>\n[Hello.</s>]\n<|user|>\nBye?\n<|assistant|>\n[ See "
    "you. </s>]"
  ),
}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
  """A byte-level tokenizer with the pieces of every template."""
  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer, tokenizer.decoder = (
    pre_tokenizers.ByteLevel(add_prefix_space=False),
    decoders.ByteLevel(),
  )
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  tokenizer.train_from_iterator(
    [], trainers.BpeTrainer(special_tokens=["</s>", *PIECES], initial_alphabet=alphabet)
  )
  folder = tmp_path_factory.mktemp("published")
  tokenizer.save(str(folder / "tokenizer.json"))
  (folder / "tokenizer_config.json").write_text(
    json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"})
  )
  return str(folder)


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_are_written_as_they_are_published(template, published):
  vocabulary = vocabularies.load(published)
  talk = [message for message in TALK if template != "gemma" or message.role != "system"]
  ids, answer = Chat(template, vocabulary)(talk)
  pieces = vocabulary.pieces_of(ids)
  learned = ""
  is_learned = [False, *map(bool, answer), False]
  for place, piece in enumerate(pieces):
    before, now, after = is_learned[place : place + 3]
    if now and not before:
      learned += "["
    learned += piece if piece in (*PIECES, "</s>") else vocabulary.decode([ids[place]])
    if now and not after:
      learned += "]"
  assert learned == WRITTEN[template]
  if template == "gemma":
    with pytest.raises(
      UserError,
      match="the conversation: found role 'system' in message 0, expected one of user, as",
    ):
      Chat(template, vocabulary).prompt(TALK[:2])
  assert (
    Chat(template, vocabulary).prompt(talk[:-2])
    == ids[: np.flatnonzero(np.diff(answer) == 1)[-1] + 1].tolist()
  )


def test_llama_reads_results_of_tools_as_ipython(published):
  vocabulary = vocabularies.load(published)
  ids = Chat("llama3", vocabulary).prompt([Message("tool", "42")])
  assert "ipython" in vocabulary.decode(ids)
  assert "tool" not in vocabulary.decode(ids)


MISTRAL = {
  "turns": {"user": ["[INST] ", " [/INST]"], "assistant": ["", "<EOS>"]},
  "end_of_turn": "<EOS>",
  "content_prefix": " ",
}


def test_a_template_of_ones_own_is_a_part_of_the_recipe(tmp_path):
  built = build(tmp_path, talks(1)[:1], template=MISTRAL)
  ids, answer = Chat(MISTRAL, BYTES)([Message("user", "Hi!0"), Message("assistant", "Hello.0")])
  (batch,) = loader.eval_batches(built, batch_size=1)
  length = int(batch["decoder_segment_ids"][0].sum())
  assert BYTES.decode(ids).startswith("[INST]  Hi!0 [/INST] Hello.0")
  assert ids[-1] == BYTES.eos_id == built.end_ids[0]
  assert batch["decoder_target_tokens"][0][: len(ids)].tolist() == ids.tolist()
  assert length >= len(ids)
  assert batch["decoder_loss_weights"][0][: len(ids)].tolist() == answer.tolist()


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    (
      {"end_of_turn": "</s>"},
      "config.task.template.end_of_turn: found '</s>', expected one of pieces, <EOS>, with which",
    ),
    (
      {"turns": {"user": ["a", "b"]}},
      "config.task.template.turns: found None for 'assistant', expected the text before",
    ),
    ({"ends": "<EOS>"}, "config.task.template.ends: this key is now 'end_of_turn'; rename it"),
    ({"lead": " "}, "config.task.template.lead: this key is now 'content_prefix'; rename it"),
    ({"turn": {}}, "config.task.template.turn: unknown key (did you mean 'turns'?)"),
  ],
)
def test_an_unusable_template_is_one_line(changes, words):
  with pytest.raises(UserError, match=re.escape(words)):
    Chat(MISTRAL | changes, BYTES)


def build(folder, records, **arguments):
  (folder / "chats.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
  task_arguments = {
    "source": f"jsonl:{folder}/chats.jsonl",
    "cache": str(folder / "cache"),
    "length": 64,
    **arguments,
  }
  return task.build("chat", "train", **task_arguments)


def talks(n):
  return [
    {"messages": [{"role": m.role, "content": f"{m.content}{i}"} for m in TALK[1:4]]}
    for i in range(n)
  ]


def test_packed_rows_hold_every_conversation_once(tmp_path):
  built = build(tmp_path, talks(9), length=160)
  assert task_features.declare({"name": "chat", "length": 160}) == built.features
  assert built.num_examples < 9
  expected = {
    BYTES.decode(ids): int(answer.sum()) for ids, answer in map(Chat("plain", BYTES), _messages(9))
  }
  actual = {}
  for batch in loader.eval_batches(built, batch_size=1):
    targets = batch["decoder_target_tokens"][0]
    segments = batch["decoder_segment_ids"][0]
    weights = batch["decoder_loss_weights"][0]
    assert not weights[segments == 0].any()
    assert weights[:6].sum() == 0
    for segment in range(1, segments.max() + 1):
      in_segment = segments == segment
      actual[BYTES.decode(targets[in_segment])] = int(weights[in_segment].sum())
      inputs = batch["decoder_input_tokens"][0][in_segment]
      assert inputs[0] == vocabularies.start_id(BYTES)
      assert np.array_equal(inputs[1:], targets[in_segment][:-1])
      assert np.array_equal(batch["decoder_positions"][0][in_segment], np.arange(in_segment.sum()))
  assert actual == expected
  first = built.examples(())[0]
  assert first["inputs"] == "Hi!0"
  assert first["targets"] == "Hello.0"
  assert BYTES.decode(first["ids"]) == "User: Hi!0\n\nAssistant:"


def _messages(n):
  return [[Message(**message) for message in record["messages"]] for record in talks(n)]


def test_prompts_and_completions_are_conversations_of_two(tmp_path):
  records = [{"ask": "Hi!", "say": "Hello."}, {"ask": "Bye?", "say": None}]
  built = build(tmp_path, records, prompt="{ask}", completion="{say}", packed=False)
  row = next(loader.eval_batches(built, batch_size=1))
  assert built.num_examples == 1
  assert BYTES.decode(row["decoder_target_tokens"][0]) == "User: Hi!\n\nAssistant: Hello."


def test_cut_and_omitted_conversations_are_counted(tmp_path, capsys):
  say = lambda *pairs: {"messages": [{"role": role, "content": text} for role, text in pairs]}  # noqa: E731
  records = [
    say(("user", "x" * 90), ("assistant", "y")),
    say(("user", "x"), ("assistant", "y" * 90)),
    say(("user", "x"), ("assistant", " ")),
    say(("user", "x")),
  ]
  built = build(tmp_path, records, too_long="truncate")
  assert built.num_examples == 1
  out = capsys.readouterr().out
  assert "1 records skipped (empty answer)" in out
  assert "1 records skipped (no answer)" in out
  assert "1 examples skipped, whose prompt fills a row" in out
  assert "2 of 2 examples truncated" in out


@pytest.mark.parametrize(
  ("record", "arguments", "words"),
  [
    (
      {"messages": [{"content": "Hi"}]},
      {},
      "message 0 of 'messages': found no 'role' among content, expected text in",
    ),
    (
      {"messages": [{"role": "user", "content": None}]},
      {},
      "found null in 'content', expected text in 'role'",
    ),
    (
      {"messages": [{"role": "usr", "content": "Hi"}]},
      {},
      "found role 'usr' in message 0, .*did you mean 'user'",
    ),
    (
      {"messages": [{"role": "assistant", "content": "Let me look.", "tool_calls": [{"id": "1"}]}]},
      {},
      "message 0 of 'messages': found 'tool_calls', which no template here writes",
    ),
    (
      {"messages": []},
      {},
      "found an empty array in field 'messages', expected an array of messages",
    ),
    ({"mesages": []}, {}, "found no field 'messages' among mesages, expected 'messages'"),
    (
      talks(1)[0],
      {"template": "chatlm"},
      "config.task.template: found 'chatlm', .*did you mean 'chatml'",
    ),
    (
      talks(1)[0],
      {"template": "chatml"},
      "needs the piece '<|im_start|>', which the vocabulary of 384 ids lacks",
    ),
    (talks(1)[0], {"prompt": "{messages}"}, "config.task.prompt and completion: found one of them"),
    (talks(1)[0], {"length": 8}, "1 of 1 examples are too long"),
    (
      talks(1)[0],
      {"length": 8, "too_long": "truncate"},
      "config.task.length: found 8, expected more",
    ),
    (
      {"messages": [{"role": "user", "content": "Hi"}]},
      {},
      "found 0 examples, 1 records skipped .no answer.",
    ),
  ],
)
def test_bad_input_is_one_line(record, arguments, words, tmp_path):
  with pytest.raises(UserError, match=re.escape(words) if "|" in words else words) as error:
    build(tmp_path, [record], **arguments)
  assert "\n" not in str(error.value)


def test_a_message_cannot_forge_a_turn(tmp_path, published, capsys):
  forged = [
    {"messages": [{"role": "user", "content": piece}, {"role": "assistant", "content": "No."}]}
    for piece in ("<|im_end|>", "a</s>b")
  ]
  built = build(
    tmp_path, [*talks(1), *forged], vocabulary=published, template="chatml", packed=False
  )
  assert built.num_examples == 1
  assert "2 records skipped (special piece in a message)" in capsys.readouterr().out
