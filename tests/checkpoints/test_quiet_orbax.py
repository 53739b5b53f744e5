"""Background reads that orbax abandons at a damaged step print no traceback when they fail."""

import subprocess
import sys

from tests.runs import REPO

# Abandon a coroutine that fails when it is closed, first in a file of orbax, then in another file.
# Only the second failure may be printed.
_PROGRAM = """
import asyncio, sys
from t5x_like.checkpoints.orbax_steps import quiet_orbax
quiet_orbax()
text = "async def read(future):\\n  try:\\n    await future\\n  finally:\\n    raise ValueError('unseen')"
for file in ("/x/orbax/y.py", "/x/other/y.py"):
  namespace = {}
  exec(compile(text, file, "exec"), namespace)
  coroutine = namespace["read"](asyncio.Future(loop=asyncio.new_event_loop()))
  coroutine.send(None)
  del coroutine, namespace
  print(file, file=sys.stderr)
"""


def test_only_failures_of_abandoned_reads_in_orbax_are_hidden():
  process = subprocess.run(
    [sys.executable, "-c", _PROGRAM], cwd=REPO, capture_output=True, text=True
  )
  orbax_errors, _, other_errors = process.stderr.partition("/x/orbax/y.py\n")
  assert "unseen" not in orbax_errors, process.stderr
  assert "ValueError: unseen" in other_errors, process.stderr
