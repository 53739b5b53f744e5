"""Published chat templates format conversations as Hugging Face does, in a sandbox with limits."""

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
# As in SmolLM2: the start token is also the first piece of a turn, and an instruction precedes
# every conversation.
SMOL = SYSTEM + "{% for message in messages %}" + TURN + "{% endfor %}" + PROMPT
MARKED = (
  "{% for message in messages %}{% if message['role'] == 'assistant' %}A: {% generation %}"
  "{{ message['content'] + eos_token }}{% endgeneration %}{% else %}{{ 'Q: ' + message['content'] "
  "+ '\\n' }}"
  "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'A: ' }}{% endif %}"
)
CONVERSATION = [
  Message("user", "the quick fox?"),
  Message("assistant", "jumps."),
  Message("user", "over"),
  Message("assistant", "the dog"),
]


def write_vocabulary(folder, template, **config):
  folder.mkdir(parents=True, exist_ok=True)
  published.byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]).save(
    str(folder / "tokenizer.json")
  )
  special_tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
  (folder / "tokenizer_config.json").write_text(json.dumps(special_tokens | config))
  if template is not None:
    (folder / "chat_template.jinja").write_text(template)
  return vocabularies.load(str(folder))


def decode_parts(write_vocabulary, ids, learned):
  """Return the text of a conversation, and the text of its parts that count in the loss."""
  text = write_vocabulary._tokenizer.decode(ids, skip_special_tokens=False)
  return text, write_vocabulary._tokenizer.decode(ids[learned > 0], skip_special_tokens=False)


def test_template_formats_a_conversation_and_its_answers_count_in_the_loss(tmp_path):
  smol = write_vocabulary(tmp_path / "smol", SMOL)
  chat = PublishedChat(smol)
  text, learned = decode_parts(smol, *chat(CONVERSATION))
  turns = "<|im_start|>user\nthe quick fox?<|im_end|>\n<|im_start|>assistant\njumps.<|im_end|>\n"
  turns += "<|im_start|>user\nover<|im_end|>\n<|im_start|>assistant\nthe dog<|im_end|>"
  # Training adds the start token, so the text does not begin with it.
  assert text == "system\nBe kind.<|im_end|>\n" + turns
  assert learned == "jumps.<|im_end|>the dog<|im_end|>"
  prompt = chat.prompt(CONVERSATION[:3])
  assert chat.prompt_with_start(CONVERSATION[:3]) == [1, *prompt]
  assert prompt == list(chat(CONVERSATION)[0][: len(prompt)])
  assert chat.known_name == "chatml"
  assert chat.end == 2
  marked = write_vocabulary(tmp_path / "marked", MARKED)
  assert decode_parts(marked, *PublishedChat(marked)(CONVERSATION)) == (
    "Q: the quick fox?\nA: jumps.<|im_end|>Q: over\nA: the dog<|im_end|>",
    " jumps.<|im_end|> the dog<|im_end|>",
  )
  assert PublishedChat(marked).known_name is None


def test_template_is_found_in_the_config_with_or_without_a_name(tmp_path):
  named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": SMOL}]
  for template in (SMOL, named):
    assert (
      published_template.find_template_text(
        write_vocabulary(tmp_path, None, chat_template=template)
      )
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
def test_templates_that_break_the_sandbox_or_its_limits_are_refused(
  template, words, tmp_path, monkeypatch
):
  is_endless = words == "more than 1 s"
  monkeypatch.setattr(published_template, "MAX_SECONDS", 1.0 if is_endless else 30.0)
  with refuses(words):
    PublishedChat(write_vocabulary(tmp_path, template)).prompt_with_start(CONVERSATION[:1])


def test_templates_can_use_the_helpers_of_transformers(tmp_path):
  template = (
    "{% for m in messages %}{{ m | tojson }}{% break %}{% endfor %}{{ strftime_now('%Y') | length "
    "}}{{ tools }}"
  )
  smol = write_vocabulary(tmp_path, template)
  ids = PublishedChat(smol).prompt_with_start([Message("user", "<é>")])
  assert smol.decode(ids) == '{"role": "user", "content": "<é>"}4None'


@pytest.mark.parametrize("template", ["chatml", "published"])
def test_start_token_precedes_a_conversation_once(template, tmp_path):
  smol = write_vocabulary(tmp_path, SMOL)
  record = {"messages": [message._asdict() for message in CONVERSATION]}
  (tmp_path / "chats.jsonl").write_text(json.dumps(record) + "\n")
  chat_task = task.build(
    "chat",
    "train",
    source=f"jsonl:{tmp_path}/chats.jsonl",
    cache=str(tmp_path / "cache"),
    vocabulary=str(tmp_path),
    template=template,
    length=160,
  )
  (batch,) = loader.eval_batches(chat_task, batch_size=1)
  inputs = batch["decoder_input_tokens"][0]
  targets = batch["decoder_target_tokens"][0]
  assert smol.pieces_of(inputs[:2]) == ["<|im_start|>", "u" if template == "chatml" else "s"]
  learned = targets[batch["decoder_loss_weights"][0] > 0]
  assert np.array_equal(learned, [*smol.encode("jumps."), 2, *smol.encode("the dog"), 2])
  files = tokenizer_export.chat_files(smol, template)
  exported = write_vocabulary(tmp_path / "exported", files["chat_template.jinja"].decode())
  assert PublishedChat(exported).prompt_with_start(CONVERSATION[:1]) == [
    1,
    *published_template.build_chat(template, smol).prompt(CONVERSATION[:1]),
  ]


def test_start_token_that_begins_no_turn_is_not_removed(tmp_path):
  with_bos = write_vocabulary(tmp_path, SMOL, bos_token="<|endoftext|>")
  assert Chat("chatml", with_bos).prompt(CONVERSATION[:1])[0] == 1
  exported = write_vocabulary(
    tmp_path / "exported",
    tokenizer_export.chat_files(with_bos, "published")["chat_template.jinja"].decode(),
    bos_token="<|endoftext|>",
  )
  assert PublishedChat(exported).prompt_with_start(CONVERSATION[:1])[:2] == [0, 1]
