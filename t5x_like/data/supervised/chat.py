"""Encode conversations in a chat template, and mark the tokens of the assistant.

A turn is the template's text before the content, the content, and the template's text after it.
The loss is on the assistant's contents and on the end piece after each, which a model writes when
it has finished. Pieces such as `<|im_start|>` are single ids of the vocabulary; EOS is the
vocabulary's end of text. Texts between pieces are encoded separately, so that a content has the
same ids in every context. The decoder's start token is left out, even where the template's first
piece is this token: models such as SmolLM2 begin a turn with it.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from t5x_like import slots
from t5x_like.corpora.sources import Record, Skip, field_value, json_type_name
from t5x_like.errors import UserError, did_you_mean, one_line
from t5x_like.vocabularies import Vocabulary, start_id

ASSISTANT = "assistant"
EOS = "<EOS>"
_WHERE = "config.task.template"


@slots.rename_keys(ends="end_of_turn", lead="content_prefix")
@dataclasses.dataclass(frozen=True)
class ChatTemplate:
  """The format of turns.

  A recipe names one of `TEMPLATES` or gives the fields:
  `config.task.template = {"turns": …, "end_of_turn": …}`.

  Attributes:
    turns: (the text before the content, the text after it) by role.
    end_of_turn: the piece that ends an answer, with which the text after the assistant's content
      begins.
    pieces: the spellings of the template's special pieces; `EOS` stands for the vocabulary's end.
    content_prefix: text before every content, encoded together with it: a space for tokenizers
      whose words usually include the space before them.
    stripped: whether white space around contents is removed.

  Raises:
    UserError: `turns` lacks the user or the assistant, or `end_of_turn` is not one of `pieces`
      with which the text after an answer begins.
  """

  turns: dict[str, tuple[str, str]]
  end_of_turn: str
  pieces: tuple[str, ...] = (EOS,)
  content_prefix: str = ""
  stripped: bool = False

  def __post_init__(self):
    for role in dict.fromkeys(["user", ASSISTANT, *self.turns]):
      turn = self.turns.get(role)
      if not isinstance(turn, list | tuple) or [type(text) for text in turn] != [str, str]:
        raise UserError(
          f"{_WHERE}.turns: found {str(turn)[:60]} for {role!r}, expected the text before a "
          "content and the text after it"
        )
    after = self.turns[ASSISTANT][1]
    if self.end_of_turn not in self.pieces or not after.startswith(self.end_of_turn):
      raise UserError(
        f"{_WHERE}.end_of_turn: found {self.end_of_turn!r}, expected one of pieces, "
        f"{', '.join(self.pieces)}, with which the text after an answer, {after!r}, begins"
      )


def _same_turns(
  before: str, after: str, roles: Sequence[str] = ("system", "user", ASSISTANT, "tool")
) -> dict[str, tuple[str, str]]:
  """Return `turns` that differ only in the role's name, which replaces `{role}`."""
  return {role: (before.replace("{role}", role), after) for role in roles}


TEMPLATES = {
  # Without special pieces, for any vocabulary.
  "plain": ChatTemplate(
    {
      "system": ("System:", "\n\n"),
      "user": ("User:", "\n\n"),
      ASSISTANT: ("Assistant:", f"{EOS}\n\n"),
    },
    EOS,
    content_prefix=" ",
  ),
  # OpenAI's ChatML, used by Qwen and many others.
  "chatml": ChatTemplate(
    _same_turns("<|im_start|>{role}\n", "<|im_end|>\n"),
    "<|im_end|>",
    ("<|im_start|>", "<|im_end|>"),
  ),
  # Llama 3's, which calls tools "ipython"; `<|begin_of_text|>` is the decoder's start.
  "llama3": ChatTemplate(
    _same_turns("<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>")
    | {"tool": ("<|start_header_id|>ipython<|end_header_id|>\n\n", "<|eot_id|>")},
    "<|eot_id|>",
    ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    stripped=True,
  ),
  # Gemma's, which calls the assistant "model".
  "gemma": ChatTemplate(
    {
      "user": ("<start_of_turn>user\n", "<end_of_turn>\n"),
      ASSISTANT: ("<start_of_turn>model\n", "<end_of_turn>\n"),
    },
    "<end_of_turn>",
    ("<start_of_turn>", "<end_of_turn>"),
    stripped=True,
  ),
  # DeepSeek-V3's.
  "deepseek": ChatTemplate(
    {"system": ("", ""), "user": ("<｜User｜>", ""), ASSISTANT: ("<｜Assistant｜>", EOS)},
    EOS,
    (EOS, "<｜User｜>", "<｜Assistant｜>"),
  ),
  # Tülu's and OLMo 2's, which mark turns by ordinary text.
  "tulu": ChatTemplate(
    _same_turns("<|{role}|>\n", "\n", ("system", "user"))
    | {ASSISTANT: ("<|assistant|>\n", f"{EOS}\n")},
    EOS,
  ),
}


