"""The summary, metrics, pictures and page of a run.

The modules that write and draw are found by name, so a run on text imports nothing that belongs to images.
"""

import pathlib

from t5x_like import slots
from t5x_like.runtime import process


def introduce(session, made, cost, step: int) -> None:
  """Print the summary of a run that begins or goes on; see `summary.text` for the arguments."""
  if process.first():
    process.say(slots.module("summary", __name__).text(session, made, cost, step))


def draw(workdir, config, parts, arrays, task, evaluated, groups) -> None:
  """Draw the pictures of a state and write them into the workdir's `pictures`; see `pictures.made` for the arguments.

  All processes have to call it; the first one writes.
  """
  if "image" not in task.features:
    return
  pictures = slots.module("pictures", __name__)
  made = pictures.made(config, parts, arrays, task, evaluated, groups)
  if process.first():
    pictures.write(workdir, made)


def write_page(workdir) -> pathlib.Path:
  """Write the page of a workdir and return its path; raise UserError as `page.write_report` does."""
  return slots.module("page", __name__).write_report(workdir)
