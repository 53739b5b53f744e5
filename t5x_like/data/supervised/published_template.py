"""Conversations in the chat template that a tokenizer was published with, a Jinja program.

A template is an untrusted program. It runs in its own process (`template_program`), in a sandbox,
with limits of its size, its output, its memory and its time.
"""

import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like.corpora.sources import Skip
from t5x_like.data.supervised.chat import ASSISTANT, TEMPLATES, Chat, Message, render_messages
from t5x_like.errors import UserError, one_line
from t5x_like.files import checked_json
from t5x_like.vocabularies import CONFIG, Vocabulary, start_id

PUBLISHED = "published"  # the name of such a template in a recipe or a flag
FILE = "chat_template.jinja"
MAX_CHARACTERS = 2**18
# The time limit of a rendering, long enough for a machine that is busy with other work.
MAX_SECONDS = 30.0

_PROGRAM = pathlib.Path(__file__).with_name("template_program.py")
_SPECIAL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# Conversations that are rendered to recognise a template and its end of an answer.
_QUESTIONS = ("Where is the fox?", "And the dog?")
_ANSWER = "Here it is."
_PROBES = (
  (Message("system", "Be brief."), Message("user", _QUESTIONS[0])),
  (Message("user", _QUESTIONS[0]), Message(ASSISTANT, _ANSWER), Message("user", _QUESTIONS[1])),
)


def find_template_text(vocabulary: Vocabulary) -> str | None:
  """Return the template in `chat_template.jinja` or tokenizer_config.json; None without one."""
  files = getattr(vocabulary, "original_files", {})
  if FILE in files:
    return files[FILE].decode("utf-8", "replace")
  template = _config(vocabulary).get("chat_template")
  if isinstance(template, list):  # several, by name
    templates = {}
    for entry in template:
      if isinstance(entry, dict):
        templates[entry.get("name")] = entry.get("template")
    template = templates.get("default")
  return template if isinstance(template, str) else None


def build_chat(template: str | dict[str, Any], vocabulary: Vocabulary) -> "Chat | PublishedChat":
  """Return the writer of conversations for a template.

  Args:
    template: `published`, or a template that `chat.find_template` knows.
    vocabulary: the vocabulary of the ids.

  Raises:
    UserError: the template is unknown or unusable, or the vocabulary lacks its pieces.
  """
  if template == PUBLISHED:
    return PublishedChat(vocabulary)
  return Chat(template, vocabulary)


def describe(template: str | dict[str, Any], vocabulary: Vocabulary) -> str:
  """Describe a template in words, with the name of a known one that writes as it does."""
  if template == PUBLISHED:
    name = PublishedChat(vocabulary).known_name
    return f"the model's own chat template ({name})" if name else "the model's own chat template"
  if isinstance(template, str):
    return f"the chat template {template!r}"
  return "the chat template of its recipe"


