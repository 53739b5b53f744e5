"""Removal of duplicates in a whole split: pages are signed by part, compared step by step, and marked by part.

The first of several equal pages stays. The optional steps of a job, in order:

- exact: pages with the same text, except for case and spaces;
- near: pages whose sets of five-word shingles have a Jaccard similarity of about 0.8 or more. `bands` finds the bands
  that two pages share, so that `near` compares only pages that share one (`matching.similar`);
- spans: three consecutive sentences that occur more than once in the remaining pages, except for case and spaces; all
  but the first occurrence are removed from their pages.

A comparison is a group-by: `entries` returns the keys of a part, `Comparison.match` marks duplicates in any set of
complete keys, and `save` collects a part's marks. Every engine calls these three functions, so all give the same
result. A part sends each key of `exact`, `bands` and `spans` once, so a key has at most one entry per part.

Each comparison leaves one file per part in the job's progress directory and, at its end, a file `done`.
"""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterable

import numpy as np

from t5x_like.corpora import matching, progress_files, signatures
from t5x_like.corpora.job import Job, Marks, cleaned, documents_of, parts_of
from t5x_like.errors import UserError
from t5x_like.files.places import Place, place

NEAR = (
  2  # the edition of what counts as a near duplicate, recorded in manifests; the first compared with kept pages only
)

Entries = dict[str, np.ndarray]  # key uint64 [n], place int64 [n] and, for `near`, minhash uint32 [n, HASHES]


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A group-by over a split.

  Attributes:
    name: name of the comparison and of the directory of its marks.
    step: the step of `cleaning.STEPS` that needs it.
    pick: function of a job, a part, its signatures and its dropped pages that returns the part's entries.
    match: see `matching.py`.
  """

  name: str
  step: str
  pick: Callable[[Job, int, dict[str, np.ndarray], np.ndarray], Entries]
  match: Callable[..., np.ndarray]


def wanted(job: Job) -> list[Comparison]:
  """Return the comparisons that the job's steps need, in order."""
  return [one for one in _COMPARISONS if one.step in job.steps]


def missing(job: Job) -> list[Comparison]:
  """Return the comparisons to make: the first one that is not complete and intact, and all after it."""
  for number, one in enumerate(wanted(job)):
    paths = (_path(job, one.name, part) for part in range(len(parts_of(job))))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
      if not _done(job, one).exists() or None in pool.map(progress_files.load, paths):
        return wanted(job)[number:]
  return []


def sign(job: Job, number: int) -> None:
  """Save the signatures of a part's documents, unless they exist."""
  path = _path(job, "signatures", number)
  if progress_files.load(path) is None:
    with progress_files.writing(job.progress):
      _sign(job, number, path)


def _sign(job: Job, number: int, path: Place) -> None:
  pulse = progress_files.Pulse(place(job.progress) / "now" / "signatures" / f"{number:06d}")
  kept: list[bool] = []
  signed: list[signatures.Signature] = []
  for document in documents_of(job).read(job.split, parts_of(job)[number]):
    text = cleaned(job, document)[0]
    kept.append(text is not None)
    if text is not None:
      signed.append(signatures.signature(text, job.steps))
    pulse(len(kept))
  found = signatures.Signatures.of(signed)
  progress_files.save_arrays(
    path, kept=np.array(kept, bool), exact=found.exact, minhash=found.minhash, spans=found.spans, lengths=found.lengths
  )
  pulse(len(kept), done=True)


def begin(job: Job, one: Comparison) -> None:
  """Delete the completion marker."""
  _done(job, one).unlink(missing_ok=True)


def entries(job: Job, one: Comparison, number: int) -> Entries:
  """Return a part's entries."""
  found = _arrays(job, "signatures", number)
  return one.pick(job, number, found, _dropped(job, number, found, before=one.name))


def save(job: Job, one: Comparison, number: int, places: Iterable[np.ndarray]) -> None:
  """Save the marked places of a part."""
  with progress_files.writing(job.progress):
    found = np.unique(np.concatenate([np.zeros(0, np.int64), *places]))
    progress_files.save_arrays(_path(job, one.name, number), places=found)


def end(job: Job, one: Comparison) -> None:
  """Record that the comparison is complete."""
  progress_files.save(_done(job, one), b"")


