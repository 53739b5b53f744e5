"""The summary, metrics, pictures and page of a run.

The modules that write and draw are found by name, so a run on text imports nothing that belongs to
images.
"""

import pathlib
import threading
from collections.abc import Callable

from t5x_like import slots
from t5x_like.errors import one_line
from t5x_like.runtime import process

PAGE_SECONDS = 120  # of a run's end or an evaluation's; its results are saved before


def introduce(session, made, cost, step: int) -> None:
  """Print the summary of a run that begins or goes on; see `summary.text` for the arguments."""
  if process.is_first():
    process.log(slots.module("summary", __name__).text(session, made, cost, step))


def draw(workdir, config, parts, arrays, task, evaluated, groups) -> None:
  """Draw the pictures of a state and write them into the workdir's `pictures`; see `pictures.assembly`
  for the arguments.

  All processes have to call it; the first one writes. Pictures that fail are a warning.
  """
  if "image" not in task.features:
    return
  pictures = slots.module("pictures", __name__)
  try:
    made = pictures.assembly(config, parts, arrays, task, evaluated, groups)
    if process.is_first():
      pictures.write(workdir, made)
  except Exception as error:
    process.log(
      f"warning: {workdir}/pictures: not drawn: {type(error).__name__}: {one_line(error)[:300]}"
    )


def write_page(
  workdir, address=None, beat: Callable[[str], None] = lambda doing: None
) -> pathlib.Path | None:
  """Write the page of a workdir and return its path; a page that fails or is late is a warning and
  None.

  Args:
    address: the workdir's address, for the warning, if it differs.
    beat: called about once a second with a description of the activity.
  """
  page = slots.module("page", __name__)
  outcome = {}

  def write() -> None:
    try:
      outcome["path"] = page.write_report(workdir)
    except BaseException as error:
      outcome["error"] = error

  # a late one does not outlast the process
  thread = threading.Thread(target=write, name="report", daemon=True)
  thread.start()
  for _ in range(PAGE_SECONDS):
    beat("writing the report")
    thread.join(1.0)
    if not thread.is_alive():
      break
  if "path" in outcome:
    return outcome["path"]
  reason = f"not done within {PAGE_SECONDS} s"
  if "error" in outcome:
    reason = f"{type(outcome['error']).__name__}: {one_line(outcome['error'])[:300]}"
  place = address or workdir
  process.log(
    f"warning: {place}/report.html: not written: {reason}; try python -m t5x_like.report {place}"
  )
  return None