class Renderer:
  """Renders conversations by a template, in a process that is started when it is first used.

  Args:
    template: the Jinja text.
    variables: the variables of the template, such as `bos_token`.
    origin: the name of the template in messages.

  Raises:
    UserError: the template is too long.
  """

  def __init__(self, template: str, variables: dict[str, str], origin: str):
    if len(template) > MAX_CHARACTERS:
      raise UserError(
        f"{origin}: found {len(template)} characters, expected at most {MAX_CHARACTERS}; {_REMEDY}"
      )
    self._setup = {"template": template, "variables": variables}
    self._origin = origin
    self._process: subprocess.Popen | None = None
    self._owner = 0  # the id of the process that started it; a fork of this one starts another
    self._lock = threading.Lock()

  def __call__(self, messages: Sequence[Message], prompt: bool) -> tuple[str, list[list[int]]]:
    """Return the text of a conversation and the [begin, end) of answers that the template marks.

    Args:
      messages: the conversation.
      prompt: whether the text ends with the beginning of an answer.

    Raises:
      UserError: the template refuses the conversation, or exceeds a limit.
    """
    request = {
      "messages": [message._asdict() for message in messages],
      "add_generation_prompt": prompt,
    }
    with self._lock:
      if self._process is None or self._owner != os.getpid():
        self._start()
      answer = self._request(request)
    return answer["text"], answer["answers"]

  def _start(self) -> None:
    """Start the process and send it the template."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-P", str(_PROGRAM)]
    self._process = subprocess.Popen(command, text=True, encoding="utf-8", **pipes)
    self._owner = os.getpid()
    self._request(self._setup)

  def _request(self, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to the process and return its answer.

    Raises:
      UserError: the template is wrong for the request, or exceeds a limit.
    """
    process = self._process
    timer = threading.Timer(MAX_SECONDS, process.kill)
    timer.daemon = True
    timer.start()
    try:
      process.stdin.write(json.dumps(request) + "\n")
      process.stdin.flush()
      line = process.stdout.readline()
    except BrokenPipeError:
      line = ""
    finally:
      timer.cancel()
    if not line:
      self._end()
      raise UserError(
        f"{self._origin}: it takes more than {MAX_SECONDS:.0f} s or too much memory; {_REMEDY}"
      )
    answer = json.loads(line)
    if "error" in answer:
      if request is self._setup:
        self._end()
      raise UserError(
        f"{self._origin}: {one_line(ValueError(answer['error']))}; change the "
        f"conversation, or {_REMEDY}"
      )
    return answer

  def _end(self) -> None:
    """End the process."""
    self._process.kill()
    self._process.wait()
    self._process.stdin.close()
    self._process.stdout.close()
    self._process = None

  def __del__(self):
    if getattr(self, "_process", None) is not None and self._owner == os.getpid():
      self._process.kill()
      self._process.wait()


_REMEDY = f"name a template instead, such as {', '.join(TEMPLATES)}"


