"""Prompts for a model that learns from rewards of its own completions (`objectives/grpo.py`,
`ppo.py`, `rloo.py`).

  config.task = {"name": "prompts", "source":
                 "jsonl:train=sums/train.jsonl,validation=sums/dev.jsonl", "vocabulary":
                 "vocabulary", "prompt": "{question}", "fields": ["answer"], "template": "chatml"}

A row holds a prompt `completions` times, with empty places behind it; `decoding/rollouts.py`
describes the rows. The `fields` of its record go with it, as JSON, to the function that computes
the reward. Epochs, mixtures and resuming are as in every other task: a prompt is a function of its
index.

Metrics see `record`, `inputs` (the prompt's text) and `ids` (the prompt's) of each example.
"""

from typing import Literal, Unpack

import numpy as np

from t5x_like import rewards, vocabularies
from t5x_like.corpora.sources import Skip, field_value
from t5x_like.data import features as declared
from t5x_like.data.features import Feature, Features
from t5x_like.data.supervised.chat import ASSISTANT, Message, read_messages
from t5x_like.data.supervised.labelled import ExampleRows, LabelledSource, build_task
from t5x_like.data.supervised.published_template import build_chat
from t5x_like.data.supervised.templates import Template
from t5x_like.data.supervised.too_long import fit
from t5x_like.data.task import Task
from t5x_like.errors import UserError
from t5x_like.slots import Length, PositiveInt

# On the built-in corpus, for `:debug`.
BUILT_IN = {
  "source": "builtin",
  "vocabulary": "bytes",
  "template": None,
  "prompt": "{label}",
  "fields": ["label"],
}


def tiny(length: int) -> dict[str, int]:
  """Return the lengths of its laptop form."""
  return {"prompt_length": length, "new_tokens": 8}


def features(
  vocabulary,
  /,
  *,
  prompt_length: int,
  new_tokens: int,
  completions: int,
  architecture: str,
  fields_length: int,
  **_,
) -> Features:
  """Return the features of the task with these arguments."""
  decoder = architecture == "decoder"
  rows = declared.decoder(
    (prompt_length if decoder else 1) + new_tokens - 1, "segment_ids", "positions"
  )
  for name in () if decoder else ("input_tokens", "segment_ids"):
    rows[f"encoder_{name}"] = Feature((prompt_length,), "int32")
  rows["decoder_log_probabilities"] = Feature((new_tokens,), "float32")
  made = {name: Feature((completions, *one.shape), one.dtype) for name, one in rows.items()}
  return made | {
    "rewards": Feature((completions,), "float32"),
    "fields": Feature((fields_length,), "uint8"),
  }


