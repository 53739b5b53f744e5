"""Save a model's answers as they are given, so that an evaluation that is killed loses few.

The file is JSON lines, one for each answer, to which process 0 appends. A line holds `key`, a
digest of all that the answer depends on; `where`, the file and line of the question; and `answer`.
Answers of other models, prompts and settings may share the file.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from t5x_like.errors import UserError, one_line
from t5x_like.files import local
from t5x_like.files.local import LocalPath
from t5x_like.parallel import distributed
from t5x_like.runtime import process

_RECALLED_AT_ONCE = 256  # answers in a message from process 0 to the others


class LogError(UserError):
  """Answers cannot be written, to whichever question."""


@dataclasses.dataclass(frozen=True)
class SavedAnswer:
  """A line of the file: an answer, with the key and the place of its question."""

  key: str
  where: str
  answer: Any


class AnswerLog:
  """The answers in a file; all processes must call its methods in the same order.

  An incomplete last line, from a killed program or a full disk, is dropped.

  Args:
    path: a local file, which may not exist yet.

  Raises:
    UserError: the file cannot be read, or a complete line is no answer.
  """

  def __init__(self, path: pathlib.Path):
    self._path = path
    self._answers: dict[str, Any] = {}  # filled in process 0, which sends them to the others

    def read() -> None:
      self._answers = _read_answers(path)

    distributed.broadcast_from_first(read)

  def recall(self, keys: Sequence[str]) -> dict[str, Any]:
    """Return the saved answers of keys, in every process; keys without one are left out."""
    recalled: dict[str, Any] = {}
    for start in range(0, len(keys), _RECALLED_AT_ONCE):
      some_keys = keys[start : start + _RECALLED_AT_ONCE]

      def select(some_keys=some_keys) -> dict[str, Any]:
        return {key: self._answers[key] for key in some_keys if key in self._answers}

      recalled |= distributed.broadcast_from_first(select)
    return recalled

  def append(self, answers: Sequence[SavedAnswer]) -> None:
    """Add answers to the file from process 0, and return when they are on the disk.

    Raises:
      LogError: they cannot be written.
    """
    if not process.is_first():
      return
    lines = []
    for saved in answers:
      self._answers[saved.key] = saved.answer
      lines.append(json.dumps(dataclasses.asdict(saved), allow_nan=False).encode())
    try:
      self._path.parent.mkdir(parents=True, exist_ok=True)
      local.append_line(self._path, b"\n".join(lines))
    except OSError as error:
      raise LogError(
        f"{self._path}: answers cannot be written: {error.strerror or one_line(error)}; free space "
        "or fix the permissions, and repeat the command"
      ) from error


def _read_answers(path: pathlib.Path) -> dict[str, Any]:
  """Return the answers of a file by key; remove an incomplete last line from the file."""
  content = local.read_content(path)
  if content is None:
    return {}
  complete = content[: content.rfind(b"\n") + 1]
  answers = {}
  for number, line in enumerate(complete.split(b"\n")[:-1], start=1):
    try:
      saved = SavedAnswer(**json.loads(line))
    except (ValueError, TypeError, RecursionError) as error:
      raise UserError(
        f"{path}:{number}: found no saved answer ({one_line(error)[:100]}), expected JSON with "
        "key, where and answer; delete the line to ask its question again"
      ) from None
    answers[str(saved.key)] = saved.answer
  if len(complete) < len(content):
    LocalPath(path).write_bytes(complete)
  return answers
