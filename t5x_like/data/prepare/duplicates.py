"""Duplicates in a whole split: signatures are made per part, anywhere, compared in one place, and marked per part."""

from collections.abc import Sequence

import numpy as np
from etils import epath

from t5x_like.data.prepare import cleaning, progress_files
from t5x_like.data.prepare.job import Job, Marks, cleaned, documents_of, parts_of
from t5x_like.errors import UserError


def wanted(job: Job) -> bool:
  """Whether any of the job's steps looks for duplicates."""
  return bool(set(job.steps) - {"c4"})


def marked(job: Job) -> bool:
  """Whether every part has its marks."""
  return all(progress_files.load(_path(job, "marks", number)) is not None for number in range(len(parts_of(job))))


def marks(job: Job, number: int) -> Marks | None:
  """The duplicates of a part, as `resolve` marked them; None if the job looks for none."""
  if not wanted(job):
    return None
  found = progress_files.load_arrays(_path(job, "marks", number))
  if found is None:
    raise UserError(f"{_path(job, 'marks', number)}: missing or damaged; run the same command again")
  return found["dropped"], np.split(found["spans"], np.cumsum(found["lengths"])[:-1])


def sign(job: Job, number: int) -> None:
  """Saves the signatures of a part's documents for `resolve`, unless they exist."""
  path = _path(job, "signatures", number)
  if progress_files.load(path) is None:
    with progress_files.writing(job.progress):
      _sign(job, number, path)


def _sign(job: Job, number: int, path: epath.Path) -> None:
  pulse = progress_files.Pulse(epath.Path(job.progress) / "now" / "signatures" / f"{number:06d}")
  kept: list[bool] = []
  signed: list[cleaning.Signature] = []
  for document in documents_of(job).read(job.split, parts_of(job)[number]):
    text = cleaned(job, document)[0]
    kept.append(text is not None)
    if text is not None:
      signed.append(cleaning.signature(text, job.steps))
    pulse(len(kept))
  found = cleaning.Signatures.of(signed)
  progress_files.save_arrays(
    path, kept=np.array(kept, bool), exact=found.exact, minhash=found.minhash, spans=found.spans, lengths=found.lengths
  )
  pulse(len(kept), done=True)


class _Signed(Sequence[cleaning.Signatures]):
  """The signatures that `sign` saved, read on demand, so that a corpus is never held in memory."""

  def __init__(self, job: Job):
    self._job = job

  def __len__(self) -> int:
    return len(parts_of(self._job))

  def __getitem__(self, number: int) -> cleaning.Signatures:
    if not 0 <= number < len(self):
      raise IndexError(number)
    found = self.arrays(number)
    return cleaning.Signatures(found["exact"], found["minhash"], found["spans"], found["lengths"])

  def arrays(self, number: int) -> dict[str, np.ndarray]:
    path = _path(self._job, "signatures", number)
    found = progress_files.load_arrays(path)
    if found is None:
      raise UserError(f"{path}: missing or damaged; run the same command again")
    return found


def resolve(job: Job) -> None:
  """Compares the signatures of all parts, in order, and saves each part's marks for `marks`."""
  signed = _Signed(job)
  dropped, repeated = cleaning.duplicates(signed, job.steps)
  page = span = 0
  for number in range(len(signed)):
    found = signed.arrays(number)
    kept, pages, spans = found["kept"], found["exact"].size, found["spans"].size
    marks_D, lengths_D = np.zeros(kept.size, np.uint8), np.zeros(kept.size, np.int64)
    marks_D[kept], lengths_D[kept] = dropped[page : page + pages], found["lengths"]
    progress_files.save_arrays(
      _path(job, "marks", number), dropped=marks_D, lengths=lengths_D, spans=repeated[span : span + spans]
    )
    page, span = page + pages, span + spans


def _path(job: Job, kind: str, number: int) -> epath.Path:
  return epath.Path(job.progress) / kind / f"{number:06d}"
