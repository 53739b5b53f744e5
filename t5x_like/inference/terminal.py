"""Hold a conversation in a terminal, or with messages from a pipe, one on each line."""

import contextlib
import sys
from collections.abc import Sequence
from typing import TextIO

from t5x_like.data.supervised.chat import ASSISTANT, Message
from t5x_like.errors import UserError
from t5x_like.inference.talk import Talk
from t5x_like.terminal_text import escape_controls

COMMANDS = "/reset, /temperature X, /system TEXT, /quit"


def run(talk: Talk, temperature: float, system: str | None, source: TextIO, out: TextIO) -> None:
  """Read messages and print answers until the input ends or is /quit."""
  with contextlib.suppress(ImportError):
    import readline  # noqa: F401 -- gives `input` a history
  is_terminal = source.isatty()
  if is_terminal:
    _show(f"{talk.description} ({COMMANDS}; ^C stops an answer)", out)
  else:
    print(talk.description, file=sys.stderr, flush=True)  # the output contains only answers
  history = _new_history(system)
  while (line := _read_line(source, is_terminal)) is not None:
    command, _, argument = line.partition(" ")
    if command == "/quit":
      return
    if command == "/reset":
      history = _new_history(system)
    elif command == "/system":
      system = argument or None
      history = _new_history(system)
    elif command == "/temperature":
      temperature = _parse_temperature(argument, temperature, out)
    elif command.startswith("/") and command[1:].isalpha():
      _show(f"{command}: no such command; there are {COMMANDS}", out)
    elif line.strip():
      history = _answer(talk, [*history, Message("user", line)], temperature, out)


def _answer(
  talk: Talk, messages: list[Message], temperature: float, out: TextIO
) -> Sequence[Message]:
  """Print the answer as it comes, and return the conversation with it.

  If the message is refused, the conversation is returned without it.
  """
  pieces = []
  try:
    for piece in talk(messages, temperature):
      pieces.append(piece)
      _show(piece, out, end="")
  except UserError as error:
    _show(f"error: {error}", out)
    return messages[:-1]
  except KeyboardInterrupt:
    _show(" …", out, end="")
  _show("", out)
  return [*messages, Message(ASSISTANT, "".join(pieces))]


def _show(text: str, out: TextIO, end: str = "\n") -> None:
  """Print text without control characters, and with ? for characters the encoding lacks."""
  encoding = out.encoding or "utf-8"
  printable = escape_controls(text).encode(encoding, "replace").decode(encoding)
  print(printable, end=end, file=out, flush=True)


def _read_line(source: TextIO, is_terminal: bool) -> str | None:
  """Return the next line without its end; None at the end of the input."""
  try:
    if is_terminal:
      return input("> ")
    line = source.readline()
    return line.rstrip("\n") if line else None
  except (EOFError, KeyboardInterrupt):
    return None


def _new_history(system: str | None) -> list[Message]:
  return [Message("system", system)] if system else []


def _parse_temperature(text: str, current: float, out: TextIO) -> float:
  """Return the temperature of a command; print an error and return the current one if invalid."""
  try:
    value = float(text)
    if 0 <= value <= 1e3:
      return value
  except ValueError:
    pass
  _show(f"/temperature {text}: expected a number from 0 to 1000; it stays {current:g}", out)
  return current
