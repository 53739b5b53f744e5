"""Supervised fine-tuning on conversations, for decoders: loss on the assistant's answers alone (Ouyang et al. 2022,
section 3.5, call it SFT).

  config.task = {"name": "chat", "source": "jsonl:train=chats/train.jsonl,validation=chats/dev.jsonl",
                 "vocabulary": "vocabulary", "template": "chatml", "length": 2048}

A record has a list of messages, `{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", …}]}`, or, with
`prompt` and `completion`, two texts. A chat template writes it as tokens; see `data/supervised/chat.py`. Messages after
the last answer are left out. A packed row holds several conversations, which do not attend to each other; an epoch and
an evaluation's `max_examples` then count rows.

`Task.examples` gives `record`, `inputs` and `targets` (texts: the last user's words, and the last answer) and `ids`,
the prompt of that answer, of every conversation, before packing and whatever its length.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Record, Skip
from t5x_like.data.features import Features, decoder
from t5x_like.data.supervised import encoder_inputs, example_store, packing, records
from t5x_like.data.supervised.chat import ASSISTANT, Chat, Message, messages_of
from t5x_like.data.supervised.example_store import Example
from t5x_like.data.supervised.templates import Template
from t5x_like.data.supervised.too_long import TooLong, answered, fit
from t5x_like.data.task import Task, digest
from t5x_like.errors import UserError
from t5x_like.slots import Length
from t5x_like.store.reader import Verify

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
  source: str,
  split: str,
  template: str = "plain",
  messages: str = "messages",
  prompt: str | None = None,
  completion: str | None = None,
  vocabulary: str = "bytes",
  length: Length = 2048,
  packed: bool = True,
  too_long: TooLong = "refuse",
  pack_seed: int = 0,
  cache: str = "data/prepared",
  data_dir: str | None = None,
  label: str | None = None,
  verify: Verify = "auto",
) -> Task:
  """Make the task.

  Args:
    source, split, vocabulary, packed, pack_seed, cache, data_dir, verify: see `text_to_text`.
    template: one of `chat.TEMPLATES`.
    messages: the field of the conversation.
    prompt, completion: instead, templates of a user's message and the answer to it, such as `{instruction}`.
    length: length of a row.
    too_long: treatment of longer conversations; truncation cuts their end, and skips those left without an answer.
    label: the name in metrics; by default `<corpus>_chat`.

  Raises:
    UserError: unusable source, template or length; a message without role or content, or of an unknown role; no
      examples; a file changed since preparation.
  """
  encoding = vocabularies.load(vocabulary)
  chat = Chat(template, encoding)
  if (prompt is None) != (completion is None):
    raise UserError("config.task.prompt and completion: found one of them, expected both, or neither and messages")
  parts = {} if prompt is None else {"user": Template(prompt, "prompt"), ASSISTANT: Template(completion, "completion")}
  fields = tuple(field for part in parts.values() for field in part.fields) or (messages,)

  def conversation(record: Record, where: str) -> list[Message] | Skip:
    if not parts:
      return messages_of(record, messages, where)
    texts = {role: part(record, where) for role, part in parts.items()}
    empty = [{"user": "prompt", ASSISTANT: "answer"}[role] for role, text in texts.items() if text is None]
    return Skip(f"empty {empty[0]}") if empty else [Message(role, text) for role, text in texts.items()]

  def examples(rows: Iterator[tuple[str, Record]]) -> Iterator[Example | Skip]:
    for where, record in rows:
      found = conversation(record, where)
      skip = found if isinstance(found, Skip) else chat.check(found, where)
      if skip:
        yield skip
        continue
      tokens, answer = chat(found)
      yield {"tokens": tokens, "answer": answer, "first": np.int32(np.argmax(answer))}

  store = example_store.open_store(
    source,
    split,
    task="chat.v1",
    fields=fields,
    facts={"template": template, "messages": messages, "prompt": prompt, "completion": completion},
    vocabulary=encoding,
    streams={"tokens": False},
    examples=examples,
    cache=cache,
    data_dir=data_dir,
    verify=verify,
  )
  used, lengths_n1 = fit(store.lengths["tokens"][:, None], (length,), too_long, store.path, ("length",))
  used, lengths_n1 = answered(used, lengths_n1, np.asarray(store.arrays["first"])[:, None], store.path)
  plan = packing.alone(lengths_n1, (length,))
  if packed:
    plan = packing.cached(lengths_n1, (length,), pack_seed, f"{store.path}/plans")
    share = plan.utilisation[-1]
    print(f"data: {store.path}: {used.size:,} conversations in {plan.num_rows:,} rows, {share:.1%} full", flush=True)
  starts_N = store.ends["tokens"] - store.lengths["tokens"]
  start, pad = vocabularies.start_id(encoding), encoding.pad_id or 0

  def read(row_B: np.ndarray) -> dict[str, np.ndarray]:
    place_n, row_n, number_n = plan.members(row_B)
    which_n = plan.examples[place_n]
    tokens_nL, valid_nL = store.read("tokens", used[which_n], lengths_n1[which_n, 0])
    places_nL = np.where(valid_nL, starts_N[used[which_n]][:, None] + np.arange(tokens_nL.shape[1]), 0)
    scatter = lambda x_nL: packing.scatter(  # noqa: E731
      x_nL, valid_nL, row_n, number_n, plan.offsets[place_n, 0], (row_B.size, length)
    )
    targets, segments, positions = scatter(tokens_nL)
    return {
      "decoder_input_tokens": packing.shifted(targets, segments, positions, start),
      "decoder_target_tokens": np.where(segments > 0, targets, pad),
      "decoder_loss_weights": scatter(np.asarray(store.arrays["answer"])[places_nL].astype(np.int32))[0],
      "decoder_segment_ids": segments,
      "decoder_positions": positions,
    }

  def of_records(more: Sequence[str]) -> list[dict[str, Any]]:
    found = records.used(source, split, fields=(*fields, *more), data_dir=data_dir, examples=examples)
    return [_asked(chat, record, conversation(record, where)) for where, record in found]

  described = features(encoding, length=length)
  return Task(
    name=label or f"{store.name}_chat",
    vocabulary=encoding,
    fingerprint=digest(
      task="chat.v1",
      examples=store.fingerprint,
      length=length,
      packed=packed,
      too_long=too_long,
      pack_seed=pack_seed,
      vocabulary=encoding.fingerprint,
    ),
    num_examples=plan.num_rows,
    features=described,
    batch=encoder_inputs.batch_of(read, described),
    examples=of_records,
    ends=(chat.end,),
  )


def _asked(chat: Chat, record: Record, messages: list[Message]) -> dict[str, Any]:
  last = max(number for number, message in enumerate(messages) if message.role == ASSISTANT)
  asked = messages[:last]
  return {
    "record": record,
    "inputs": asked[-1].content if asked else "",
    "targets": messages[last].content,
    "ids": chat.prompt(asked),
  }