def marks(job: Job, number: int) -> Marks | None:
  """Return the duplicates of a part, by document; None if the job removes no duplicates."""
  if not wanted(job):
    return None
  found = _arrays(job, "signatures", number)
  dropped_P = _dropped(job, number, found)
  repeated_S = np.zeros(found["spans"].size, bool)
  if "spans" in job.steps:
    live = _live_spans(found, dropped_P)
    repeated_S[live[_repeats(found["spans"][live])]] = True
    repeated_S[_places(job, "spans", number)] = True
  kept_D = found["kept"]
  dropped_D, lengths_D = np.zeros(kept_D.size, np.uint8), np.zeros(kept_D.size, np.int64)
  dropped_D[kept_D], lengths_D[kept_D] = dropped_P, found["lengths"]
  return dropped_D, np.split(repeated_S, np.cumsum(lengths_D)[:-1])


def _dropped(job: Job, number: int, found: dict[str, np.ndarray], before: str | None = None) -> np.ndarray:
  """Mark the pages of a part dropped by comparisons before `before`, or by all: uint8 [P], 1 exact, 2 near, 0 kept."""
  dropped_P = np.zeros(found["exact"].size, np.uint8)
  for one in wanted(job):
    if one.name == before:
      break
    if one.name == "exact":
      dropped_P[_repeats(found["exact"])] = 1
    if one.name in ("exact", "near"):
      dropped_P[_places(job, one.name, number)] = 1 if one.name == "exact" else 2
  return dropped_P


def _exact(job: Job, number: int, found: dict[str, np.ndarray], dropped_P: np.ndarray) -> Entries:
  key, place = np.unique(found["exact"], return_index=True)
  return {"key": key, "place": place}


def _bands(job: Job, number: int, found: dict[str, np.ndarray], dropped_P: np.ndarray) -> Entries:
  key = np.unique(signatures.same_bands(found["minhash"][dropped_P == 0]))
  return {"key": key, "place": key.view(np.int64)}


def _near(job: Job, number: int, found: dict[str, np.ndarray], dropped_P: np.ndarray) -> Entries:
  live = np.flatnonzero(dropped_P == 0)
  key_n = signatures.same_bands(found["minhash"][live]).reshape(-1)
  _, inverse_n, count = np.unique(key_n, return_inverse=True, return_counts=True)
  some = np.flatnonzero((count[inverse_n] > 1) | np.isin(key_n, _places(job, "bands", number).view(np.uint64)))
  place = live[some // signatures.BANDS]
  return {"key": key_n[some], "place": place, "minhash": found["minhash"][place]}


def _spans(job: Job, number: int, found: dict[str, np.ndarray], dropped_P: np.ndarray) -> Entries:
  live = _live_spans(found, dropped_P)
  key, first = np.unique(found["spans"][live], return_index=True)
  return {"key": key, "place": live[first]}


_COMPARISONS = (
  Comparison("exact", "exact", _exact, matching.earlier),
  Comparison("bands", "near", _bands, matching.shared),
  Comparison("near", "near", _near, matching.similar),
  Comparison("spans", "spans", _spans, matching.earlier),
)


def _live_spans(found: dict[str, np.ndarray], dropped_P: np.ndarray) -> np.ndarray:
  return np.flatnonzero(np.repeat(dropped_P == 0, found["lengths"]))


def _repeats(key_N: np.ndarray) -> np.ndarray:
  """Mark keys that have occurred before in their part: bool [N]."""
  return matching.earlier(np.zeros(key_N.size, np.int64), key_N, np.arange(key_N.size))


def _places(job: Job, name: str, number: int) -> np.ndarray:
  return _arrays(job, name, number)["places"]


def _arrays(job: Job, kind: str, number: int) -> dict[str, np.ndarray]:
  path = _path(job, kind, number)
  found = progress_files.load_arrays(path)
  if found is None:
    raise UserError(f"{path}: missing or damaged; run the same command again")
  return found


def _path(job: Job, kind: str, number: int) -> Place:
  return place(job.progress) / kind / f"{number:06d}"


def _done(job: Job, one: Comparison) -> Place:
  return place(job.progress) / one.name / "done"
