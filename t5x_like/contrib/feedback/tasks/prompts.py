"""Prompts for a model that learns from rewards of its own completions.

The objectives are `objectives/grpo.py`, `ppo.py` and `rloo.py`.

  config.task = {"name": "prompts", "source":
                 "jsonl:train=sums/train.jsonl,validation=sums/dev.jsonl", "vocabulary":
                 "vocabulary", "prompt": "{question}", "fields": ["answer"], "template": "chatml"}

A row holds a prompt `completions` times, with empty positions after it; `completions.py`
describes the rows. The `fields` of its record go with it, as JSON, to the function that computes
the reward. Epochs, mixtures and resuming are as in every other task: a prompt is a function of its
index.

Metrics receive `record`, `inputs` (the prompt's text) and `ids` (the prompt's) of each example.
"""

import dataclasses
from typing import Any, Literal

import numpy as np

from t5x_like import vocabularies
from t5x_like.contrib.feedback import rewards
from t5x_like.corpora.sources import Record, Skip, field_value
from t5x_like.data import features as layouts
from t5x_like.data.features import Feature, Features
from t5x_like.data.supervised.chat import ASSISTANT, Chat, Message, read_messages
from t5x_like.data.supervised.example_store import Example, ExampleStore
from t5x_like.data.supervised.labelled import ExampleRows, LabelledArguments
from t5x_like.data.supervised.published_template import PublishedChat, build_chat
from t5x_like.data.supervised.templates import Template
from t5x_like.data.supervised.too_long import fit
from t5x_like.data.task import Task, rows_only
from t5x_like.errors import UserError
from t5x_like.slots import Length, PositiveInt
from t5x_like.vocabularies import Vocabulary

# On the built-in corpus, for `:debug`.
BUILT_IN = {
  "source": "builtin",
  "vocabulary": "bytes",
  "template": None,
  "prompt": "{label}",
  "fields": ["label"],
}


