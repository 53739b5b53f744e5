"""Find duplicates in a whole split: sign the items of each part, compare them and save marks.

A comparison is a group-by: `load_entries` returns the keys of a part, `match_entries` marks
duplicates in any set of complete keys, and `save_marks` collects a part's marks. Every engine calls
these three functions, so all give the same result. The steps (`cleaning/`) define the keys and
which entries of a key are duplicates.

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

MarkedPositions = list[tuple[int, np.ndarray]]  # (part, marked positions of the part)


def duplicate_steps(job: Job) -> list[Duplicates]:
  """Return the steps of a job that remove duplicates, in order."""
  return [step for step in job.kind.steps if isinstance(step, Duplicates)]


def missing_comparisons(job: Job) -> list[Comparison]:
  """Return the first comparison that is not complete and intact, and all after it."""
  comparisons = [comparison for step in duplicate_steps(job) for comparison in step.comparisons]
  for number, comparison in enumerate(comparisons):
    paths = (_path(job, comparison.name, part) for part in range(job.kind.num_parts))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
      is_ended = _end_marker(job, comparison).exists()
      if not is_ended or None in pool.map(progress_files.load, paths):
        return comparisons[number:]
  return []


def sign_part(job: Job, number: int) -> None:
  """Save the signatures of a part's items, unless they exist."""
  path = _path(job, "signatures", number)
  if progress_files.load(path) is None:
    with progress_files.mark_writing(job.progress):
      _sign(job, number, path)


def _sign(job: Job, number: int, path: AnyPath) -> None:
  """Save the signatures of a part's cleaned texts for every step that compares them."""
  pulse = progress_files.Pulse(job.progress / "now" / "signatures" / f"{number:06d}")
  is_kept: list[bool] = []
  steps = duplicate_steps(job)
  # The first array, which is empty, has the signatures' shape and dtype if there is no page.
  signatures = {step.name: [step.sign("")[:0]] for step in steps}
  for item in job.kind.read(number):
    text = job.kind.clean(item)[0]
    is_kept.append(text is not None)
    if text is not None:
      for step in steps:
        signatures[step.name].append(step.sign(text))
    pulse(len(is_kept))
  arrays = {"kept": np.array(is_kept, bool)}
  for name, pages in signatures.items():
    arrays[name] = np.concatenate(pages)
    arrays[f"{name}_lengths"] = np.array([len(page) for page in pages[1:]], np.int64)
  progress_files.save_arrays(path, **arrays)
  pulse(len(is_kept), done=True)


def begin_comparison(job: Job, comparison: Comparison) -> None:
  """Delete the completion marker of a comparison."""
  _end_marker(job, comparison).unlink(missing_ok=True)


def load_entries(job: Job, comparison: Comparison, number: int) -> Entries:
  """Return the entries of a part that a comparison needs."""
  arrays = _load_arrays(job, "signatures", number)
  for step, live_n in _live_positions(job, number, arrays):
    if comparison in step.comparisons:
      earlier = step.comparisons[: step.comparisons.index(comparison)]
      marked_n = np.zeros(0, np.int64)
      if earlier:
        marked_n = _load_marked_positions(job, earlier[-1], number)
      return comparison.entries(arrays[step.name][live_n], live_n, marked_n)
  raise ValueError(f"no step of the job compares {comparison.name}")


def match_entries(comparison: Comparison, pieces: Iterable[tuple[int, Entries]]) -> MarkedPositions:
  """Mark duplicates among entries.

  Args:
    comparison: comparison whose `match` is applied.
    pieces: pairs of a part and entries of the part. All pieces together have every entry of each
      key that occurs.
  """
  nonempty = [(part, entries) for part, entries in pieces if entries["key"].size]
  nonempty.sort(key=lambda piece: piece[0])
  if not nonempty:
    return []
  part_N = np.concatenate([np.full(entries["key"].size, part) for part, entries in nonempty])
  _, first_entries = nonempty[0]
  joined = {}
  for name in first_entries:
    joined[name] = np.concatenate([entries[name] for _, entries in nonempty])
  marked_N = comparison.match(part_N, **joined)
  if not marked_N.any():
    return []
  part_p, first_p = np.unique(part_N[marked_N], return_index=True)
  positions = np.split(joined["position"][marked_N], first_p[1:])
  return list(zip(part_p.tolist(), positions, strict=True))


def save_marks(
  job: Job, comparison: Comparison, number: int, positions: Iterable[np.ndarray]
) -> None:
  """Save the marked positions of a part."""
  with progress_files.mark_writing(job.progress):
    marked_n = np.unique(np.concatenate([np.zeros(0, np.int64), *positions]))
    progress_files.save_arrays(_path(job, comparison.name, number), places=marked_n)


def end_comparison(job: Job, comparison: Comparison) -> None:
  """Record that the comparison is complete."""
  progress_files.save(_end_marker(job, comparison), b"")


def load_marks(job: Job, number: int) -> dict[str, DuplicateMarks]:
  """Return the marks of a part's items by step."""
  if not duplicate_steps(job):
    return {}
  arrays = _load_arrays(job, "signatures", number)
  marks = {}
  for step, live_n in _live_positions(job, number, arrays):
    is_marked_n = np.zeros(len(arrays[step.name]), bool)
    is_marked_n[_marked_positions(job, number, step, arrays, live_n)] = True
    lengths_D = np.zeros(arrays["kept"].size, np.int64)
    lengths_D[arrays["kept"]] = arrays[f"{step.name}_lengths"]
    marks[step.name] = DuplicateMarks(is_marked_n, np.concatenate([[0], np.cumsum(lengths_D)]))
  return marks


def _live_positions(
  job: Job, number: int, arrays: dict[str, np.ndarray]
) -> Iterator[tuple[Duplicates, np.ndarray]]:
  """Yield each step and the positions of the signatures of live pages.

  A page is live until a step removes it.
  """
  is_live_P = np.ones(np.count_nonzero(arrays["kept"]), bool)
  for step in duplicate_steps(job):
    page_n = np.repeat(np.arange(is_live_P.size), arrays[f"{step.name}_lengths"])
    live_n = np.flatnonzero(is_live_P[page_n])
    yield step, live_n
    if step.removes_pages:
      is_live_P[page_n[_marked_positions(job, number, step, arrays, live_n)]] = False


def _marked_positions(
  job: Job, number: int, step: Duplicates, arrays: dict[str, np.ndarray], live_n: np.ndarray
) -> np.ndarray:
  """Return the positions of a part's signatures that a step marks."""
  repeated_n = live_n[step.mark_repeats_in_part(arrays[step.name][live_n])]
  return np.union1d(repeated_n, _load_marked_positions(job, step.comparisons[-1], number))


def _load_marked_positions(job: Job, comparison: Comparison, number: int) -> np.ndarray:
  """Return the positions that a comparison marked in a part."""
  return _load_arrays(job, comparison.name, number)["places"]


def _load_arrays(job: Job, stage: str, number: int) -> dict[str, np.ndarray]:
  path = _path(job, stage, number)
  arrays = progress_files.load_arrays(path)
  if arrays is None:
    raise UserError(f"{path}: missing or damaged; run the same command again")
  return arrays


def _path(job: Job, stage: str, number: int) -> AnyPath:
  return job.progress / stage / f"{number:06d}"


def _end_marker(job: Job, comparison: Comparison) -> AnyPath:
  return job.progress / comparison.name / "done"
