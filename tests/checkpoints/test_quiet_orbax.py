"""Background reads of a damaged step that fail later print no traceback."""

import subprocess
import sys

from tests.runs import REPO

_ABANDONED = """
import asyncio, sys
from t5x_like.checkpoints.orbax_steps import quiet_orbax
quiet_orbax()
text = "async def read(future):\\n  try:\\n    await future\\n  finally:\\n    raise ValueError('unseen')"
for file in ("/x/orbax/y.py", "/x/other/y.py"):
  made = {}
  exec(compile(text, file, "exec"), made)
  reading = made["read"](asyncio.Future(loop=asyncio.new_event_loop()))
  reading.send(None)
  del reading, made
  print(file, file=sys.stderr)
"""


def test_later_failures_of_reads_of_a_damaged_step_are_not_printed():
  process = subprocess.run(
    [sys.executable, "-c", _ABANDONED], cwd=REPO, capture_output=True, text=True
  )
  first, _, later_errors = process.stderr.partition("/x/orbax/y.py\n")
  assert "unseen" not in first, process.stderr
  assert "ValueError: unseen" in later_errors, process.stderr
