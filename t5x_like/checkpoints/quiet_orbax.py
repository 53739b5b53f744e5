"""Silences orbax and its threads on the console; `training.checkpoint` reports what matters."""

import functools
import logging
import os
import sys

from absl import logging as absl_logging


@functools.cache
def quiet_orbax() -> None:
  """Drops orbax's log lines, and what its event loop prints after a failed save; acts once per process."""
  orbax = f"{os.sep}orbax{os.sep}"
  absl_logging.get_absl_logger().addFilter(lambda record: orbax not in record.pathname)
  # Coroutines of a save that failed may be collected before the failure is noticed.
  logging.getLogger("asyncio").addFilter(lambda record: orbax not in record.getMessage())
  show = sys.unraisablehook

  def unraisablehook(raised):
    # Late writes of a failed save call back into a closed event loop, and tensorstore prints each of them. Of the reads
    # of a damaged step, all that fail after the first are collected unseen.
    late = raised.exc_type is RuntimeError and str(raised.exc_value) == "Event loop is closed"
    unseen = orbax in getattr(getattr(raised.object, "cr_code", None), "co_filename", "")
    if not (late or unseen):
      show(raised)

  sys.unraisablehook = unraisablehook


def quiet_abandoned_tasks() -> None:
  """Drops asyncio's reports of a failed save's unfinished coroutines."""
  for name in ("asyncio", "concurrent.futures"):
    logging.getLogger(name).setLevel(logging.CRITICAL)
