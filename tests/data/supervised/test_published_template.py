"""Conversations are written as their published template says, within its sandbox and limits."""

import json

import numpy as np
import pytest

import published
from refusals import refuses
from t5x_like import vocabularies
from t5x_like.data import loader, task
from t5x_like.data.supervised import published_template
from t5x_like.data.supervised.chat import Chat, Message
from t5x_like.data.supervised.published_template import PublishedChat
from t5x_like.interop import tokenizer_export

TURN = "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
SYSTEM = (
  "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' "
  "}}{% endif %}"
)
# As SmolLM2's: the start token is the piece that begins a turn, and an instruction stands before
# every conversation.
SMOL = SYSTEM + "{% for message in messages %}" + TURN + "{% endfor %}" + PROMPT
MARKED = (
  "{% for message in messages %}{% if message['role'] == 'assistant' %}A: {% generation %}"
  "{{ message['content'] + eos_token }}{% endgeneration %}{% else %}{{ 'Q: ' + message['content'] "
  "+ '\\n' }}"
  "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'A: ' }}{% endif %}"
)
TALK = [
  Message("user", "the quick fox?"),
  Message("assistant", "jumps."),
  Message("user", "over"),
  Message("assistant", "the dog"),
]


def vocabulary(folder, template, **config):
  folder.mkdir(parents=True, exist_ok=True)
  published.byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]).save(
    str(folder / "tokenizer.json")
  )
  named = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
  (folder / "tokenizer_config.json").write_text(json.dumps(named | config))
  if template is not None:
    (folder / "chat_template.jinja").write_text(template)
  return vocabularies.load(str(folder))


def spelled(vocabulary, ids, learned):
  """Return the text of a conversation and of its learned parts."""
  text = vocabulary._tokenizer.decode(ids, skip_special_tokens=False)
  return text, vocabulary._tokenizer.decode(ids[learned > 0], skip_special_tokens=False)


def test_the_template_writes_a_conversation_and_its_answers_are_learned(tmp_path):
  smol = vocabulary(tmp_path / "smol", SMOL)
  chat = PublishedChat(smol)
  text, learned = spelled(smol, *chat(TALK))
  turns = "<|im_start|>user\nthe quick fox?<|im_end|>\n<|im_start|>assistant\njumps.<|im_end|>\n"
  turns += "<|im_start|>user\nover<|im_end|>\n<|im_start|>assistant\nthe dog<|im_end|>"
  # behind the start token, which training puts there
  assert text == "system\nBe kind.<|im_end|>\n" + turns
  assert learned == "jumps.<|im_end|>the dog<|im_end|>"
  assert (
    chat.prompt_with_start(TALK[:3])
    == [1, *chat.prompt(TALK[:3])]
    == [1, *chat(TALK)[0][: len(chat.prompt(TALK[:3]))]]
  )
  assert chat.known_name == "chatml"
  assert chat.end == 2
  marked = vocabulary(tmp_path / "marked", MARKED)
  assert spelled(marked, *PublishedChat(marked)(TALK)) == (
    "Q: the quick fox?\nA: jumps.<|im_end|>Q: over\nA: the dog<|im_end|>",
    " jumps.<|im_end|> the dog<|im_end|>",
  )
  assert PublishedChat(marked).known_name is None


def test_a_template_in_the_config_may_have_a_name(tmp_path):
  named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": SMOL}]
  for template in (SMOL, named):
    assert (
      published_template.find_template_text(vocabulary(tmp_path, None, chat_template=template))
      == SMOL
    )
  assert published_template.find_template_text(vocabularies.load("bytes")) is None
  with refuses("no chat template; name a template instead, such as plain, chatml"):
    PublishedChat(vocabularies.load("bytes"))


@pytest.mark.parametrize(
  ("template", "words"),
  [
    ("{% include '/etc/hostname' %}", "no loader"),
    ("{{ cycler.__init__.__globals__ }}", "unsafe"),
    ("{{ messages.append(1) }}", "unsafe"),
    ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ("{% if %}", "expression"),
    ("{{ 'a' * 10 ** 10 }}", "memory"),
    ("{% for i in range(99999) %}{{ '%0999d' % i }}{% endfor %}", "more than 1048576 characters"),
    (
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
      "more than 1 s",
    ),
    ("x" * 300_000, "found 300000 characters"),
  ],
)
def test_a_template_reaches_nothing_and_has_limits(template, words, tmp_path, monkeypatch):
  is_endless = words == "more than 1 s"
  monkeypatch.setattr(published_template, "MAX_SECONDS", 1.0 if is_endless else 30.0)
  with refuses(words):
    PublishedChat(vocabulary(tmp_path, template)).prompt_with_start(TALK[:1])


def test_helpers_of_transformers_are_there(tmp_path):
  template = (
    "{% for m in messages %}{{ m | tojson }}{% break %}{% endfor %}{{ strftime_now('%Y') | length "
    "}}{{ tools }}"
  )
  smol = vocabulary(tmp_path, template)
  ids = PublishedChat(smol).prompt_with_start([Message("user", "<é>")])
  assert smol.decode(ids) == '{"role": "user", "content": "<é>"}4None'


@pytest.mark.parametrize("template", ["chatml", "published"])
def test_the_start_token_stands_once_before_a_conversation(template, tmp_path):
  smol = vocabulary(tmp_path, SMOL)
  record = {"messages": [message._asdict() for message in TALK]}
  (tmp_path / "chats.jsonl").write_text(json.dumps(record) + "\n")
  built = task.build(
    "chat",
    "train",
    source=f"jsonl:{tmp_path}/chats.jsonl",
    cache=str(tmp_path / "cache"),
    vocabulary=str(tmp_path),
    template=template,
    length=160,
  )
  (batch,) = loader.eval_batches(built, batch_size=1)
  inputs = batch["decoder_input_tokens"][0]
  targets = batch["decoder_target_tokens"][0]
  assert smol.pieces_of(inputs[:2]) == ["<|im_start|>", "u" if template == "chatml" else "s"]
  learned = targets[batch["decoder_loss_weights"][0] > 0]
  assert np.array_equal(learned, [*smol.encode("jumps."), 2, *smol.encode("the dog"), 2])
  files = tokenizer_export.chat_files(smol, template)
  exported = vocabulary(tmp_path / "exported", files["chat_template.jinja"].decode())
  assert PublishedChat(exported).prompt_with_start(TALK[:1]) == [
    1,
    *published_template.build_chat(template, smol).prompt(TALK[:1]),
  ]


def test_a_start_token_that_no_turn_begins_with_stays(tmp_path):
  with_bos = vocabulary(tmp_path, SMOL, bos_token="<|endoftext|>")
  assert Chat("chatml", with_bos).prompt(TALK[:1])[0] == 1
  exported = vocabulary(
    tmp_path / "exported",
    tokenizer_export.chat_files(with_bos, "published")["chat_template.jinja"].decode(),
    bos_token="<|endoftext|>",
  )
  assert PublishedChat(exported).prompt_with_start(TALK[:1])[:2] == [0, 1]
