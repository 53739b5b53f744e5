"""Supervised fine-tuning on conversations, for decoders: loss on the assistant's answers alone
(Ouyang et al. 2022, section 3.5, call it SFT).

  config.task = {"name": "chat", "source":
                 "jsonl:train=chats/train.jsonl,validation=chats/dev.jsonl", "vocabulary":
                 "vocabulary", "template": "chatml", "length": 2048}

A record has a list of messages, `{"messages": [{"role": "user", "content": "…"}, {"role":
"assistant", …}]}`, or, with `prompt` and `completion`, two texts. A chat template writes it as
tokens; see `data/supervised/chat.py`. Messages after the last answer are left out. A packed row
holds several conversations, which do not attend to each other; an epoch and an evaluation's
`max_examples` then count rows.

Metrics see each conversation whole, before packing: `Task.examples` gives its `record`, `inputs`
(the user's last words), `targets` (the last answer) and `ids` (the prompt of that answer).
"""

from typing import Unpack

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Skip
from t5x_like.data.features import Features, decoder
from t5x_like.data.supervised import packing
from t5x_like.data.supervised.chat import ASSISTANT, Message, read_messages
from t5x_like.data.supervised.labelled import ExampleRows, PackedSource, build_task, read_parallel
from t5x_like.data.supervised.published_template import build_chat
from t5x_like.data.supervised.templates import Template
from t5x_like.data.supervised.too_long import TooLong, drop_unanswered, fit
from t5x_like.data.task import Task
from t5x_like.errors import UserError
from t5x_like.slots import Length

# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "builtin", "vocabulary": "bytes", "template": "plain"}


def tiny(length: int) -> dict[str, int]:
  """Return the length of its laptop form; shorter rows have no room for an answer."""
  return {"length": 128}


def features(vocabulary, /, *, length: int, **_) -> Features:
  """Return the features of the task with these arguments."""
  return decoder(length, "segment_ids", "positions")


def task(
  *,
  template: str | dict = "plain",
  messages: str = "messages",
  prompt: str | None = None,
  completion: str | None = None,
  length: Length = 2048,
  too_long: TooLong = "refuse",
  **records: Unpack[PackedSource],
) -> Task:
  """Make the task.

  Args:
    template: one of `chat.TEMPLATES`, or the fields of a `chat.ChatTemplate`; `published` is the
      template in the files of a published tokenizer.
    messages: the field of the conversation.
    prompt, completion: instead, templates of a user's message and the answer to it, such as
      `{instruction}`.
    length: length of a row.
    too_long: treatment of longer conversations; truncation cuts their end, and skips those left
      without an answer.
    records: see `PackedRecords`.

  Raises:
    UserError: unusable template or length; a message without role or content, or of an unknown
      role; and as `labelled`.
  """
  source = PackedSource(**records)
  vocabulary = vocabularies.load(source.vocabulary)
  chat = build_chat(template, vocabulary)
  if (prompt is None) != (completion is None):
    raise UserError(
      "config.task.prompt and completion: found one of them, expected both, or neither and messages"
    )
  parts = (
    {}
    if prompt is None
    else {"user": Template(prompt, "prompt"), ASSISTANT: Template(completion, "completion")}
  )

  def conversation(record, where):
    if not parts:
      return read_messages(record, messages, where)
    texts = {role: part(record, where) for role, part in parts.items()}
    empty = [
      {"user": "prompt", ASSISTANT: "answer"}[role] for role, text in texts.items() if text is None
    ]
    return (
      Skip(f"empty {empty[0]}") if empty else [Message(role, text) for role, text in texts.items()]
    )

  def example(record, where):
    found = conversation(record, where)
    if skip := found if isinstance(found, Skip) else chat.check(found, where):
      return skip
    tokens, answer = chat(found)
    return {"tokens": tokens, "answer": answer, "first": np.int32(np.argmax(answer))}

  def view(record, where, _):
    found = conversation(record, where)
    last = max(number for number, message in enumerate(found) if message.role == ASSISTANT)
    asked = found[:last]
    said = asked[-1].content if asked else ""
    return {"inputs": said, "targets": found[last].content, "ids": chat.prompt(asked)}

  def rows(store):
    used, lengths_n1 = fit(
      store.lengths["tokens"][:, None], (length,), too_long, store.path, ("length",)
    )
    used, lengths_n1 = drop_unanswered(
      used, lengths_n1, np.asarray(store.arrays["first"])[:, None], store.path
    )
    plan = packing.plan_examples(lengths_n1, (length,), source.packed, source.pack_seed, store.path)

    def read(row_B):
      place_n, row_n, number_n = plan.members(row_B)
      which_n = plan.examples[place_n]
      tokens_nL, valid_nL = store.read("tokens", used[which_n], lengths_n1[which_n, 0])
      answer_nL = read_parallel(store, "answer", "tokens", used[which_n], valid_nL)
      placed = (row_n, number_n, plan.offsets[place_n, 0])
      shape = (row_B.size, length)
      ids = vocabularies.start_id(vocabulary), vocabulary.pad_id or 0
      return packing.decoder_rows(tokens_nL, valid_nL, answer_nL, placed, shape, *ids)

    return ExampleRows(plan.num_rows, read, view=view)

  made = {
    "length": length,
    "packed": source.packed,
    "too_long": too_long,
    "pack_seed": source.pack_seed,
  }
  return build_task(
    "chat.v1",
    source,
    vocabulary,
    fields=tuple(field for part in parts.values() for field in part.fields) or (messages,),
    facts={"template": template, "messages": messages, "prompt": prompt, "completion": completion}
    | chat.facts,
    streams={"tokens": False},  # not ended by EOS: the template ends them
    make_example=example,
    make_rows=rows,
    features=features(vocabulary, length=length),
    row_facts=made | {"vocabulary": vocabulary.fingerprint},
    end_ids=(chat.end,),
  )
