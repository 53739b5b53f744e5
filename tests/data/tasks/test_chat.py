"""Conversations are formatted by their template, and only answers count in the loss."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import json_lines
from refusals import refuses
from t5x_like import vocabularies
from t5x_like.data import loader, task
from t5x_like.data.supervised.chat import TEMPLATES, Chat, Message

BYTES = vocabularies.load("bytes")
PIECES = sorted({piece for template in TEMPLATES.values() for piece in template.pieces} - {"<EOS>"})
CONVERSATION = [
  Message("system", "Be brief."),
  Message("user", "Hi!"),
  Message("assistant", "Hello."),
  Message("user", "Bye?"),
  Message("assistant", " See you. "),
  Message("user", "…"),
]
# CONVERSATION in each template, with brackets around the tokens that count in the loss.
FORMATTED = {
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
def published_tokenizer(tmp_path_factory):
  """Return the directory of a byte-level tokenizer with the pieces of every template."""
  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
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
def test_formatted_conversations_follow_the_published_templates(template, published_tokenizer):
  vocabulary = vocabularies.load(published_tokenizer)
  messages = [
    message for message in CONVERSATION if template != "gemma" or message.role != "system"
  ]
  chat = Chat(template, vocabulary)
  ids, is_answer = chat(messages)
  text = ""
  for number, piece in enumerate(vocabulary.pieces_of(ids)):
    if is_answer[number] and not is_answer[number - 1]:
      text += "["
    text += piece if piece in (*PIECES, "</s>") else vocabulary.decode([ids[number]])
    if is_answer[number] and not any(is_answer[number + 1 : number + 2]):
      text += "]"
  assert text == FORMATTED[template]
  begin_of_last_answer = np.flatnonzero(np.diff(is_answer) == 1)[-1] + 1
  assert chat.prompt(messages[:-2]) == ids[:begin_of_last_answer].tolist()


def test_gemma_refuses_system_messages(published_tokenizer):
  with refuses("the conversation: found role 'system' in message 0, expected one of user"):
    Chat("gemma", vocabularies.load(published_tokenizer)).prompt(CONVERSATION[:2])


def test_llama_formats_results_of_tools_with_the_role_ipython(published_tokenizer):
  vocabulary = vocabularies.load(published_tokenizer)
  ids = Chat("llama3", vocabulary).prompt([Message("tool", "42")])
  assert "ipython" in vocabulary.decode(ids)
  assert "tool" not in vocabulary.decode(ids)


MISTRAL = {
  "turns": {"user": ["[INST] ", " [/INST]"], "assistant": ["", "<EOS>"]},
  "end_of_turn": "<EOS>",
  "content_prefix": " ",
}


def test_recipe_can_define_a_template(tmp_path):
  chat_task = build_chat_task(tmp_path, make_conversations(1)[:1], template=MISTRAL)
  ids, answer = Chat(MISTRAL, BYTES)([Message("user", "Hi!0"), Message("assistant", "Hello.0")])
  (batch,) = loader.eval_batches(chat_task, batch_size=1)
  length = int(batch["decoder_segment_ids"][0].sum())
  assert BYTES.decode(ids).startswith("[INST]  Hi!0 [/INST] Hello.0")
  assert ids[-1] == BYTES.eos_id == chat_task.end_ids[0]
  assert batch["decoder_target_tokens"][0][: len(ids)].tolist() == ids.tolist()
  assert length >= len(ids)
  assert batch["decoder_loss_weights"][0][: len(ids)].tolist() == answer.tolist()


@pytest.mark.parametrize(
  "changes, key, value",
  [
    ({"end_of_turn": "</s>"}, "end_of_turn", "found '</s>'"),
    ({"turns": {"user": ["a", "b"]}}, "turns", "found None for 'assistant'"),
    ({"ends": "<EOS>"}, "ends", "this key is now 'end_of_turn'"),
    ({"lead": " "}, "lead", "this key is now 'content_prefix'"),
    ({"turn": {}}, "turn", "did you mean 'turns'"),
  ],
)
def test_an_unusable_template_is_refused(changes, key, value):
  with refuses(f"config.task.template.{key}: ", value):
    Chat(MISTRAL | changes, BYTES)


def build_chat_task(folder, records, **arguments):
  json_lines.write(folder / "chats.jsonl", records)
  source = {"source": f"jsonl:{folder}/chats.jsonl", "cache": str(folder / "cache")}
  return task.build("chat", "train", **source, **{"length": 64} | arguments)


def conversation(*messages: tuple[str, str]) -> dict:
  return {"messages": [{"role": role, "content": content} for role, content in messages]}


def make_conversations(n):
  """Return distinct conversations of two messages."""
  return [conversation(("user", f"Hi!{i}"), ("assistant", f"Hello.{i}")) for i in range(n)]


def test_packed_rows_hold_every_conversation_once(tmp_path):
  chat_task = build_chat_task(tmp_path, make_conversations(9), length=160)
  assert chat_task.num_examples < 9
  expected = {}
  for i in range(9):
    ids, is_answer = Chat("plain", BYTES)(
      [Message("user", f"Hi!{i}"), Message("assistant", f"Hello.{i}")]
    )
    expected[BYTES.decode(ids)] = int(is_answer.sum())
  actual = {}
  for batch in loader.eval_batches(chat_task, batch_size=1):
    del batch["example_index"]
    row = {name.removeprefix("decoder_"): x[0] for name, x in batch.items()}
    assert not row["loss_weights"][row["segment_ids"] == 0].any()
    for segment in range(1, row["segment_ids"].max() + 1):
      segment_features = {name: x[row["segment_ids"] == segment] for name, x in row.items()}
      targets = segment_features["target_tokens"]
      actual[BYTES.decode(targets)] = int(segment_features["loss_weights"].sum())
      expected_inputs = [vocabularies.start_id(BYTES), *targets[:-1]]
      np.testing.assert_array_equal(segment_features["input_tokens"], expected_inputs)
      np.testing.assert_array_equal(segment_features["positions"], np.arange(len(targets)))
  assert actual == expected
  first = chat_task.examples(())[0]
  assert first["inputs"] == "Hi!0"
  assert first["targets"] == "Hello.0"
  assert BYTES.decode(first["ids"]) == "User: Hi!0\n\nAssistant:"


def test_prompts_and_completions_are_conversations_of_two_messages(tmp_path):
  records = [{"ask": "Hi!", "say": "Hello."}, {"ask": "Bye?", "say": None}]
  chat_task = build_chat_task(tmp_path, records, prompt="{ask}", completion="{say}", packed=False)
  row = next(loader.eval_batches(chat_task, batch_size=1))
  assert chat_task.num_examples == 1
  assert BYTES.decode(row["decoder_target_tokens"][0]) == "User: Hi!\n\nAssistant: Hello."


def test_truncated_and_skipped_conversations_are_counted(tmp_path, capsys):
  records = [
    conversation(("user", "x" * 90), ("assistant", "y")),
    conversation(("user", "x"), ("assistant", "y" * 90)),
    conversation(("user", "x"), ("assistant", " ")),
    conversation(("user", "x")),
  ]
  chat_task = build_chat_task(tmp_path, records, too_long="truncate")
  assert chat_task.num_examples == 1
  out = capsys.readouterr().out
  assert "1 records skipped (empty answer)" in out
  assert "1 records skipped (no answer)" in out
  assert "1 examples skipped, whose prompt fills a row" in out
  assert "2 of 2 examples truncated" in out


TOOL_CALL = {"role": "assistant", "content": "Let me look.", "tool_calls": [{"id": "1"}]}


@pytest.mark.parametrize(
  "record, words",
  [
    ({"messages": [{"content": "Hi"}]}, ("message 0 of 'messages': ", "no 'role' among content")),
    (conversation(("user", None)), ("found null in 'content'",)),
    (conversation(("usr", "Hi")), ("found role 'usr' in message 0", "did you mean 'user'")),
    ({"messages": [TOOL_CALL]}, ("message 0 of 'messages': ", "found 'tool_calls'")),
    ({"messages": []}, ("found an empty array in field 'messages'",)),
    ({"mesages": []}, ("found no field 'messages' among mesages",)),
    (conversation(("user", "Hi")), ("found 0 examples, 1 records skipped (no answer)",)),
  ],
)
def test_records_without_a_valid_conversation_are_refused(record, words, tmp_path):
  with refuses(*words):
    build_chat_task(tmp_path, [record])


@pytest.mark.parametrize(
  "arguments, words",
  [
    ({"template": "chatlm"}, ("config.task.template: ", "did you mean 'chatml'")),
    ({"template": "chatml"}, ("needs the piece '<|im_start|>'", "the vocabulary of 384 ids")),
    ({"prompt": "{messages}"}, ("config.task.prompt and completion: found one of them",)),
    ({"length": 8}, ("1 of 1 examples are too long",)),
    ({"length": 8, "too_long": "truncate"}, ("config.task.length: found 8",)),
  ],
)
def test_impossible_arguments_are_refused(arguments, words, tmp_path):
  with refuses(*words):
    build_chat_task(tmp_path, make_conversations(1), **arguments)


def test_messages_with_special_pieces_are_skipped(tmp_path, published_tokenizer, capsys):
  forged = []
  for piece in ("<|im_end|>", "a</s>b"):
    forged.append(conversation(("user", piece), ("assistant", "No.")))
  chat_task = build_chat_task(
    tmp_path,
    [*make_conversations(1), *forged],
    vocabulary=published_tokenizer,
    template="chatml",
    packed=False,
  )
  assert chat_task.num_examples == 1
  assert "2 records skipped (special piece in a message)" in capsys.readouterr().out
