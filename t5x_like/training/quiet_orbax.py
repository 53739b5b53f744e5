"""Keeps orbax and its threads from talking on the console; what matters of it is said by `training.checkpoint`."""

import functools
import logging
import os
import sys

from absl import logging as absl_logging


@functools.cache
def quiet_orbax() -> None:
  """Drops orbax's log lines, and what its event loop prints when a failed save is abandoned; once per process."""
  orbax = f"{os.sep}orbax{os.sep}"
  absl_logging.get_absl_logger().addFilter(lambda record: orbax not in record.pathname)
  # Coroutines of a save that failed may be collected before the failure is noticed.
  logging.getLogger("asyncio").addFilter(lambda record: orbax not in record.getMessage())
  show = sys.unraisablehook

  def unraisablehook(raised):
    # Writes of a failed save that end later call back into a loop that is gone: tensorstore prints each of them.
    if not (raised.exc_type is RuntimeError and str(raised.exc_value) == "Event loop is closed"):
      show(raised)

  sys.unraisablehook = unraisablehook


def quiet_abandoned_tasks() -> None:
  """After a failed save: its unfinished coroutines are reported by asyncio as they are collected; drop that too."""
  for name in ("asyncio", "concurrent.futures"):
    logging.getLogger(name).setLevel(logging.CRITICAL)
