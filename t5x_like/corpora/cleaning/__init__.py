"""Cleaning steps of a corpus, one file each, found by name: `--clean=c4,exact,near,spans`.

A file's `Step` filters each page by itself (`Filter`) or removes repeated texts of a split
(`Duplicates`). Steps apply in the order of their `stage`, in whatever order they are listed. All
are pure functions of texts and hashes; `corpora/duplicates.py` applies them to a split.
"""

import abc
import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from t5x_like import slots
from t5x_like.errors import UserError

# (text, or None if removed; why it is removed; amounts removed)
CleanResult = tuple[str | None, str | None, Counter]
# key uint64 [n], position int64 [n], and further arrays that a comparison needs
Entries = dict[str, np.ndarray]


class Step(abc.ABC):
  """The base of cleaning steps, which are frozen dataclasses.

  Attributes:
    stage: position among the steps.
    edition: version of the step, 0 at first. Increment it when the step removes different texts
      than before. Manifests record it.
    name: name of the step's file.
  """

  stage: ClassVar[int]
  edition: ClassVar[int] = 0

  @property
  def name(self) -> str:
    return type(self).__module__.rpartition(".")[2]


class Filter(Step):
  """A step that cleans each page independently of the others."""

  @abc.abstractmethod
  def clean(self, text: str) -> CleanResult:
    """Clean a page."""

  @abc.abstractmethod
  def is_long_enough(self, text: str) -> bool:
    """Return whether a page from which a later step has removed text is still long enough."""


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A search for duplicates in a split, which groups entries by key and compares each group.

  Attributes:
    name: name of the comparison, and of the directory that holds the positions it marked.
    entries: function that returns the entries to compare. Its arguments are the signatures [n, ...]
      of a part, their positions int64 [n], and the positions that the step's previous comparison
      marked.
    match: function that marks duplicates: (part, key, position int64 [N], ...) -> bool [N]. It
      receives all entries of some keys and compares only entries of the same key, in the order of
      the corpus. Entries may therefore be divided among machines by key in any way, and arrive in
      any order.
  """

  name: str
  entries: Callable[[np.ndarray, np.ndarray, np.ndarray], Entries]
  match: Callable[..., np.ndarray]


class Duplicates(Step):
  """A step that compares all pages of a split and keeps only the first of several duplicates.

  Attributes:
    comparisons: comparisons of the step, in order; the last one marks the duplicates.
    removes_pages: the step removes marked pages completely, so later steps do not compare them.
  """

  comparisons: ClassVar[tuple[Comparison, ...]]
  removes_pages: ClassVar[bool] = True

  @abc.abstractmethod
  def sign(self, text: str) -> np.ndarray:
    """Return the signatures of a page: [n, ...], for any n."""

  @abc.abstractmethod
  def remove_marked(self, text: str, marked_n: np.ndarray) -> CleanResult:
    """Remove duplicates from a page that has at least one marked signature."""

  def mark_repeats_in_part(self, signatures: np.ndarray) -> np.ndarray:
    """Mark what repeats within one part, of its signatures [n, ...]: bool [n]."""
    return np.zeros(len(signatures), bool)


def names() -> list[str]:
  """Return the names of all steps."""
  return slots.names(sys.modules[__name__])


def parse_steps(
  where: str, step_names: str, arguments: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[Step, ...]:
  """Make cleaning steps.

  Args:
    where: flag or key that names the steps, for messages.
    step_names: names of the steps, separated by commas.
    arguments: arguments of each step, by its name.

  Returns:
    The steps in the order of application.

  Raises:
    UserError: a name is unknown.
  """
  steps = {}
  for name in filter(None, step_names.split(",")):
    if name not in names():
      raise UserError(
        f"{where}: found {name!r}, expected some of {', '.join(names())}, separated by commas"
      )
    step_class = slots.find(where, name, sys.modules[__name__], "Step")
    steps[name] = step_class(**(arguments or {}).get(name, {}))
  return tuple(sorted(steps.values(), key=lambda step: step.stage))
