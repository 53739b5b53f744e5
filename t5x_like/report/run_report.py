"""Write the report of a run: the summary at its start, its pictures, and its page."""

import pathlib
import threading
from collections.abc import Callable

from t5x_like.errors import one_line
from t5x_like.runtime import process

PAGE_SECONDS = 120  # time limit of writing a page; the results of a run are saved before


def introduce(session, assembly, cost, step: int) -> None:
  """Print the summary of a run that starts or resumes; see `summary.summarize`."""
  from t5x_like.report import summary

  if process.is_first():
    process.log(summary.summarize(session, assembly, cost, step))


def draw(workdir, config, parts, arrays, task, eval_task, groups) -> None:
  """Draw the pictures of a state into the workdir's `pictures`; a task without images has none.

  All processes must call it; the first one writes. A failure is a warning. The arguments are those
  of `pictures.draw_pictures`.
  """
  if "image" not in task.features:
    return
  from t5x_like.report import pictures

  try:
    drawings = pictures.draw_pictures(config, parts, arrays, task, eval_task, groups)
    if process.is_first():
      pictures.write(workdir, drawings)
  except Exception as error:
    process.log(
      f"warning: {workdir}/pictures: not drawn: {type(error).__name__}: {one_line(error)[:300]}"
    )


def write_page(
  workdir, address=None, beat: Callable[[str], None] = lambda doing: None
) -> pathlib.Path | None:
  """Write the page of a workdir and return its path, or warn and return None.

  Args:
    address: the workdir's address, for the warning and the page's commands, if it differs.
    beat: called about once a second with a description of the activity.
  """
  from t5x_like.report import page

  outcome = {}

  def write() -> None:
    try:
      outcome["path"] = page.write_report(workdir, address)
    except BaseException as error:
      outcome["error"] = error

  # A daemon thread, so that a page that is late does not keep the process alive.
  thread = threading.Thread(target=write, name="report", daemon=True)
  thread.start()
  for _ in range(PAGE_SECONDS):
    beat("writing the report")
    thread.join(1.0)
    if not thread.is_alive():
      break
  if "path" in outcome:
    return outcome["path"]
  reason = f"not finished within {PAGE_SECONDS} s"
  if "error" in outcome:
    reason = f"{type(outcome['error']).__name__}: {one_line(outcome['error'])[:300]}"
  where = address or workdir
  process.log(
    f"warning: {where}/report.html: not written: {reason}; try python -m t5x_like.report {where}"
  )
  return None
