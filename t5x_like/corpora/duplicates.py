"""Removal of duplicates in a whole split: items are signed by part, compared step by step, and
marked by part.

A comparison is a group-by: `entries` returns the keys of a part, `matched` marks duplicates in any
set of complete keys, and `save` collects a part's marks. Every engine calls these three functions,
so all give the same result. The steps (`cleaning/`) say what the keys are and which entries of a
key are duplicates.

Each comparison leaves one file per part in the job's progress directory and, at its end, a file
`done`.
"""

import concurrent.futures
from collections.abc import Iterable, Iterator

import numpy as np

from t5x_like.corpora import progress_files
from t5x_like.corpora.cleaning import Comparison, Duplicates, Entries
from t5x_like.corpora.job import DuplicateMarks, Job
from t5x_like.errors import UserError
from t5x_like.files.paths import AnyPath

MarkedPlaces = list[tuple[int, np.ndarray]]  # parts, and places in each


def duplicate_steps(job: Job) -> list[Duplicates]:
  """Return the steps of a job that remove duplicates, in order."""
  return [step for step in job.kind.steps if isinstance(step, Duplicates)]


def missing_comparisons(job: Job) -> list[Comparison]:
  """Return the comparisons to make: the first one that is not complete and intact, and all after
  it."""
  wanted = [one for step in duplicate_steps(job) for one in step.comparisons]
  for number, one in enumerate(wanted):
    paths = (_path(job, one.name, part) for part in range(job.kind.num_parts))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
      if not _done(job, one).exists() or None in pool.map(progress_files.load, paths):
        return wanted[number:]
  return []


def sign_part(job: Job, number: int) -> None:
  """Save the signatures of a part's items, unless they exist."""
  path = _path(job, "signatures", number)
  if progress_files.load(path) is None:
    with progress_files.mark_writing(job.progress):
      _sign(job, number, path)


def _sign(job: Job, number: int, path: AnyPath) -> None:
  pulse = progress_files.Pulse(job.progress / "now" / "signatures" / f"{number:06d}")
  kept: list[bool] = []
  comparing = duplicate_steps(job)
  signed = {step.name: [step.sign("")[:0]] for step in comparing}
  for item in job.kind.read(number):
    text = job.kind.clean(item)[0]
    kept.append(text is not None)
    if text is not None:
      for step in comparing:
        signed[step.name].append(step.sign(text))
    pulse(len(kept))
  arrays = {"kept": np.array(kept, bool)}
  for name, pages in signed.items():
    arrays |= {
      name: np.concatenate(pages),
      f"{name}_lengths": np.array([len(page) for page in pages[1:]], np.int64),
    }
  progress_files.save_arrays(path, **arrays)
  pulse(len(kept), done=True)


def begin_comparison(job: Job, one: Comparison) -> None:
  """Delete the completion marker."""
  _done(job, one).unlink(missing_ok=True)


def load_entries(job: Job, one: Comparison, number: int) -> Entries:
  """Return a part's entries."""
  found = _arrays(job, "signatures", number)
  for step, live_n in _live(job, number, found):
    if one in step.comparisons:
      before = step.comparisons[: step.comparisons.index(one)]
      marked = _places(job, before[-1], number) if before else np.zeros(0, np.int64)
      return one.entries(found[step.name][live_n], live_n, marked)
  raise ValueError(f"no step of the job compares {one.name}")


def match_entries(one: Comparison, pieces: Iterable[tuple[int, Entries]]) -> MarkedPlaces:
  """Mark duplicates; `pieces`, pairs of a part and entries of it, must contain every entry of each
  key."""
  pieces = sorted(
    ((part, found) for part, found in pieces if found["key"].size), key=lambda piece: piece[0]
  )
  if not pieces:
    return []
  part_N = np.concatenate([np.full(found["key"].size, part) for part, found in pieces])
  found = {name: np.concatenate([found[name] for _, found in pieces]) for name in pieces[0][1]}
  marked_N = one.match(part_N, **found)
  if not marked_N.any():
    return []
  part_p, first_p = np.unique(part_N[marked_N], return_index=True)
  return list(zip(part_p.tolist(), np.split(found["place"][marked_N], first_p[1:]), strict=True))


def save_marks(job: Job, one: Comparison, number: int, places: Iterable[np.ndarray]) -> None:
  """Save the marked places of a part."""
  with progress_files.mark_writing(job.progress):
    found = np.unique(np.concatenate([np.zeros(0, np.int64), *places]))
    progress_files.save_arrays(_path(job, one.name, number), places=found)


def end_comparison(job: Job, one: Comparison) -> None:
  """Record that the comparison is complete."""
  progress_files.save(_done(job, one), b"")


def load_marks(job: Job, number: int) -> dict[str, DuplicateMarks]:
  """Return the marks of a part's items by step."""
  if not duplicate_steps(job):
    return {}
  found = _arrays(job, "signatures", number)
  marks = {}
  for step, live_n in _live(job, number, found):
    marked_n = np.zeros(len(found[step.name]), bool)
    marked_n[_marked(job, number, step, found, live_n)] = True
    lengths_D = np.zeros(found["kept"].size, np.int64)
    lengths_D[found["kept"]] = found[f"{step.name}_lengths"]
    marks[step.name] = DuplicateMarks(marked_n, np.concatenate([[0], np.cumsum(lengths_D)]))
  return marks


def _live(
  job: Job, number: int, found: dict[str, np.ndarray]
) -> Iterator[tuple[Duplicates, np.ndarray]]:
  """Yield each step and the places of a part's signatures of pages that no earlier step has
  removed."""
  live_P = np.ones(np.count_nonzero(found["kept"]), bool)
  for step in duplicate_steps(job):
    page_n = np.repeat(np.arange(live_P.size), found[f"{step.name}_lengths"])
    live_n = np.flatnonzero(live_P[page_n])
    yield step, live_n
    if step.removes_pages:
      live_P[page_n[_marked(job, number, step, found, live_n)]] = False


def _marked(
  job: Job, number: int, step: Duplicates, found: dict[str, np.ndarray], live_n: np.ndarray
) -> np.ndarray:
  """Return the places of a part's signatures that a step marks."""
  return np.union1d(
    live_n[step.mark_repeats_in_part(found[step.name][live_n])],
    _places(job, step.comparisons[-1], number),
  )


def _places(job: Job, one: Comparison, number: int) -> np.ndarray:
  return _arrays(job, one.name, number)["places"]


def _arrays(job: Job, kind: str, number: int) -> dict[str, np.ndarray]:
  path = _path(job, kind, number)
  found = progress_files.load_arrays(path)
  if found is None:
    raise UserError(f"{path}: missing or damaged; run the same command again")
  return found


def _path(job: Job, kind: str, number: int) -> AnyPath:
  return job.progress / kind / f"{number:06d}"


def _done(job: Job, one: Comparison) -> AnyPath:
  return job.progress / one.name / "done"
