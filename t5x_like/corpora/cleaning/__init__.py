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
Entries = dict[str, np.ndarray]  # key uint64 [n], place int64 [n], and what else a comparison needs


class Step(abc.ABC):
  """The base of cleaning steps, which are frozen dataclasses.

  Attributes:
    stage: position among the steps.
    edition: edition of what the step removes, recorded in manifests; 0 if there has been one only.
    name: the name of the step's file.
  """

  stage: ClassVar[int]
  edition: ClassVar[int] = 0

  @property
  def name(self) -> str:
    return type(self).__module__.rpartition(".")[2]


class Filter(Step):
  """A step that cleans each page by itself."""

  @abc.abstractmethod
  def clean(self, text: str) -> CleanResult:
    """Clean a page."""

  @abc.abstractmethod
  def is_long_enough(self, text: str) -> bool:
    """Return whether a page from which a later step has removed text is still long enough."""


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A group-by over a split.

  Attributes:
    name: name of the comparison and of the directory of its marks.
    entries: returns the entries to compare, from the signatures [n, ...] of a part, their places
      int64 [n], and the places that the step's previous comparison marked.
    match: marks entries of some keys, all entries of each: (part, key, place int64 [N], ...) ->
      bool [N]. Only entries of the same key are compared, in the order of the corpus. They may
      therefore be divided among machines by key in any way, and arrive in any order.
  """

  name: str
  entries: Callable[[np.ndarray, np.ndarray, np.ndarray], Entries]
  match: Callable[..., np.ndarray]


class Duplicates(Step):
  """A step that compares all pages of a split and removes duplicates; the first of several stays.

  Attributes:
    comparisons: the comparisons to make, in order; the marks of the last one are duplicates.
    removes_pages: whether marked pages are removed whole, so that later steps do not compare them.
  """

  comparisons: ClassVar[tuple[Comparison, ...]]
  removes_pages: ClassVar[bool] = True

  @abc.abstractmethod
  def sign(self, text: str) -> np.ndarray:
    """Return the signatures of a page: [n, ...], for any n."""

  @abc.abstractmethod
  def remove_marked(self, text: str, marked_n: np.ndarray) -> CleanResult:
    """Remove duplicates from a page, at least one of whose signatures is marked."""

  def mark_repeats_in_part(self, signatures: np.ndarray) -> np.ndarray:
    """Mark duplicates within a part: its signatures [n, ...] -> bool [n].

    They need no comparison with other parts.
    """
    return np.zeros(len(signatures), bool)


def names() -> list[str]:
  return slots.names(sys.modules[__name__])


def parse_steps(
  where: str, names_with_commas: str, arguments: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[Step, ...]:
  """Make cleaning steps.

  Args:
    where: the flag or key, for messages.
    names_with_commas: the names of the steps.
    arguments: arguments of steps, by name.

  Returns:
    The steps in the order of application.
  """
  steps = {}
  for name in filter(None, names_with_commas.split(",")):
    if name not in names():
      raise UserError(
        f"{where}: found {name!r}, expected some of {', '.join(names())}, with commas"
      )
    step_class = slots.find(where, name, sys.modules[__name__], "Step")
    steps[name] = step_class(**(arguments or {}).get(name, {}))
  return tuple(sorted(steps.values(), key=lambda step: step.stage))
