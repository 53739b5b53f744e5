"""Find the source for the path of a table, and guess its columns of text and label."""

import glob
import os
import re
from collections.abc import Sequence

from t5x_like.corpora import sources
from t5x_like.corpora.sources import _compression
from t5x_like.corpora.sources._files import SPLIT_WORDS
from t5x_like.errors import UserError, unreadable_file_error
from t5x_like.files import globs
from t5x_like.files.paths import as_path

_FORMATS = {
  ".csv": "csv",
  ".tsv": "tsv",
  ".tab": "tsv",
  ".jsonl": "jsonl",
  ".ndjson": "jsonl",
  ".json": "json",
  ".parquet": "parquet",
  ".pq": "parquet",
  ".arrow": "arrow",
  ".feather": "arrow",
}
_DATASETS_FILES = ("dataset_dict.json", "state.json")
_SPLIT_NAME = re.compile(r"(?:^|,)([A-Za-z][A-Za-z0-9_]*)=([^,]+)")
_SUFFIXES = ".csv, .tsv, .jsonl, .json, .parquet or .arrow"

# Usual names of columns, the likeliest first.
_TEXT_NAMES = """
  text sentence review content comment message body tweet document utterance question query
  headline title description input review_text comment_text tweet_text
""".split()
_PAIR_NAMES = (
  ("sentence1", "sentence2"),
  ("text1", "text2"),
  ("text_a", "text_b"),
  ("premise", "hypothesis"),
  ("question1", "question2"),
  ("question", "sentence"),
  ("query", "passage"),
)
_LABEL_NAMES = """
  label labels class category target sentiment topic intent emotion polarity rating stars score tag
  y label_text
""".split()


def format_of(path: str) -> str | None:
  """Return the format that a path's suffix names, compressed or not; None if it names none."""
  name = os.path.basename(path).lower()
  for suffix in _compression.SUFFIXES:
    name = name.removesuffix(suffix)
  return _FORMATS.get(os.path.splitext(name)[1])


def source_for_path(path: str) -> str:
  """Return the source for a path, such as `csv:reviews.csv` for `reviews.csv`.

  A directory holds files by split (`train.csv`, `dev.csv`), files of one format, a folder of texts
  for each class, or a data set saved by the library `datasets`.

  Args:
    path: a file, a pattern, `train=a.csv,validation=b.csv`, or a directory; a source is returned as
      it is.

  Raises:
    UserError: the path does not exist, or its format is unknown.
  """
  if path.partition(":")[0] in sources.formats():
    return path
  named_splits = _SPLIT_NAME.findall(path)
  if named_splits and path.startswith(f"{named_splits[0][0]}="):
    files = [file for _, file in named_splits]
    return f"{_common_format(path, files)}:{path}"
  if as_path(path).is_dir():
    return _source_for_directory(path.rstrip("/"))
  return f"{_common_format(path, [path])}:{path}"


def _common_format(path: str, files: Sequence[str]) -> str:
  """Return the format that all files or patterns have.

  Args:
    path: path that the user gave, for messages.
    files: files or patterns.
  """
  formats = {format_of(file) for file in files}
  if None in formats or len(formats) > 1:
    unknown = next((file for file in files if format_of(file) is None), None)
    if unknown and not globs.find_matches(unknown):
      raise UserError(
        f"config.task.source: found nothing at {unknown!r}, expected a file or a directory; check "
        "the path"
      )
    if unknown:
      names = f"{os.path.basename(unknown)!r}"
    else:
      names = ", ".join(map(os.path.basename, files[:4]))
    raise UserError(
      f"config.task.source: found {path!r}, expected files of one form that their suffix names, "
      f"{_SUFFIXES}, not {names}; or write the form before it, such as csv:{path}"
    )
  (format,) = formats
  if format != "json":
    return format
  first_characters = set()
  for pattern in files:
    first_characters.update(map(_first_character, globs.find_matches(pattern)))
  return "jsonl" if first_characters == {"{"} else "json"


def _first_character(path: str) -> str:
  """Return the first character of a file that is not white space, or an empty string."""
  try:
    with _compression.open_plain(path) as file:
      return file.read(4096).decode("utf-8", "replace").removeprefix("\ufeff").lstrip()[:1]
  except _compression.DAMAGED as error:
    raise unreadable_file_error(path, error) from error


def _source_for_directory(folder: str) -> str:
  """Return the source for the files in a directory; see `source_for_path`."""
  paths = globs.find_matches(f"{glob.escape(folder)}/*")
  if any(os.path.basename(path) in _DATASETS_FILES for path in paths):
    return f"arrow:{folder}"
  files = [path for path in paths if globs.file_kind(path) == "file" and format_of(path)]
  if not files:
    if any(globs.file_kind(path) == "directory" for path in paths):
      return f"text_folders:{folder}"
    raise UserError(
      f"config.task.source: found no table in {folder}, expected files such as train.csv and "
      f"validation.csv ({_SUFFIXES}), or a folder of texts for each class"
    )
  format = _common_format(folder, files)
  splits = [_split_in_name(path) for path in files]
  if not any(splits):
    splits = ["train"] * len(files)
  if None in splits:
    stray = os.path.basename(files[splits.index(None)])
    raise UserError(
      f"config.task.source: found {stray!r} in {folder} next to files of splits, expected a split "
      f"in its name, such as train; or name the files, {format}:train={folder}/{stray},validation=…"
    )
  order = ["train", "validation", "test"]
  files_by_split = sorted(zip(splits, files), key=lambda pair: (order.index(pair[0]), pair[1]))
  return f"{format}:" + ",".join(f"{split}={path}" for split, path in files_by_split)


def _split_in_name(path: str) -> str | None:
  """Return the split in a file's name: `train-00000-of-00002.parquet` belongs to train."""
  words = re.split("[^a-z]+", os.path.basename(path).lower())
  return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), None)


def guess_texts(columns: Sequence[str], label: str | None) -> list[str]:
  """Return the one or two columns of text by their usual names; none if no name is usual.

  Of two columns, the one that is not the label is the text.

  Args:
    columns: the names of the table's columns.
    label: the column of the label, if known.
  """
  by_name = {column.strip().lower(): column for column in reversed(columns)}
  for first, second in _PAIR_NAMES:
    if first in by_name and second in by_name:
      return [by_name[first], by_name[second]]
  for name in _TEXT_NAMES:
    if name in by_name and by_name[name] != label:
      return [by_name[name]]
  unlabelled = [column for column in columns if column != label]
  return unlabelled if label in columns and len(unlabelled) == 1 else []


def guess_label(columns: Sequence[str]) -> str | None:
  """Return the label's column: one with a usual name, else the only one besides the text."""
  by_name = {column.strip().lower(): column for column in reversed(columns)}
  for name in _LABEL_NAMES:
    if name in by_name:
      return by_name[name]
  texts = guess_texts(columns, None)
  candidates = [column for column in columns if column not in texts]
  return candidates[0] if texts and len(candidates) == 1 else None