def tiny(length: int) -> dict[str, int]:
  """Return the lengths of the laptop form of a recipe."""
  return {"prompt_length": length, "new_tokens": 8}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(LabelledArguments):
  """The arguments of prompts.

  Attributes:
    prompt: the template of a prompt over a record's fields, such as `{question}`; a user's message
      if there is a chat template.
    messages: instead of `prompt`, the field of a conversation that the assistant continues; a
      conversation that ends with an answer is skipped.
    template: the chat template of a decoder, see the task `chat`; None for prompts without one.
    fields: the fields of a record that the reward is computed from.
    fields_length: the most bytes of these as JSON.
    completions: K, the completions of a prompt in each batch.
    prompt_length: the most tokens of a prompt, with the start token of a decoder, or the end token
      for an encoder.
    new_tokens: N, the most tokens of a completion, its end included.
    architecture: the kind of model that the features are for.
    too_long: treatment of prompts that are longer.
  """

  IS_CONVERSATION = True

  prompt: str | None = None
  messages: str | None = None
  template: str | dict | None = None
  fields: tuple[str, ...] = ()
  fields_length: Length = 256
  completions: PositiveInt = rows_only(default=8)
  prompt_length: Length = rows_only(default=256)
  new_tokens: Length = rows_only(default=256)
  architecture: Literal["decoder", "encoder_decoder"] = "decoder"
  too_long: Literal["refuse", "skip"] = rows_only(default="refuse")

  @property
  def is_decoder(self) -> bool:
    """Whether prompt and completion are one sequence."""
    return self.architecture == "decoder"

  def features(self, vocabulary: Vocabulary) -> Features:
    # an encoder-decoder's decoder begins with the start token alone
    input_length = self.prompt_length if self.is_decoder else 1
    row = layouts.decoder(input_length + self.new_tokens - 1, "segment_ids", "positions")
    if not self.is_decoder:
      row["encoder_input_tokens"] = Feature((self.prompt_length,), "int32")
      row["encoder_segment_ids"] = Feature((self.prompt_length,), "int32")
    row["decoder_log_probabilities"] = Feature((self.new_tokens,), "float32")
    features = {}
    for name, feature in row.items():
      features[name] = Feature((self.completions, *feature.shape), feature.dtype)
    features["rewards"] = Feature((self.completions,), "float32")
    features["fields"] = Feature((self.fields_length,), "uint8")
    return features

  def build(self) -> Task:
    """Prepare the examples and return the task.

    Raises:
      UserError: unusable templates or lengths; fields that are longer or no JSON; and as
        `LabelledArguments.build_task`.
    """
    self._check()
    vocabulary = vocabularies.load(self.vocabulary)
    chat = None if self.template is None else build_chat(self.template, vocabulary)
    if self.is_decoder:
      opening_ids = [vocabularies.start_id(vocabulary)]
    else:
      opening_ids = vocabularies.opening_ids(vocabulary)
    prompts = _Prompts(
      text=None if self.prompt is None else Template(self.prompt, "prompt"),
      messages_field=self.messages,
      chat=chat,
      reward_fields=self.fields,
      reward_fields_length=self.fields_length,
      vocabulary=vocabulary,
      opening_ids=np.array(opening_ids, np.int32),
    )

    def make_rows(store: ExampleStore) -> ExampleRows:
      rows = _PromptRows(store, self, vocabulary)
      return ExampleRows(rows.used.size, rows.read, rows.used, prompts.view)

    return self.build_task(
      "prompts.v2",
      vocabulary,
      fields=prompts.fields(),
      streams={"prompt": not self.is_decoder},  # an encoder's ends with EOS
      make_example=prompts.make_example,
      make_rows=make_rows,
      example_facts=chat.facts if chat else {},
      end_ids=(chat.end,) if chat else (),
    )

  def _check(self) -> None:
    """Raise UserError for arguments that exclude each other."""
    if (self.prompt is None) == (self.messages is None):
      raise UserError(
        "config.task.prompt and messages: found both or neither, expected one of them"
      )
    lacks_template = self.messages is not None and self.template is None
    if lacks_template or (self.template is not None and not self.is_decoder):
      raise UserError(
        f"config.task.template: found {self.template!r}, expected one of a decoder's for "
        "`messages`, and None for an encoder-decoder"
      )
    if self.buckets > 1:
      raise UserError(
        f"config.task.buckets: found {self.buckets}, expected 1, as completions end a row"
      )


@dataclasses.dataclass(frozen=True)
class _Prompts:
  """Prompts from records.

  Attributes:
    text: the template of a prompt; None for conversations.
    messages_field: the field of a conversation, if there is no template of a prompt.
    chat: writes conversations as tokens; None for prompts without a chat template.
    reward_fields, reward_fields_length: the fields for the reward, and their most bytes as JSON.
    vocabulary: the vocabulary of the ids.
    opening_ids: the ids before every prompt.
  """

  text: Template | None
  messages_field: str | None
  chat: Chat | PublishedChat | None
  reward_fields: tuple[str, ...]
  reward_fields_length: int
  vocabulary: Vocabulary
  opening_ids: np.ndarray

  def fields(self) -> tuple[str, ...]:
    """Return the fields of a record in use."""
    prompt_fields = self.text.fields if self.text else (self.messages_field,)
    return (*prompt_fields, *self.reward_fields)

  def make_example(self, record: Record, where: str) -> Example | Skip:
    prompt = self._read(record, where)
    if isinstance(prompt, list):
      if prompt[-1].role == ASSISTANT:
        return Skip("an answer at the end of the prompt")
      skip = self.chat.check_prompt(prompt, where)
      if skip:
        return skip
    ids = self.view(record, where)["ids"]
    if not ids:
      return Skip("empty prompt")
    values = {name: field_value(record, name, where) for name in self.reward_fields}
    return {
      "prompt": np.append(self.opening_ids, np.asarray(ids, np.int32)),
      "fields": rewards.pack_fields(values, self.reward_fields_length, where),
    }

  def view(self, record: Record, where: str, _: int = 0) -> dict[str, Any]:
    """Return the text and the ids of a prompt; see `Task.examples`."""
    prompt = self._read(record, where)
    if isinstance(prompt, list):
      return {"inputs": prompt[-1].content, "ids": self.chat.prompt(prompt)}
    ids = prompt
    if prompt:
      ids = [int(i) for i in self.vocabulary.encode(prompt)]
    return {"inputs": prompt, "ids": ids}

  def _read(self, record: Record, where: str) -> list[Message] | str | None:
    """Return the conversation of a record.

    Without a chat template it is a text; an empty prompt is None.
    """
    if self.text is None:
      return read_messages(record, self.messages_field, where)
    text = self.text(record, where)
    if self.chat is None or text is None:
      return text
    return [Message("user", text)]


