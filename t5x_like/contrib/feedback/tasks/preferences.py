"""Pairs of answers to the same prompt, one of them preferred, for decoders.

See Rafailov et al. 2023, section 4.

  config.task = {"name": "preferences", "source":
                 "jsonl:train=pairs/train.jsonl,validation=pairs/dev.jsonl", "vocabulary":
                 "vocabulary", "template": "chatml", "length": 1024}

A record has `chosen` and `rejected`, each a text or a conversation. A text answers the text or the
conversation in `prompt`, and a conversation that begins with the assistant continues it. Any other
conversation is complete and needs no `prompt`. A chat template encodes them, see
`data/supervised/chat.py`.

The features of a decoder have the shape [2, length]: the row of the chosen answer, and the row of
the rejected one. `decoder_loss_weights` is 1 on the last answer and its end; `decoder_segment_ids`
is 0 on padding. With `margin`, the feature `margin`, float32 [], says by how much the chosen answer
is better.
"""

import dataclasses
import math

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Record, Skip, field_value
from t5x_like.data.features import Feature, Features, decoder
from t5x_like.data.supervised import packing
from t5x_like.data.supervised.chat import ASSISTANT, Chat, Message, read_messages
from t5x_like.data.supervised.example_store import Example, ExampleStore
from t5x_like.data.supervised.labelled import ExampleRows, LabelledArguments
from t5x_like.data.supervised.published_template import PublishedChat, build_chat
from t5x_like.data.supervised.sequences import stack
from t5x_like.data.supervised.templates import to_text
from t5x_like.data.supervised.too_long import TooLong, drop_unanswered, fit
from t5x_like.data.task import Task, rows_only
from t5x_like.errors import UserError
from t5x_like.slots import Length
from t5x_like.vocabularies import Vocabulary

SIDES = ("chosen", "rejected")

# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "builtin", "vocabulary": "bytes", "template": "plain"}


def tiny(length: int) -> dict[str, int]:
  """Return the length for the laptop form of a recipe; shorter rows are too short for an answer."""
  return {"length": 128}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(LabelledArguments):
  """The arguments of pairs of answers.

  Pairs whose conversations first differ in a message that is not an answer are left out and
  counted.

  Attributes:
    template: one of `chat.TEMPLATES`, or the fields of a `chat.ChatTemplate`; `published` is the
      template in the files of a published tokenizer.
    prompt, chosen, rejected: the names of the fields; a prompt of None means that the answers are
      complete conversations.
    margin: the field of a number, such as a difference of ratings: the least difference of scores
      that the objective `reward` uses.
    length: length of each row.
    too_long: treatment of pairs with a longer row; truncation cuts the ends of rows, and leaves out
      pairs that would lose an answer.
  """

  IS_CONVERSATION = True

  template: str | dict = "plain"
  prompt: str | None = "prompt"
  chosen: str = "chosen"
  rejected: str = "rejected"
  margin: str | None = None
  length: Length = rows_only(default=1024)
  too_long: TooLong = rows_only(default="refuse")

  def features(self, vocabulary: Vocabulary) -> Features:
    pair_features = {}
    for name, feature in decoder(self.length, "segment_ids").items():
      pair_features[name] = Feature((2, *feature.shape), feature.dtype)
    if self.margin is not None:
      pair_features["margin"] = Feature((), "float32")
    return pair_features

  def build(self) -> Task:
    """Prepare the examples and return the task.

    Raises:
      UserError: unusable template or length; a message without role or content, or of an unknown
        role; a margin that is not a finite number; and as `LabelledArguments.build_task`.
    """
    vocabulary = vocabularies.load(self.vocabulary)
    chat = build_chat(self.template, vocabulary)
    pairs = _Pairs(chat, self.prompt, self.chosen, self.rejected, self.margin)

    def make_rows(store: ExampleStore) -> ExampleRows:
      return _pair_rows(
        store, vocabulary, self.length, self.too_long, has_margin=self.margin is not None
      )

    fields = (self.prompt, self.chosen, self.rejected, self.margin)
    return self.build_task(
      "preferences.v3",
      vocabulary,
      fields=tuple(field for field in fields if field),
      streams=dict.fromkeys(SIDES, False),
      make_example=pairs.make_example,
      make_rows=make_rows,
      example_facts=chat.facts,
    )


