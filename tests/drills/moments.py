"""Seeds of drills, and programs that are killed at an exact moment of their own.

`T5X_LIKE_SEED` repeats what a drill drew; `T5X_LIKE_KILLS` and `T5X_LIKE_STEPS` make drills as long
as wanted.
"""

import os
import random
import sys

from tests.runs import REPO

_PROGRAM = """
import os, resource, signal, sys
sys.path[:0] = [{repo!r}]
event, name, half = {event!r}, {name!r}, {half!r}

def watch(found, arguments):
  if found != event or not any(name in str(x) for x in arguments[:2]):
    return
  if found == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
    return
  if half:  # the kernel ends the process in the middle of a write: beyond so many bytes
    there = os.path.getsize(arguments[0]) if os.path.exists(arguments[0]) else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (there + 20, resource.RLIM_INFINITY))
  else:
    os.kill(os.getpid(), signal.SIGKILL)

signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # only the main thread may; Python ignores it
sys.addaudithook(watch)
{also}
import {module} as command
from t5x_like import command_line
command_line.run_program(command.main)
"""


def seeded_random(name: str) -> random.Random:
  """Return a drill's random numbers and print their seed, which `T5X_LIKE_SEED` sets."""
  seed = os.environ.get("T5X_LIKE_SEED") or str(random.SystemRandom().randrange(2**32))
  print(f"{name}: T5X_LIKE_SEED={seed}", flush=True)
  return random.Random(f"{seed} {name}")


def kills(few: int, share: int = 1) -> int:
  """Return the kills of a drill: `few`, or the larger share of `T5X_LIKE_KILLS`."""
  return max(few, int(os.environ.get("T5X_LIKE_KILLS") or 0) // share)


def steps(few: int) -> int:
  """Return how many steps a long drill takes."""
  return int(os.environ.get("T5X_LIKE_STEPS") or few)


def kill_at(
  command: list[str], event: str, name: str, *, half: bool = False, also: str = ""
) -> list[str]:
  """Return a command (`python -m MODULE …`) that is killed at an event of Python's audit about a
  file.

  Args:
    event: `open` (for writing) or `os.rename`.
    name: a part of the file's path.
    half: whether it is killed a little later, when it has written twenty bytes of the file.
    also: code that comes first.
  """
  program = _PROGRAM.format(
    repo=str(REPO), event=event, name=name, half=half, also=also, module=command[2]
  )
  return [sys.executable, "-c", program, *command[3:]]
