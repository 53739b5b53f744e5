"""Pairs of answers to the same prompt, one of them preferred, for decoders (Rafailov et al. 2023, section 4).

  config.task = {"name": "preferences", "source": "jsonl:train=pairs/train.jsonl,validation=pairs/dev.jsonl",
                 "vocabulary": "vocabulary", "template": "chatml", "length": 1024}

A record has `chosen` and `rejected`: two texts, answers to the text or the conversation in `prompt`, or two whole
conversations, which then need no prompt. A chat template writes them as tokens, see `data/supervised/chat.py`. Every
feature is [2, length]: the row of the chosen answer, and the row of the rejected one. `decoder_loss_weights` is 1 on
the last answer and its end; `decoder_segment_ids` is 0 on padding.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Record, Skip, value
from t5x_like.data.features import Feature, Features, decoder
from t5x_like.data.supervised import encoder_inputs, example_store, packing
from t5x_like.data.supervised.chat import ASSISTANT, Chat, Message, messages_of
from t5x_like.data.supervised.example_store import Example
from t5x_like.data.supervised.templates import as_text
from t5x_like.data.supervised.too_long import TooLong, answered, fit
from t5x_like.data.task import Task, digest
from t5x_like.errors import UserError
from t5x_like.slots import Length
from t5x_like.store.reader import Verify

SIDES = ("chosen", "rejected")


# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "builtin", "vocabulary": "bytes", "template": "plain"}


def tiny(length: int) -> dict[str, int]:
  """Return the length of its laptop form; shorter rows have no room for an answer."""
  return {"length": 128}


def features(vocabulary, /, *, length: int, **_) -> Features:
  """Return the features of the task with these arguments."""
  return {name: Feature((2, *one.shape), one.dtype) for name, one in decoder(length, "segment_ids").items()}


def task(
  *,
  source: str,
  split: str,
  template: str = "plain",
  prompt: str | None = "prompt",
  chosen: str = "chosen",
  rejected: str = "rejected",
  vocabulary: str = "bytes",
  length: Length = 1024,
  too_long: TooLong = "refuse",
  cache: str = "data/prepared",
  data_dir: str | None = None,
  label: str | None = None,
  verify: Verify = "auto",
) -> Task:
  """Make the task.

  Args:
    source, split, vocabulary, cache, data_dir, verify: see `text_to_text`.
    template: one of `chat.TEMPLATES`.
    prompt, chosen, rejected: the fields; None where the answers are whole conversations.
    length: length of each row.
    too_long: treatment of pairs with a longer row; truncation cuts ends, and skips pairs that lose an answer.
    label: the name in metrics; by default `<corpus>_preferences`.

  Raises:
    UserError: unusable source, template or length; a message without role or content, or of an unknown role; no
      examples; a file changed since preparation.
  """
  encoding = vocabularies.load(vocabulary)
  chat = Chat(template, encoding)

  def conversation(record: Record, field: str, where: str) -> list[Message] | Skip:
    answer = value(record, field, where)
    if isinstance(answer, list):
      return messages_of(record, field, where)
    if prompt is None:
      raise UserError(f"{where}: found text in field {field!r}, expected a conversation; name the field of its prompt")
    asked = value(record, prompt, where)
    before = (
      messages_of(record, prompt, where)
      if isinstance(asked, list)
      else [Message("user", as_text(asked, prompt, where))]
    )
    return [*before, Message(ASSISTANT, as_text(answer, field, where))]

  def examples(rows: Iterator[tuple[str, Record]]) -> Iterator[Example | Skip]:
    for where, record in rows:
      both = [conversation(record, field, where) for field in (chosen, rejected)]
      skip = next(filter(None, (_unusable(chat, one, where) for one in both)), None)
      made = None if skip else [chat(one) for one in both]
      if made and np.array_equal(made[0][0], made[1][0]):
        skip = Skip("the same answer twice")
      if skip:
        yield skip
        continue
      yield {side: tokens for side, (tokens, _) in zip(SIDES, made)} | {
        f"{side}_first": np.int32(np.flatnonzero(np.diff(answer, prepend=0) == 1)[-1])
        for side, (_, answer) in zip(SIDES, made)
      }

  store = example_store.open_store(
    source,
    split,
    task="preferences.v1",
    fields=tuple(filter(None, (prompt, chosen, rejected))),
    facts={"template": template, "prompt": prompt, "chosen": chosen, "rejected": rejected},
    vocabulary=encoding,
    streams=dict.fromkeys(SIDES, False),
    examples=examples,
    cache=cache,
    data_dir=data_dir,
    verify=verify,
  )
  lengths_N2 = np.stack([store.lengths[side] for side in SIDES], axis=1)
  first_N2 = np.stack([store.arrays[f"{side}_first"] for side in SIDES], axis=1)
  used, lengths_n2 = fit(lengths_N2, (length, length), too_long, store.path, SIDES)
  used, lengths_n2 = answered(used, lengths_n2, first_N2, store.path)
  start, pad = vocabularies.start_id(encoding), encoding.pad_id or 0

  def read(index_B: np.ndarray) -> dict[str, np.ndarray]:
    made: dict[str, list[np.ndarray]] = {name: [] for name in described}
    rows_B = np.arange(index_B.size)
    for number, side in enumerate(SIDES):
      tokens_BL, valid_BL = store.read(side, used[index_B], lengths_n2[index_B, number])
      nowhere = np.zeros_like(rows_B)
      targets, segments, positions = packing.scatter(
        tokens_BL, valid_BL, rows_B, nowhere, nowhere, (index_B.size, length)
      )
      first_B1 = first_N2[used[index_B], number][:, None]
      made["decoder_input_tokens"].append(packing.shifted(targets, segments, positions, start))
      made["decoder_target_tokens"].append(np.where(segments > 0, targets, pad))
      made["decoder_loss_weights"].append((segments > 0) & (positions >= first_B1))
      made["decoder_segment_ids"].append(segments)
    return {name: np.stack(sides, axis=1) for name, sides in made.items()}

  described = features(encoding, length=length)
  facts: dict[str, Any] = dict(length=length, too_long=too_long, vocabulary=encoding.fingerprint)
  return Task(
    name=label or f"{store.name}_preferences",
    vocabulary=encoding,
    fingerprint=digest(task="preferences.v1", examples=store.fingerprint, **facts),
    num_examples=used.size,
    features=described,
    batch=encoder_inputs.batch_of(read, described),
  )


def _unusable(chat: Chat, messages: list[Message], where: str) -> Skip | None:
  if messages[-1].role != ASSISTANT:
    return Skip("no answer")
  if any(message.role == "user" and not message.content for message in messages):
    return Skip("empty prompt")
  return chat.check(messages, where)