class _PromptRows:
  """The rows of prompts, with empty positions for each completion.

  Attributes:
    used: the examples in use.
  """

  def __init__(self, store: ExampleStore, arguments: Arguments, vocabulary: Vocabulary):
    self._store = store
    self._vocabulary = vocabulary
    self._features = arguments.features(vocabulary)
    self._is_decoder = arguments.is_decoder
    self._prompt_length = arguments.prompt_length
    self.used, self._lengths_n1 = fit(
      store.lengths["prompt"][:, None],
      (arguments.prompt_length,),
      arguments.too_long,
      store.path,
      ("prompt_length",),
    )
    self._fields_NF = np.asarray(store.arrays["fields"]).reshape(-1, arguments.fields_length)

  def read(self, index_B: np.ndarray) -> dict[str, np.ndarray]:
    prompt_BM, is_real_BM = self._read_prompts(index_B)
    rows = {}
    for name, feature in self._features.items():
      rows[name] = np.zeros((index_B.size, *feature.shape), feature.dtype)
    if self._is_decoder:
      decoder_input = prompt_BM
      decoder_segments = is_real_BM
      positions_BM = np.maximum(np.cumsum(is_real_BM, axis=1) - 1, 0)
      _fill_beginning(rows["decoder_positions"], positions_BM)
    else:
      decoder_input = np.full((index_B.size, 1), self._vocabulary.decoder_start_id, np.int32)
      decoder_segments = np.ones_like(decoder_input)
      _fill_beginning(rows["encoder_input_tokens"], prompt_BM)
      _fill_beginning(rows["encoder_segment_ids"], is_real_BM)
    _fill_beginning(rows["decoder_input_tokens"], decoder_input)
    _fill_beginning(rows["decoder_segment_ids"], decoder_segments)
    rows["fields"] = self._fields_NF[self.used[index_B]]
    return rows

  def _read_prompts(self, index_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return prompts and 1 at their tokens, int32 [B, M] each.

    The prompts of a decoder are at the end, the prompts of an encoder at the beginning.
    """
    length_B = self._lengths_n1[index_B, 0]
    tokens_BL, valid_BL = self._store.read("prompt", self.used[index_B], length_B)
    M = self._prompt_length
    position_M = np.arange(M)
    if self._is_decoder:
      is_real_BM = position_M >= M - length_B[:, None]
    else:
      is_real_BM = position_M < length_B[:, None]
    prompt_BM = np.full((index_B.size, M), self._vocabulary.pad_id or 0, np.int32)
    prompt_BM[is_real_BM] = tokens_BL[valid_BL]  # both in the order of rows, then of positions
    return prompt_BM, is_real_BM.astype(np.int32)


def _fill_beginning(values_BKL: np.ndarray, beginning_BM: np.ndarray) -> None:
  """Set the first tokens of all completions, in place."""
  values_BKL[:, :, : beginning_BM.shape[1]] = beginning_BM[:, None]