class _Pairs:
  """A maker of examples, pairs of conversations, from records; see `Arguments` for the fields."""

  def __init__(
    self,
    chat: Chat | PublishedChat,
    prompt_field: str | None,
    chosen_field: str,
    rejected_field: str,
    margin_field: str | None,
  ):
    self._chat = chat
    self._prompt_field = prompt_field
    self._answer_fields = {"chosen": chosen_field, "rejected": rejected_field}
    self._margin_field = margin_field

  def make_example(self, record: Record, where: str) -> Example | Skip:
    conversations = {}
    for side, field in self._answer_fields.items():
      conversations[side] = self._read(record, field, where)
    for messages in conversations.values():
      skip = self._check(messages, where)
      if skip:
        return skip
    if _have_different_prompts(conversations["chosen"], conversations["rejected"]):
      return Skip("answers to different prompts")
    example = {}
    for side, messages in conversations.items():
      tokens, is_answer = self._chat(messages)
      example[side] = tokens
      # Where the loss begins: at the last answer.
      answer_starts = np.flatnonzero(np.diff(is_answer, prepend=0) == 1)
      example[f"{side}_first"] = np.int32(answer_starts[-1])
    if np.array_equal(example["chosen"], example["rejected"]):
      return Skip("the same answer twice")
    if self._margin_field is not None:
      example["margin"] = self._read_margin(record, where)
    return example

  def _read(self, record: Record, field: str, where: str) -> list[Message]:
    """Return the prompt and the answer in a field, or the conversation that the field holds."""
    answer = field_value(record, field, where)
    if isinstance(answer, list):
      messages = read_messages(record, field, where)
      if self._prompt_field is None or messages[0].role != ASSISTANT:
        return messages
      return self._read_prompt(record, where) + messages
    if self._prompt_field is None:
      raise UserError(
        f"{where}: found text in field {field!r}, expected a conversation; name the "
        "field of its prompt"
      )
    prompt = self._read_prompt(record, where)
    return [*prompt, Message(ASSISTANT, to_text(answer, field, where))]

  def _read_prompt(self, record: Record, where: str) -> list[Message]:
    prompt = field_value(record, self._prompt_field, where)
    if isinstance(prompt, list):
      return read_messages(record, self._prompt_field, where)
    return [Message("user", to_text(prompt, self._prompt_field, where))]

  def _check(self, messages: list[Message], where: str) -> Skip | None:
    """Return the reason why a conversation is unusable, or None."""
    if messages[-1].role != ASSISTANT:
      return Skip("no answer")
    if any(message.role == "user" and not message.content for message in messages):
      return Skip("empty prompt")
    return self._chat.check(messages, where)

  def _read_margin(self, record: Record, where: str) -> np.float32:
    margin = field_value(record, self._margin_field, where)
    is_number = isinstance(margin, int | float) and not isinstance(margin, bool)
    if not is_number or not math.isfinite(margin):
      raise UserError(
        f"{where}: found {str(margin)[:40]!r} in field {self._margin_field!r}, expected a finite "
        "number"
      )
    return np.float32(margin)


def _have_different_prompts(chosen: list[Message], rejected: list[Message]) -> bool:
  """Return whether two conversations first differ in a message that is not an answer."""
  for chosen_message, rejected_message in zip(chosen, rejected):
    same_text = chosen_message.content.strip() == rejected_message.content.strip()
    same_role = chosen_message.role == rejected_message.role
    if not (same_text and same_role):
      both_answer = same_role and chosen_message.role == ASSISTANT
      return not both_answer
  return False


def _pair_rows(
  store: ExampleStore, vocabulary: Vocabulary, length: int, too_long: TooLong, has_margin: bool
) -> ExampleRows:
  """Return the rows of pairs: for each pair the row of its chosen and of its rejected answer."""
  lengths_N2 = np.stack([store.lengths[side] for side in SIDES], axis=1)
  first_N2 = np.stack([store.arrays[f"{side}_first"] for side in SIDES], axis=1)
  used, lengths_n2 = fit(lengths_N2, (length, length), too_long, store.path, SIDES)
  used, lengths_n2 = drop_unanswered(used, lengths_n2, first_N2, store.path)

  def read_side(side: str, number: int, index_B: np.ndarray) -> dict[str, np.ndarray]:
    tokens_BL, valid_BL = store.read(side, used[index_B], lengths_n2[index_B, number])
    first_B = first_N2[used[index_B], number]
    zero_B = np.zeros(index_B.size, np.int64)
    return packing.decoder_rows(
      tokens_BL,
      valid_BL,
      np.arange(tokens_BL.shape[1]) >= first_B[:, None],
      positions_n=(np.arange(index_B.size), zero_B, zero_B),
      shape=(index_B.size, length),
      start_id=vocabularies.start_id(vocabulary),
      pad_id=vocabulary.pad_id or 0,
    )

  def read(index_B: np.ndarray) -> dict[str, np.ndarray]:
    rows = stack([read_side(side, number, index_B) for number, side in enumerate(SIDES)])
    if has_margin:
      rows["margin"] = np.asarray(store.arrays["margin"])[used[index_B]]
    return rows

  return ExampleRows(used.size, read)