def find_template(value: str | dict[str, Any]) -> ChatTemplate:
  """Return the template of a name, or of the fields of a `ChatTemplate`.

  Raises:
    UserError: there is none of this name, or the fields are unusable.
  """
  if not isinstance(value, str):
    return ChatTemplate(**slots.fill(_WHERE, value, ChatTemplate))
  if value not in TEMPLATES:
    expected = f"one of {', '.join(TEMPLATES)}{did_you_mean(value, TEMPLATES)}"
    raise UserError(f"{_WHERE}: found {value!r}, expected {expected}")
  return TEMPLATES[value]


def render_messages(template: ChatTemplate, messages: Sequence["Message"], eos: str) -> str:
  """Return the text of a conversation up to the beginning of its next answer.

  Args:
    template: the template.
    messages: the messages of the conversation.
    eos: the spelling of the vocabulary's end of text, which replaces `EOS`.
  """
  text = ""
  for message in messages:
    before, after = template.turns[message.role]
    content = message.content.strip() if template.stripped else message.content
    text += before + template.content_prefix + content + after
  return (text + template.turns[ASSISTANT][0]).replace(EOS, eos)


class Message(NamedTuple):
  """A message of a conversation, with one of the roles of the template."""

  role: str
  content: str


class Chat:
  """Encodes conversations in the ids of a vocabulary.

  Args:
    template: see `find_template`.
    vocabulary: the vocabulary of the ids.

  Raises:
    UserError: the template is unusable, or the vocabulary lacks one of its pieces.
  """

  def __init__(self, template: str | dict[str, Any], vocabulary: Vocabulary):
    self._template = find_template(template)
    self._vocabulary = vocabulary
    self._pieces = {EOS: vocabulary.eos_id}
    for piece in self._template.pieces:
      if piece == EOS:
        continue
      ids = _ids_by_piece(vocabulary)
      if piece not in ids:
        raise UserError(
          f"{_WHERE}: {template!r} needs the piece {piece!r}, which the vocabulary of "
          f"{vocabulary.size} ids lacks; choose template 'plain', which needs none, or a "
          "vocabulary that has it"
        )
      self._pieces[piece] = ids[piece]
    self._special_spellings = vocabulary.pieces_of(list(self._pieces.values()))
    self._start = start_id(vocabulary)
    pieces = "|".join(re.escape(piece) for piece in self._template.pieces)
    self._piece_pattern = re.compile(f"({pieces})")

  @property
  def end(self) -> int:
    """The id that ends an answer."""
    return self._pieces[self._template.end_of_turn]

  def check(self, messages: Sequence[Message], where: str) -> Skip | None:
    """Return why a conversation teaches nothing: no answer, or as `check_prompt`; else None."""
    skip = self.check_prompt(messages, where)
    if skip is None and not any(message.role == ASSISTANT for message in messages):
      skip = Skip("no answer")
    return skip

  def check_prompt(self, messages: Sequence[Message], where: str) -> Skip | None:
    """Return why a conversation cannot be encoded: an empty answer or a special piece; else None.

    Raises:
      UserError: a message has a role that is not in the template.
    """
    for number, message in enumerate(messages):
      if message.role not in self._template.turns:
        raise UserError(
          f"{where}: found role {message.role!r} in message {number}, expected one of "
          f"{', '.join(self._template.turns)}{did_you_mean(message.role, self._template.turns)}"
        )
      if message.role == ASSISTANT and not message.content.strip():
        return Skip("empty answer")
      has_piece = any(piece in message.content for piece in self._special_spellings)
      if has_piece and self._vocabulary.specials_in_text:
        return Skip("special piece in a message")
    return None

  def __call__(self, messages: Sequence[Message]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of a conversation up to the end of its last answer.

    Returns:
      (ids int32 [n], int8 [n]: 1 where the loss counts, on the answers and their ends).
    """
    ids: list[int] = []
    is_learned: list[bool] = []

    def add(part: list[int], learned: bool) -> None:
      ids.extend(part)
      is_learned.extend([learned] * len(part))

    for message in messages:
      before, after = self._template.turns[message.role]
      is_answer = message.role == ASSISTANT
      end = self._template.end_of_turn if is_answer else ""
      add(self._encode_template(before), False)
      add(self._encode_content(message), is_answer)
      add(self._encode_template(end), is_answer)
      add(self._encode_template(after.removeprefix(end)), False)
    learned = np.asarray(is_learned, np.int8)
    first = 1 if ids[:1] == [self._start] and not learned[0] else 0
    last = int(np.flatnonzero(learned)[-1]) + 1
    return np.asarray(ids[first:last], np.int32), learned[first:last]

  @property
  def facts(self) -> dict[str, Any]:
    """The part of a store's fingerprint besides the template and the vocabulary, as JSON.

    Older versions repeated the start token in templates whose turns begin with it. This entry
    distinguishes their stores from current ones.
    """
    for before, _ in self._template.turns.values():
      if self._encode_template(before)[:1] == [self._start]:
        return {"start": "once"}
    return {}

  def prompt(self, messages: Sequence[Message]) -> list[int]:
    """Return the ids from which an answer to these messages is generated.

    Raises:
      UserError: as `check_prompt`.
    """
    ids = self.prompt_with_start(messages)
    return ids[1:] if ids[:1] == [self._start] else ids

  def prompt_with_start(self, messages: Sequence[Message]) -> list[int]:
    """Return the ids of `prompt`, after the start token if the first turn begins with it."""
    self.check_prompt(messages, "the conversation")
    ids: list[int] = []
    for message in messages:
      before, after = self._template.turns[message.role]
      ids += self._encode_template(before)
      ids += self._encode_content(message)
      ids += self._encode_template(after)
    return ids + self._encode_template(self._template.turns[ASSISTANT][0])

  def _encode_content(self, message: Message) -> list[int]:
    """Return the ids of a message's content, with the template's prefix."""
    content = message.content.strip() if self._template.stripped else message.content
    return list(self._vocabulary.encode(self._template.content_prefix + content))

  def _encode_template(self, text: str) -> list[int]:
    """Return the ids of the template's own text, with its pieces."""
    ids = []
    for part in self._piece_pattern.split(text):
      if part in self._pieces:
        ids.append(self._pieces[part])
      elif part:
        ids += self._vocabulary.encode(part)
    return ids


def read_messages(record: Record, field: str, where: str) -> list[Message]:
  """Return the conversation in a field: a list of objects with `role` and `content`.

  Raises:
    UserError: the field is missing, or is not such a list.
  """
  messages = field_value(record, field, where)
  if not isinstance(messages, list) or not messages:
    kind = "an empty array" if messages == [] else json_type_name(messages)
    raise UserError(
      f"{where}: found {kind} in field {field!r}, "
      "expected an array of messages, each an object with 'role' and 'content'"
    )
  parsed = []
  for number, message in enumerate(messages):
    parsed.append(_parse_message(message, f"{where}: message {number} of {field!r}"))
  return parsed


def _parse_message(message: Any, where: str) -> Message:
  """Return a message; raise UserError if it lacks a text or calls a tool."""
  if not isinstance(message, dict):
    raise UserError(
      f"{where}: found {json_type_name(message)}, expected an object with 'role' and 'content'"
    )
  for key in Message._fields:
    if not isinstance(message.get(key), str):
      if key in message:
        mismatch = f"{json_type_name(message[key])} in {key!r}"
      else:
        mismatch = f"no {key!r} among {', '.join(message) or 'none'}"
      raise UserError(f"{where}: found {one_line(mismatch)}, expected text in 'role' and 'content'")
  for key in ("tool_calls", "function_call"):
    if message.get(key):
      raise UserError(
        f"{where}: found {key!r}, which no template here writes; write the call as text in "
        "'content'"
      )
  return Message(message["role"], message["content"])


@functools.lru_cache(4)
def _ids_by_piece(vocabulary: Vocabulary) -> dict[str, int]:
  """Return the id of every piece by its spelling."""
  return {piece: id_ for id_, piece in enumerate(vocabulary.pieces_of(range(vocabulary.size)))}
