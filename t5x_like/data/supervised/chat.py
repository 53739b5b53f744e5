"""Writes conversations as tokens and marks the assistant's words; a chat template is data.

A turn is the template's text before the content, the content, and the template's text after it.
Loss is on the assistant's contents and on the end piece after each, by which a model says that it
has finished. Pieces such as `<|im_start|>` are single ids of the vocabulary; EOS is the
vocabulary's end of text. Texts between pieces are encoded separately, so that a content has the
same ids in every context. The decoder's start token is not included, nor is a first piece of the
template that is this token: models such as SmolLM2 begin a turn with it.
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


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
  """The format of turns, one of `TEMPLATES` or given by a recipe, `config.task.template = {"turns":
  …, "ends": …}`.

  Attributes:
    turns: the text before and after the content, by role; `{role}` in it is the role's name.
    ends: the piece that ends an answer, at the beginning of the text after it.
    pieces: spellings that are single ids of the vocabulary; `EOS` is the vocabulary's.
    lead: text before every content, encoded together with it; space-keeping tokenizers know most
      words by their space.
    stripped: whether white space around contents is dropped.
  Raises:
    UserError: `turns` lacks the user or the assistant, or `ends` is no piece that the text after an
      answer begins with.
  """

  turns: dict[str, tuple[str, str]]
  ends: str
  pieces: tuple[str, ...] = (EOS,)
  lead: str = ""
  stripped: bool = False

  def __post_init__(self):
    for role, turn in ({"user": None, ASSISTANT: None} | self.turns).items():
      if not isinstance(turn, list | tuple) or [type(text) for text in turn] != [str, str]:
        told = (
          f"found {str(turn)[:60]} for {role!r}, expected the text before a content and the "
          "text after it"
        )
        raise UserError(f"{_WHERE}.turns: {told}")
    after = self.turns[ASSISTANT][1]
    if self.ends not in self.pieces or not after.startswith(self.ends):
      raise UserError(
        f"{_WHERE}.ends: found {self.ends!r}, expected one of pieces, {', '.join(self.pieces)}, "
        f"with which the text after an answer, {after!r}, begins"
      )


def _alike(
  before: str, after: str, roles: Sequence[str] = ("system", "user", ASSISTANT, "tool")
) -> dict:
  return {role: (before.replace("{role}", role), after) for role in roles}


TEMPLATES = {
  # No special pieces: any vocabulary will do.
  "plain": ChatTemplate(
    {
      "system": ("System:", "\n\n"),
      "user": ("User:", "\n\n"),
      ASSISTANT: ("Assistant:", f"{EOS}\n\n"),
    },
    EOS,
    lead=" ",
  ),
  # OpenAI's ChatML, used by Qwen and many others.
  "chatml": ChatTemplate(
    _alike("<|im_start|>{role}\n", "<|im_end|>\n"), "<|im_end|>", ("<|im_start|>", "<|im_end|>")
  ),
  # Llama 3's, which calls tools "ipython"; `<|begin_of_text|>` is the decoder's start.
  "llama3": ChatTemplate(
    _alike("<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>")
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
  # Tülu's and OLMo 2's, whose marks of turns are text.
  "tulu": ChatTemplate(
    _alike("<|{role}|>\n", "\n", ("system", "user")) | {ASSISTANT: ("<|assistant|>\n", f"{EOS}\n")},
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
  """Return the text of a conversation up to the beginning of its next answer; `eos` spells the end
  of text."""
  text = ""
  for message in messages:
    before, after = template.turns[message.role]
    content = message.content.strip() if template.stripped else message.content
    text += before + template.lead + content + after
  return (text + template.turns[ASSISTANT][0]).replace(EOS, eos)


class Message(NamedTuple):
  role: str
  content: str


class Chat:
  """Writes conversations in the ids of a vocabulary.

  Args:
    template: see `template_of`.
    vocabulary: the vocabulary of the ids.

  Raises:
    UserError: an unusable template, or the vocabulary lacks one of its pieces.
  """

  def __init__(self, template: str | dict[str, Any], vocabulary: Vocabulary):
    self._template = find_template(template)
    self._vocabulary = vocabulary
    known = _ids(vocabulary) if set(self._template.pieces) - {EOS} else {}
    self._pieces = {EOS: vocabulary.eos_id}
    for piece in self._template.pieces:
      if piece != EOS and piece not in known:
        raise UserError(
          f"{_WHERE}: {template!r} needs the piece {piece!r}, which the vocabulary of "
          f"{vocabulary.size} ids lacks; choose template 'plain', which needs none, or a "
          "vocabulary that has it"
        )
      self._pieces |= {piece: known[piece]} if piece != EOS else {}
    self._spelled = vocabulary.pieces_of(list(self._pieces.values()))
    self._start = start_id(vocabulary)
    self._cut = re.compile("(" + "|".join(map(re.escape, self._template.pieces)) + ")")

  @property
  def end(self) -> int:
    """Return the id that ends an answer."""
    return self._pieces[self._template.ends]

  def check(self, messages: Sequence[Message], where: str) -> Skip | None:
    """Return why a conversation is unusable to learn from: it has no answer, or is no
    `check_prompt`."""
    skip = self.check_prompt(messages, where)
    return skip or (
      None if any(message.role == ASSISTANT for message in messages) else Skip("no answer")
    )

  def check_prompt(self, messages: Sequence[Message], where: str) -> Skip | None:
    """Return why a conversation is unusable, if it is: an empty answer, or a content that spells a
    piece.

    Raises:
      UserError: a role that the template does not have.
    """
    for number, message in enumerate(messages):
      if message.role not in self._template.turns:
        raise UserError(
          f"{where}: found role {message.role!r} in message {number}, expected one of "
          f"{', '.join(self._template.turns)}{did_you_mean(message.role, self._template.turns)}"
        )
      if message.role == ASSISTANT and not message.content.strip():
        return Skip("empty answer")
      if self._vocabulary.specials_in_text and any(
        piece in message.content for piece in self._spelled
      ):
        return Skip("special piece in a message")
    return None

  def __call__(self, messages: Sequence[Message]) -> tuple[np.ndarray, np.ndarray]:
    """Return (ids int32 [n], int8 [n] with 1 at the assistant's words), up to the end of the last
    answer."""
    ids: list[int] = []
    answer: list[int] = []

    def add(found: list[int], learned: bool) -> None:
      ids.extend(found)
      answer.extend([learned] * len(found))

    for message in messages:
      before, after = self._template.turns[message.role]
      own = message.role == ASSISTANT
      end = self._template.ends if own else ""
      add(self._around(before), False)
      add(self._content(message), own)
      add(self._around(end), own)
      add(self._around(after.removeprefix(end)), False)
    learned = np.asarray(answer, np.int8)
    first = int(ids[:1] == [self._start] and not learned[0])
    last = int(np.flatnonzero(learned)[-1]) + 1
    return np.asarray(ids[first:last], np.int32), learned[first:last]

  @property
  def facts(self) -> dict[str, Any]:
    """Return all that determines the ids besides the template's name or fields and the vocabulary;
    JSON.

    Rows of templates whose turns begin with the start token had it twice before.
    """
    starts = [
      self._around(before)[:1] == [self._start] for before, _ in self._template.turns.values()
    ]
    return {"start": "once"} if any(starts) else {}

  def prompt(self, messages: Sequence[Message]) -> list[int]:
    """Return the ids from which an answer to these messages is generated; raise as
    `check_prompt`."""
    ids = self.opened(messages)
    return ids[1:] if ids[:1] == [self._start] else ids

  def opened(self, messages: Sequence[Message]) -> list[int]:
    """Return the ids of `prompt`, behind the start token if the first turn begins with it."""
    self.check_prompt(messages, "the conversation")
    ids: list[int] = []
    for message in messages:
      before, after = self._template.turns[message.role]
      ids += [*self._around(before), *self._content(message), *self._around(after)]
    return ids + self._around(self._template.turns[ASSISTANT][0])

  def _content(self, message: Message) -> list[int]:
    content = message.content.strip() if self._template.stripped else message.content
    return list(self._vocabulary.encode(self._template.lead + content))

  def _around(self, text: str) -> list[int]:
    """Return the ids of the template's own text, with its pieces."""
    parts = filter(None, self._cut.split(text))
    return [
      i
      for part in parts
      for i in ([self._pieces[part]] if part in self._pieces else self._vocabulary.encode(part))
    ]


def read_messages(record: Record, field: str, where: str) -> list[Message]:
  """Return the conversation in a field: a list of objects with `role` and `content`.

  Raises:
    UserError: the field is missing, or is not such a list.
  """
  found = field_value(record, field, where)
  if not isinstance(found, list) or not found:
    raise UserError(
      f"{where}: found {'an empty array' if found == [] else json_type_name(found)} in field {field!r}, "
      "expected an array of messages, each an object with 'role' and 'content'"
    )
  return [
    _message(one, f"{where}: message {number} of {field!r}") for number, one in enumerate(found)
  ]


def _message(found: Any, where: str) -> Message:
  if not isinstance(found, dict):
    raise UserError(
      f"{where}: found {json_type_name(found)}, expected an object with 'role' and 'content'"
    )
  for key in Message._fields:
    if not isinstance(found.get(key), str):
      what = (
        f"{json_type_name(found[key])} in {key!r}"
        if key in found
        else (f"no {key!r} among {', '.join(found) or 'none'}")
      )
      raise UserError(f"{where}: found {one_line(what)}, expected text in 'role' and 'content'")
  if call := next((key for key in ("tool_calls", "function_call") if found.get(key)), None):
    raise UserError(
      f"{where}: found {call!r}, which no template here writes; write the call as text in 'content'"
    )
  return Message(found["role"], found["content"])


@functools.lru_cache(4)
def _ids(vocabulary: Vocabulary) -> dict[str, int]:
  """Return the id of every piece by its spelling."""
  return {piece: i for i, piece in enumerate(vocabulary.pieces_of(range(vocabulary.size)))}
