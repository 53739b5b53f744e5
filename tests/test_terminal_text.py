"""No control character of data reaches a terminal."""

import io
import logging

import pytest

from t5x_like.corpora.job import describe_skipped
from t5x_like.errors import UserError, handle_errors
from t5x_like.inference import terminal
from t5x_like.runtime import process
from t5x_like.terminal_text import escape_controls

EVIL = "a\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b1m\u202e\r\x08b"


@pytest.mark.parametrize("text", ["tab\tand\nline", "é世界 – “x” 🙂", "\\x1b"])
def test_text_without_controls_is_not_changed(text):
  assert escape_controls(text) == text


def test_controls_become_escapes():
  assert escape_controls("\x1b[2J\x00\u2028") == r"\x1b[2J\x00\u2028"
  assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in escape_controls(EVIL))


def test_an_error_of_data_is_printed_without_controls(capsys):
  @handle_errors
  def main():
    raise UserError(f"in.jsonl: found the field {EVIL}")

  assert main() == 2
  err = capsys.readouterr().err
  assert "\x1b" not in err
  assert "\x9b" not in err
  assert r"\x1b]52" in err


def test_reasons_in_a_manifest_are_printed_without_them():
  assert describe_skipped({EVIL: 3}).startswith(r", 3 records skipped (a\x1b]52;c;")
  assert "\x1b" not in describe_skipped({EVIL: 3})


def test_output_and_warnings_are_printed_without_controls(capsys):
  process.log(f"3 records skipped ({EVIL})")
  record = logging.makeLogRecord({"msg": EVIL})
  assert "\x1b" not in capsys.readouterr().out + process._Formatter("warning: %(message)s").format(
    record
  )


class Talk:
  description = EVIL

  def __call__(self, messages, temperature):
    yield f"– {EVIL}"
    raise UserError(EVIL)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_answers_are_printed_without_them_in_any_encoding(encoding):
  content = io.BytesIO()
  out = io.TextIOWrapper(content, encoding=encoding)
  terminal.run(Talk(), 0.0, None, io.StringIO(f"hi\nhi again\n/temperature {EVIL}\n/quit\n"), out)
  output = content.getvalue()
  assert b"\x1b" not in output
  assert b"\x07" not in output
  assert output.count(b"error: ") == 2
  assert ("–".encode() in output) == (encoding == "utf-8")
