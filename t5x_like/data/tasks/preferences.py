"""Pairs of answers to the same prompt, one of them preferred, for decoders (Rafailov et al. 2023,
section 4).

  config.task = {"name": "preferences", "source":
                 "jsonl:train=pairs/train.jsonl,validation=pairs/dev.jsonl", "vocabulary":
                 "vocabulary", "template": "chatml", "length": 1024}

A record has `chosen` and `rejected`: two texts, answers to the text or the conversation in
`prompt`, or two conversations. One that begins with the assistant follows the prompt; others are
whole, and need none. A chat template writes them as tokens, see `data/supervised/chat.py`. Every
feature is [2, length]: the row of the chosen answer, and the row of the rejected one.
`decoder_loss_weights` is 1 on the last answer and its end; `decoder_segment_ids` is 0 on padding.
With `margin`, the feature `margin`, float32 [], says by how much the chosen answer is better.
"""

import math
from typing import Unpack

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Skip, field_value
from t5x_like.data.features import Feature, Features, decoder
from t5x_like.data.supervised import packing
from t5x_like.data.supervised.chat import ASSISTANT, Message, read_messages
from t5x_like.data.supervised.labelled import ExampleRows, LabelledSource, build_task
from t5x_like.data.supervised.published_template import build_chat
from t5x_like.data.supervised.sequences import stack
from t5x_like.data.supervised.templates import to_text
from t5x_like.data.supervised.too_long import TooLong, drop_unanswered, fit
from t5x_like.data.task import Task
from t5x_like.errors import UserError
from t5x_like.slots import Length

SIDES = ("chosen", "rejected")

# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "builtin", "vocabulary": "bytes", "template": "plain"}


def tiny(length: int) -> dict[str, int]:
  """Return the length of its laptop form; shorter rows have no room for an answer."""
  return {"length": 128}


def features(vocabulary, /, *, length: int, margin: str | None = None, **_) -> Features:
  """Return the features of the task with these arguments."""
  rows = {
    name: Feature((2, *one.shape), one.dtype)
    for name, one in decoder(length, "segment_ids").items()
  }
  return rows if margin is None else rows | {"margin": Feature((), "float32")}


def task(
  *,
  template: str | dict = "plain",
  prompt: str | None = "prompt",
  chosen: str = "chosen",
  rejected: str = "rejected",
  margin: str | None = None,
  length: Length = 1024,
  too_long: TooLong = "refuse",
  **records: Unpack[LabelledSource],
) -> Task:
  """Make the task. Pairs whose conversations part at another message than an answer are left out
  and counted.

  Args:
    template: one of `chat.TEMPLATES`, or the fields of a `chat.ChatTemplate`; `published` is the
      template in the files of a published tokenizer.
    prompt, chosen, rejected: the fields; None where the answers are whole conversations.
    margin: the field of a number, the least difference that the objective `reward` asks for, such
      as one by rating.
    length: length of each row.
    too_long: treatment of pairs with a longer row; truncation cuts ends, and skips pairs that lose
      an answer.
    records: see `Records`.

  Raises:
    UserError: unusable template or length; a message without role or content, or of an unknown
      role; a margin that is no number; and as `labelled`.
  """
  source = LabelledSource(**records)
  vocabulary = vocabularies.load(source.vocabulary)
  chat = build_chat(template, vocabulary)

  def conversation(record, field, where):
    answer = field_value(record, field, where)
    talk = read_messages(record, field, where) if isinstance(answer, list) else []
    if talk and (prompt is None or talk[0].role != ASSISTANT):
      return talk
    if prompt is None:
      raise UserError(
        f"{where}: found text in field {field!r}, expected a conversation; name the "
        "field of its prompt"
      )
    asked = field_value(record, prompt, where)
    text = not isinstance(asked, list)
    before = (
      [Message("user", to_text(asked, prompt, where))]
      if text
      else read_messages(record, prompt, where)
    )
    return [*before, *(talk or [Message(ASSISTANT, to_text(answer, field, where))])]

  def unusable(messages, where):
    if messages[-1].role != ASSISTANT:
      return Skip("no answer")
    if any(message.role == "user" and not message.content for message in messages):
      return Skip("empty prompt")
    return chat.check(messages, where)

  def example(record, where):
    both = [conversation(record, field, where) for field in (chosen, rejected)]
    if skip := next(filter(None, (unusable(one, where) for one in both)), None):
      return skip
    if asks_differently(*both):
      return Skip("answers to different prompts")
    tokens, answers = zip(*map(chat, both))
    if np.array_equal(*tokens):
      return Skip("the same answer twice")
    firsts = (np.int32(np.flatnonzero(np.diff(answer, prepend=0) == 1)[-1]) for answer in answers)
    gap = {} if margin is None else {"margin": number(record, where)}
    return (
      dict(zip(SIDES, tokens))
      | {f"{side}_first": first for side, first in zip(SIDES, firsts)}
      | gap
    )

  def asks_differently(first, second):
    """Return whether two conversations part at a message that is no answer."""
    for messages in zip(first, second):
      texts = [message.content.strip() for message in messages]
      roles = [message.role for message in messages]
      if texts[0] != texts[1] or roles[0] != roles[1]:
        return roles != [ASSISTANT, ASSISTANT]
    return False

  def number(record, where):
    found = field_value(record, margin, where)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
      raise UserError(
        f"{where}: found {str(found)[:40]!r} in field {margin!r}, expected a finite number"
      )
    return np.float32(found)

  def rows(store):
    lengths_N2 = np.stack([store.lengths[side] for side in SIDES], axis=1)
    first_N2 = np.stack([store.arrays[f"{side}_first"] for side in SIDES], axis=1)
    used, lengths_n2 = fit(lengths_N2, (length, length), too_long, store.path, SIDES)
    used, lengths_n2 = drop_unanswered(used, lengths_n2, first_N2, store.path)

    def read(index_B):
      row_B = np.arange(index_B.size)
      one_B = np.zeros(index_B.size, np.int64)
      ids = vocabularies.start_id(vocabulary), vocabulary.pad_id or 0
      made = []
      for number, side in enumerate(SIDES):
        tokens_BL, valid_BL = store.read(side, used[index_B], lengths_n2[index_B, number])
        answer_BL = np.arange(tokens_BL.shape[1]) >= first_N2[used[index_B], number][:, None]
        placed = (row_B, one_B, one_B)
        shape = (index_B.size, length)
        made.append(packing.decoder_rows(tokens_BL, valid_BL, answer_BL, placed, shape, *ids))
      gap = {} if margin is None else {"margin": np.asarray(store.arrays["margin"])[used[index_B]]}
      return stack(made) | gap

    return ExampleRows(used.size, read)

  given = {} if margin is None else {"margin": margin}
  return build_task(
    "preferences.v3",
    source,
    vocabulary,
    fields=tuple(filter(None, (prompt, chosen, rejected, margin))),
    facts={"template": template, "prompt": prompt, "chosen": chosen, "rejected": rejected}
    | given
    | chat.facts,
    streams=dict.fromkeys(SIDES, False),
    make_example=example,
    make_rows=rows,
    features=features(vocabulary, length=length, margin=margin),
    row_facts={"length": length, "too_long": too_long, "vocabulary": vocabulary.fingerprint},
  )
