"""The exit code of a program does not depend on the reader of its output."""

import errno
import os
import pathlib
import subprocess
import sys

import pytest

from t5x_like.files.streams import GuardedStream

REPO = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = f"""
import sys
sys.path[:0] = [{str(REPO)!r}]
from t5x_like.errors import UserError, handle_errors

@handle_errors(prints_results=sys.argv[1] == "results")
def main():
  for line in range(20_000):
    print("line", line, flush=line % 1_000 == 0)
  open(sys.argv[2], "w").write("saved")
  print("the end")
  if sys.argv[1] == "refused":
    raise UserError("config.x: wrong")

sys.exit(main())
"""
LOST_OUTPUT = "stdout cannot be written: No space left on device; output was lost\n"


@pytest.mark.parametrize(
  "kind, shell, code, message",
  [
    ("log", "{} > /dev/full", 0, f"warning: {LOST_OUTPUT}"),
    ("results", "{} > /dev/full", 2, f"error: {LOST_OUTPUT}"),
    ("refused", "{} > /dev/full", 2, f"error: config.x: wrong\nwarning: {LOST_OUTPUT}"),
    ("log", "{} | head -1 > /dev/null", 0, ""),
    ("results", "{} | head -1 > /dev/null", 0, ""),
    ("results", "{} >&-", 0, ""),
    ("results", "{} > /dev/full 2>&1", 2, ""),
  ],
)
def test_work_goes_on_when_output_cannot_be_written(kind, shell, code, message, tmp_path):
  command = shell.format(f"'{sys.executable}' -c \"$PROGRAM\" {kind} '{tmp_path}/file'")
  process = subprocess.run(
    ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
    env=os.environ | {"PROGRAM": PROGRAM},
    stderr=subprocess.PIPE,
    text=True,
    timeout=60,
  )
  assert process.returncode == code
  assert process.stderr == message
  assert (tmp_path / "file").read_text() == "saved"


def test_pipe_that_is_full_for_a_moment_stays_open():
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  with open(reader, "rb", buffering=0) as output, open(writer, "w", buffering=1) as file:
    stream = GuardedStream(file)
    while True:
      try:
        os.write(writer, bytes(4096))
      except BlockingIOError:
        break
    stream.write("lost\n")
    output.read(2**20)
    stream.write("read\n")
    stream.flush()
    assert output.read(2**20).endswith(b"read\n")
    assert stream.error is None


def test_vanished_terminal_breaks_the_stream_but_raises_nothing():
  class VanishedTerminal:
    def write(self, text):
      raise OSError(errno.EIO, "Input/output error")

    def fileno(self):
      raise ValueError

  stream = GuardedStream(VanishedTerminal())
  stream.writelines(["a", "b"])
  assert stream.is_broken
  assert stream.error.errno == errno.EIO
