"""Supervised fine-tuning on conversations, for decoders, with loss on the answers only.

Ouyang et al. 2022, section 3.5, call it SFT.

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

import dataclasses
from typing import Any

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Record, Skip
from t5x_like.data.features import Features, decoder
from t5x_like.data.supervised import packing
from t5x_like.data.supervised.chat import ASSISTANT, Chat, Message, read_messages
from t5x_like.data.supervised.example_store import Example, ExampleStore
from t5x_like.data.supervised.labelled import ExampleRows, PackedArguments, read_parallel
from t5x_like.data.supervised.published_template import PublishedChat, build_chat
from t5x_like.data.supervised.templates import Template
from t5x_like.data.supervised.too_long import TooLong, drop_unanswered, fit
from t5x_like.data.task import Task, rows_only
from t5x_like.errors import UserError
from t5x_like.slots import Length
from t5x_like.vocabularies import Vocabulary

# The arguments of the task on the built-in corpus, for `:debug`.
BUILT_IN = {"source": "builtin", "vocabulary": "bytes", "template": "plain"}


def tiny(length: int) -> dict[str, int]:
  """Return the length of the recipe form `:tiny`; shorter rows have no room for an answer."""
  return {"length": 128}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(PackedArguments):
  """The arguments of fine-tuning on conversations.

  Attributes:
    template: one of `chat.TEMPLATES`, or the fields of a `chat.ChatTemplate`; `published` is the
      template in the files of a published tokenizer.
    messages: the field of the conversation.
    prompt, completion: instead, templates of a user's message and the answer to it, such as
      `{instruction}`.
    length: length of a row.
    too_long: treatment of longer conversations; truncation cuts their end, and skips those left
      without an answer.
  """

  IS_CONVERSATION = True

  template: str | dict = "plain"
  messages: str = "messages"
  prompt: str | None = None
  completion: str | None = None
  length: Length = rows_only(default=2048)
  too_long: TooLong = rows_only(default="refuse")

  def features(self, vocabulary: Vocabulary) -> Features:
    return decoder(self.length, "segment_ids", "positions")

  def build(self) -> Task:
    """Prepare the examples and return the task.

    Raises:
      UserError: unusable template or length; a message without role or content, or of an unknown
        role; and as `LabelledArguments.build_task`.
    """
    vocabulary = vocabularies.load(self.vocabulary)
    chat = build_chat(self.template, vocabulary)
    if (self.prompt is None) != (self.completion is None):
      raise UserError(
        "config.task.prompt and completion: found one of them, expected both, or neither and "
        "messages"
      )
    texts = {}
    if self.prompt is not None:
      texts["user"] = Template(self.prompt, "prompt")
      texts[ASSISTANT] = Template(self.completion, "completion")
    conversations = _Conversations(chat, texts, self.messages)

    def make_rows(store: ExampleStore) -> ExampleRows:
      rows = _ConversationRows(store, self, vocabulary)
      return ExampleRows(rows.plan.num_rows, rows.read, view=conversations.view)

    return self.build_task(
      "chat.v1",
      vocabulary,
      fields=conversations.fields,
      streams={"tokens": False},  # the template ends them, not EOS
      make_example=conversations.make_example,
      make_rows=make_rows,
      example_facts=chat.facts,
      end_ids=(chat.end,),
    )


class _ConversationRows:
  """Rows of conversations.

  Attributes:
    plan: the packing plan.
  """

  def __init__(self, store: ExampleStore, arguments: Arguments, vocabulary: Vocabulary):
    self._store = store
    self._length = arguments.length
    self._vocabulary = vocabulary
    lengths_N1 = store.lengths["tokens"][:, None]
    first_N1 = np.asarray(store.arrays["first"])[:, None]
    limits = (arguments.length,)
    used, lengths_n1 = fit(lengths_N1, limits, arguments.too_long, store.path, ("length",))
    self._used, self._lengths_n1 = drop_unanswered(used, lengths_n1, first_N1, store.path)
    self.plan = packing.plan_examples(
      self._lengths_n1, limits, arguments.packed, arguments.pack_seed, store.path
    )

  def read(self, row_B: np.ndarray) -> dict[str, np.ndarray]:
    """Return the features of rows."""
    position_n, row_n, number_n = self.plan.members(row_B)
    index_n = self.plan.examples[position_n]  # in `_used`
    example_n = self._used[index_n]
    tokens_nL, valid_nL = self._store.read("tokens", example_n, self._lengths_n1[index_n, 0])
    answer_nL = read_parallel(self._store, "answer", "tokens", example_n, valid_nL)
    return packing.decoder_rows(
      tokens_nL,
      valid_nL,
      answer_nL,
      positions_n=(row_n, number_n, self.plan.offsets[position_n, 0]),
      shape=(row_B.size, self._length),
      start_id=vocabularies.start_id(self._vocabulary),
      pad_id=self._vocabulary.pad_id or 0,
    )


class _Conversations:
  """Conversations from records.

  Args:
    chat: the writer of conversations as tokens.
    templates: the templates of a user's message and its answer, by role; empty for conversations.
    messages_field: the field of the conversation, if there are no templates.

  Attributes:
    fields: the fields of a record in use.
  """

  def __init__(
    self, chat: Chat | PublishedChat, templates: dict[str, Template], messages_field: str
  ):
    self._chat = chat
    self._templates = templates
    self._messages_field = messages_field
    self.fields: tuple[str, ...] = (messages_field,)
    if templates:
      self.fields = tuple(field for template in templates.values() for field in template.fields)

  def make_example(self, record: Record, where: str) -> Example | Skip:
    """Return the ids of a conversation and the tokens with loss, or the reason to skip it."""
    messages = self._read(record, where)
    if isinstance(messages, Skip):
      return messages
    skip = self._chat.check(messages, where)
    if skip:
      return skip
    tokens, answer = self._chat(messages)
    return {"tokens": tokens, "answer": answer, "first": np.int32(np.argmax(answer))}

  def view(self, record: Record, where: str, _: int) -> dict[str, Any]:
    """Return the last answer of a conversation and its prompt; see `Task.examples`."""
    messages = self._read(record, where)
    last = max(number for number, message in enumerate(messages) if message.role == ASSISTANT)
    prompt = messages[:last]
    return {
      "inputs": prompt[-1].content if prompt else "",
      "targets": messages[last].content,
      "ids": self._chat.prompt(prompt),
    }

  def _read(self, record: Record, where: str) -> list[Message] | Skip:
    """Return the conversation of a record, or the reason for having none."""
    if not self._templates:
      return read_messages(record, self._messages_field, where)
    texts = {role: template(record, where) for role, template in self._templates.items()}
    if texts["user"] is None:
      return Skip("empty prompt")
    if texts[ASSISTANT] is None:
      return Skip("empty answer")
    return [Message(role, text) for role, text in texts.items()]