def task(
  *,
  prompt: str | None = None,
  messages: str | None = None,
  template: str | dict | None = None,
  fields: tuple[str, ...] = (),
  fields_length: Length = 256,
  completions: PositiveInt = 8,
  prompt_length: Length = 256,
  new_tokens: Length = 256,
  architecture: Literal["decoder", "encoder_decoder"] = "decoder",
  too_long: Literal["refuse", "skip"] = "refuse",
  **records: Unpack[LabelledSource],
) -> Task:
  """Make the task.

  Args:
    prompt: the template of a prompt over a record's fields, such as `{question}`; a user's message
      if there is a chat template.
    messages: instead, the field of a conversation that the assistant is to answer; one that ends
      with its answer is skipped.
    template: the chat template of a decoder, see the task `chat`; None for prompts without one.
    fields: the fields of a record that the reward is computed from.
    fields_length: the most bytes of these as JSON.
    completions: K, the completions of a prompt in each batch.
    prompt_length: the most tokens of a prompt, with the start token of a decoder, or the end token
      for an encoder.
    new_tokens: N, the most tokens of a completion, its end included.
    architecture: the kind of model that the features are for.
    too_long: treatment of prompts that are longer.
    records: see `Records`.

  Raises:
    UserError: unusable templates or lengths; fields that are longer or no JSON; and as `labelled`.
  """
  source = LabelledSource(**records)
  vocabulary = vocabularies.load(source.vocabulary)
  decoder = architecture == "decoder"
  if (prompt is None) == (messages is None):
    raise UserError("config.task.prompt and messages: found both or neither, expected one of them")
  if messages is not None and template is None or template is not None and not decoder:
    raise UserError(
      f"config.task.template: found {template!r}, expected one of a decoder's for `messages`, and "
      "None for an encoder-decoder"
    )
  if source.buckets > 1:
    raise UserError(
      f"config.task.buckets: found {source.buckets}, expected 1, as completions end a row"
    )
  text = None if prompt is None else Template(prompt, "prompt")
  chat = None if template is None else build_chat(template, vocabulary)
  begin = np.array(
    [vocabularies.start_id(vocabulary)] if decoder else vocabularies.opening_ids(vocabulary),
    np.int32,
  )
  used_fields = (*(text.fields if text else (messages,)), *fields)

  def asked(record, where):
    """Return the conversation of a record; without a chat template or with an empty prompt, its
    text or None."""
    found = read_messages(record, messages, where) if text is None else text(record, where)
    return found if chat is None or text is None or found is None else [Message("user", found)]

  def view(record, where, _=0):
    found = asked(record, where)
    if isinstance(found, list):
      return {"inputs": found[-1].content, "ids": chat.prompt(found)}
    return {"inputs": found, "ids": found and [*map(int, vocabulary.encode(found))]}

  def example(record, where):
    talk = asked(record, where)
    if isinstance(talk, list):
      if talk[-1].role == ASSISTANT:
        return Skip("an answer at the end of the prompt")
      if skip := chat.check_prompt(talk, where):
        return skip
    ids = view(record, where)["ids"]
    if not ids:
      return Skip("empty prompt")
    kept = rewards.pack_fields(
      {name: field_value(record, name, where) for name in fields}, fields_length, where
    )
    return {"prompt": np.append(begin, np.asarray(ids, np.int32)), "fields": kept}

  def rows(store):
    used, lengths_n1 = fit(
      store.lengths["prompt"][:, None], (prompt_length,), too_long, store.path, ("prompt_length",)
    )
    M = prompt_length
    K = completions
    pad = vocabulary.pad_id or 0
    fields_NF = np.asarray(store.arrays["fields"]).reshape(-1, fields_length)

    def read(index_B):
      length_B = lengths_n1[index_B, 0]
      tokens_BL, valid_BL = store.read("prompt", used[index_B], length_B)
      place_M = np.arange(M)
      length_B1 = length_B[:, None]
      real_BM = (place_M >= M - length_B1 if decoder else place_M < length_B1).astype(np.int32)
      prompt_BM = np.full((index_B.size, M), pad, np.int32)
      prompt_BM[real_BM > 0] = tokens_BL[valid_BL]  # both in the order of rows, then of places
      made = {
        name: np.zeros((index_B.size, *one.shape), one.dtype) for name, one in described.items()
      }
      if decoder:
        places = {"decoder_input_tokens": prompt_BM, "decoder_segment_ids": real_BM}
        places["decoder_positions"] = np.maximum(np.cumsum(real_BM, axis=1) - 1, 0)
      else:
        start_B1 = np.full((index_B.size, 1), vocabulary.decoder_start_id, np.int32)
        made |= {"encoder_input_tokens": np.repeat(prompt_BM[:, None], K, axis=1)}
        made |= {"encoder_segment_ids": np.repeat(real_BM[:, None], K, axis=1)}
        places = {"decoder_input_tokens": start_B1, "decoder_segment_ids": np.ones_like(start_B1)}
      for name, x_BM in places.items():
        made[name][:, :, : x_BM.shape[1]] = x_BM[:, None]
      return made | {"fields": fields_NF[used[index_B]]}

    return ExampleRows(used.size, read, used, view)

  sizes = dict(
    prompt_length=prompt_length,
    new_tokens=new_tokens,
    completions=completions,
    architecture=architecture,
    fields_length=fields_length,
  )
  described = features(vocabulary, **sizes)
  return build_task(
    "prompts.v2",
    source,
    vocabulary,
    fields=used_fields,
    facts={
      "prompt": prompt,
      "messages": messages,
      "template": template,
      "fields": list(fields),
      "decoder": decoder,
      "fields_length": fields_length,
    }
    | ({} if chat is None else chat.facts),
    streams={"prompt": not decoder},  # an encoder's ends with EOS
    make_example=example,
    make_rows=rows,
    features=described,
    row_facts=sizes | {"too_long": too_long, "vocabulary": vocabulary.fingerprint},
    end_ids=() if chat is None else (chat.end,),
  )