class PublishedChat:
  """Writes conversations in the template that a vocabulary was published with.

  It has the methods of `Chat`.

  Raises:
    UserError: the vocabulary has no template, or splits special pieces that occur in text.
  """

  def __init__(self, vocabulary: Vocabulary):
    template = find_template_text(vocabulary)
    where = "config.task.template or --template"
    if template is None:
      raise UserError(
        f"{where}: found 'published', but the tokenizer has no chat template; {_REMEDY}"
      )
    if not vocabulary.specials_in_text:
      raise UserError(
        f"{where}: found 'published', but the tokenizer splits special pieces; {_REMEDY}"
      )
    self._vocabulary = vocabulary
    self._render = _renderer(vocabulary)
    pieces = vocabulary.pieces_of(sorted(vocabulary.special_ids))
    alternatives = "|".join(re.escape(piece) for piece in pieces if piece.strip())
    self._special = re.compile(rf"\s*({alternatives})")
    self._start = start_id(vocabulary)

  @functools.cached_property
  def known_name(self) -> str | None:
    """The template of `TEMPLATES` that writes turns in the same way, or None.

    The published one may begin with a start token, or with an instruction where the conversation
    has none.
    """
    eos, start = self._vocabulary.pieces_of([self._vocabulary.eos_id, self._start])
    texts = []
    for messages in _PROBES:
      try:
        texts.append((messages, self._render(messages, True)[0]))
      except UserError:  # many templates have no turn of the system
        continue
    for name, template in TEMPLATES.items():
      matches = []
      for messages, text in texts:
        if all(message.role in template.turns for message in messages):
          rendered = render_messages(template, messages, eos)
          matches.append(text.endswith(rendered.removeprefix(start)))
      if matches and all(matches):
        return name
    return None

  @functools.cached_property
  def end(self) -> int:
    """The id that ends an answer: the first special piece after it, or EOS."""
    text, _ = self._render(_PROBES[1], False)
    position = text.rfind(_ANSWER)
    piece = self._special.match(text, position + len(_ANSWER)) if position >= 0 else None
    if piece is None:
      return self._vocabulary.eos_id
    return int(self._vocabulary.encode(piece[1])[0])

  @property
  def facts(self) -> dict[str, Any]:
    """All that determines the ids besides the vocabulary, as JSON."""
    return {"published": hashlib.sha256(find_template_text(self._vocabulary).encode()).hexdigest()}

  def check(self, messages: Sequence[Message], where: str) -> Skip | None:
    """Return why a conversation teaches nothing: no answer, or as `check_prompt`; else None."""
    skip = self.check_prompt(messages, where)
    if skip is None and not any(message.role == ASSISTANT for message in messages):
      skip = Skip("no answer")
    return skip

  def check_prompt(self, messages: Sequence[Message], where: str) -> Skip | None:
    """Return why a conversation is unusable: an empty answer or a special piece; else None."""
    for message in messages:
      if message.role == ASSISTANT and not message.content.strip():
        return Skip("empty answer")
      if self._special.search(message.content):
        return Skip("special piece in a message")
    return None

  def __call__(self, messages: Sequence[Message]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of a conversation up to the end of its last answer.

    Returns:
      (ids int32 [n], int8 [n], 1 at the assistant's words).

    Raises:
      UserError: the template refuses the conversation, or does not write an answer as it is.
    """
    last = max(number for number, message in enumerate(messages) if message.role == ASSISTANT)
    messages = messages[: last + 1]
    text, spans = self._render(messages, False)
    if not spans:
      spans = self._find_answers(messages, text)
    ids, offsets = self._vocabulary.encode_with_offsets(text)
    first_n, end_n = np.asarray(offsets, np.int64).reshape(-1, 2).T
    learned = np.zeros(len(ids), np.int8)
    for begin, end in spans:
      # The first piece of an answer may include the space before it.
      learned[(begin < end_n) & (first_n < end) & (first_n < end_n)] = 1
    if not learned.any():
      raise UserError(f"the chat template writes no answer that can be learned; {_REMEDY}")
    length = int(np.flatnonzero(learned)[-1]) + 1
    first = int(ids[:1] == [self._start])
    return np.asarray(ids[first:length], np.int32), learned[first:length]

  def _find_answers(self, messages: Sequence[Message], text: str) -> list[tuple[int, int]]:
    """Return the characters of each answer, with the piece that ends it.

    An answer begins where the rendering of the messages before it ends.
    """
    spans = []
    position = 0
    for number, message in enumerate(messages):
      if message.role != ASSISTANT:
        continue
      if number:
        before, _ = self._render(messages[:number], True)
        position = max(position, len(os.path.commonprefix([before, text])))
      content = message.content.strip()
      content_position = text.find(content, position)
      if content_position < 0:
        raise UserError(
          f"the chat template does not write the answer {content[:40]!r} as it is; {_REMEDY}"
        )
      begin = position if number else content_position
      position = content_position + len(content)
      end_piece = self._special.match(text, position)
      if end_piece:
        position = end_piece.end()
      spans.append((begin, position))
    return spans

  def prompt(self, messages: Sequence[Message]) -> list[int]:
    """Return the ids from which an answer is generated, without the decoder's start token."""
    ids = self.prompt_with_start(messages)
    return ids[1:] if ids[:1] == [self._start] else ids

  def prompt_with_start(self, messages: Sequence[Message]) -> list[int]:
    """Return the ids from which an answer is generated, as the template writes them."""
    text, _ = self._render(messages, True)
    return [int(i) for i in self._vocabulary.encode(text)]


def _config(vocabulary: Vocabulary) -> dict[str, Any]:
  """Return the `tokenizer_config.json` of a published vocabulary, empty if it has none."""
  content = getattr(vocabulary, "original_files", {}).get(CONFIG, b"{}")
  text = content.decode("utf-8", "replace")
  return checked_json.parse_json(text, dict, CONFIG, "the config of a tokenizer")


@functools.lru_cache(4)
def _renderer(vocabulary: Vocabulary) -> Renderer:
  """Return the renderer of a vocabulary's template, with the special pieces as variables."""
  config = _config(vocabulary)
  variables = {}
  for name in _SPECIAL:
    piece = config.get(f"{name}_token")
    if isinstance(piece, dict):
      piece = piece.get("content")
    i = getattr(vocabulary, f"{name}_id", None)
    if piece is None and i is not None:
      piece = vocabulary.pieces_of([i])[0]
    if isinstance(piece, str):
      variables[f"{name}_token"] = piece
  return Renderer(find_template_text(vocabulary), variables, "the model's own chat template")
