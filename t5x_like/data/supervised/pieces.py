"""Turns records into examples in pieces of consecutive records, made in any order by several processes.

A piece is a file that depends only on its records. So a killed preparation continues from the intact pieces and ends
with the same bytes as an uninterrupted one. One process reads the records, hands them out and writes the files.
"""

import dataclasses
import itertools
import json
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import joblib
import numpy as np
from tqdm import tqdm

from t5x_like.corpora import progress_files
from t5x_like.corpora.sources import Record, Skip
from t5x_like.errors import UserError
from t5x_like.files import file_names
from t5x_like.files.places import Place, place

Example = dict[str, Any]  # ids (int32 [n]) of each stream, numbers of each array
Examples = Callable[[Iterator[tuple[str, Record]]], Iterator[Example | Skip]]

_RECORDS = 4096  # of a piece
_ALONE = 2  # up to so many pieces, starting processes does not pay


@dataclasses.dataclass(frozen=True)
class Piece:
  """Examples of consecutive records.

  Attributes:
    num_examples: number of examples.
    skipped: records without an example, by reason.
    tokens: int32 [N] for each stream, the examples one after the other.
    lengths: int64 [num_examples] for each stream and array.
    arrays: numbers by name, those of all examples one after the other.
  """

  num_examples: int
  skipped: dict[str, int]
  tokens: dict[str, np.ndarray]
  lengths: dict[str, np.ndarray]
  arrays: dict[str, np.ndarray]


def make(
  records: Iterator[tuple[str, Record | Skip]],
  examples: Examples,
  streams: tuple[str, ...],
  progress: pathlib.Path,
  title: str,
) -> int:
  """Make the missing pieces of a directory and return the number of pieces.

  Args:
    records: the records of the split, with their places.
    examples: turns records into examples.
    streams: the names of the token streams; all other entries of an example are arrays.
    progress: the directory.
    title: the title of the progress bar.
  """
  number = 0

  def missing() -> Iterator[tuple[int, list]]:
    nonlocal number
    while held := list(itertools.islice(records, _RECORDS)):
      number += 1
      if progress_files.load(_path(progress, number - 1)) is None:
        yield number - 1, held

  waiting = missing()
  few = list(itertools.islice(waiting, _ALONE + 1))
  if len(few) <= _ALONE:
    made = (_make(piece, held, examples, streams) for piece, held in few)
  else:
    jobs = (joblib.delayed(_make)(piece, held, examples, streams) for piece, held in itertools.chain(few, waiting))
    made = joblib.Parallel(os.cpu_count(), return_as="generator", batch_size=1, pre_dispatch="2 * n_jobs")(jobs)
  with tqdm(desc=title, unit=" records", unit_scale=True, disable=None, delay=2) as bar:
    for piece, content in made:
      progress_files.save_arrays(_path(progress, piece), **content)
      bar.update(_RECORDS)
  return number


def read(progress: pathlib.Path, number: int) -> Piece:
  """Read a finished piece; UserError if its file has been damaged since."""
  content = progress_files.load_arrays(_path(progress, number))
  if content is None:
    raise UserError(f"{_path(progress, number)}: missing or damaged; run the same command again")
  about = json.loads(content.pop("about").tobytes())
  kinds: dict[str, dict[str, np.ndarray]] = {"tokens": {}, "lengths": {}, "arrays": {}}
  for name, values in content.items():
    kind, _, name = name.partition(".")
    kinds[kind][file_names.check(f"{_path(progress, number)}: {kind}", name, "delete the directory")] = values
  return Piece(about["num_examples"], about["skipped"], **kinds)


def _make(
  number: int, held: list[tuple[str, Record | Skip]], examples: Examples, streams: tuple[str, ...]
) -> tuple[int, dict[str, np.ndarray]]:
  """Return the number of a piece and the contents of its file."""
  os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the processes share the cores
  skipped: Counter[str] = Counter()
  made: list[Example] = []
  for example in examples(usable(iter(held), skipped)):
    if isinstance(example, Skip):
      skipped[example.reason] += 1
    else:
      made.append(example)
  about = {"num_examples": len(made), "skipped": dict(sorted(skipped.items()))}
  content = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
  for stream in streams:
    content[f"tokens.{stream}"] = np.concatenate([np.zeros(0, np.int32), *(example[stream] for example in made)])
    content[f"lengths.{stream}"] = np.array([len(example[stream]) for example in made], np.int64)
  for array in made[0].keys() - set(streams) if made else ():
    parts = [np.atleast_1d(example[array]) for example in made]
    content[f"arrays.{array}"] = np.concatenate(parts)
    content[f"lengths.{array}"] = np.array([len(part) for part in parts], np.int64)
  return number, content


def usable(records: Iterator[tuple[str, Record | Skip]], skipped: Counter) -> Iterator[tuple[str, Record]]:
  """Yield the records without NUL in a text or a list of texts; count the others."""
  for where, record in records:
    if isinstance(record, Skip):
      skipped[record.reason] += 1
      continue
    texts = itertools.chain.from_iterable(x if isinstance(x, list) else (x,) for x in record.values())
    if any(isinstance(text, str) and "\0" in text for text in texts):
      skipped["NUL character"] += 1
    else:
      yield where, record


def _path(progress: pathlib.Path, number: int) -> Place:
  return place(progress) / f"{number:06d}"
