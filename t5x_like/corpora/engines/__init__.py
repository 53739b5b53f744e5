"""Engines, which build the parts of a job, one a file, found by name.

`--engine=processes` names one. A file's `Engine` takes the number of workers of this machine and
the options of a pipeline.
"""

import abc
from collections.abc import Sequence
from typing import ClassVar

from t5x_like.corpora.cleaning import Comparison
from t5x_like.corpora.job import Job


class Engine(abc.ABC):
  """The base of engines. All leave the same files.

  Attributes:
    takes_options: the engine accepts further options, as on a command line.
  """

  takes_options: ClassVar[bool] = False

  @abc.abstractmethod
  def __init__(self, workers: int, options: Sequence[str] = ()):
    """Store the arguments."""

  @abc.abstractmethod
  def sign(self, job: Job) -> None:
    """Call `duplicates.sign_part` for every part."""

  @abc.abstractmethod
  def compare(self, job: Job, comparison: Comparison) -> None:
    """Make a comparison of all parts with the functions of `duplicates.py`."""

  @abc.abstractmethod
  def make(self, job: Job) -> None:
    """Call `building.make_part` for every part."""
