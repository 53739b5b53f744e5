"""Tables of texts and labels in their usual forms: the source that a path means, and the columns by
their names."""

import glob
import os
import re
from collections.abc import Sequence

from t5x_like.corpora import sources
from t5x_like.corpora.sources import _compression
from t5x_like.corpora.sources._files import SPLIT_WORDS
from t5x_like.errors import UserError, one_line
from t5x_like.files import globs
from t5x_like.files.paths import as_path

_FORMS = {
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
_COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
_SAVED_BY_DATASETS = ("dataset_dict.json", "state.json")
_SPLIT_NAME = re.compile(r"(?:^|,)([A-Za-z][A-Za-z0-9_]*)=([^,]+)")
_SUFFIXES = ".csv, .tsv, .jsonl, .json, .parquet or .arrow"

# Usual names of columns, the likeliest first.
_TEXTS = """
  text sentence review content comment message body tweet document utterance question query headline title description
  input review_text comment_text tweet_text
""".split()
_PAIRS = (
  ("sentence1", "sentence2"),
  ("text1", "text2"),
  ("text_a", "text_b"),
  ("premise", "hypothesis"),
  ("question1", "question2"),
  ("question", "sentence"),
  ("query", "passage"),
)
_LABELS = """
  label labels class category target sentiment topic intent emotion polarity rating stars score tag y label_text
""".split()


def format_of(path: str) -> str | None:
  """Return the format that a path's suffix names, with or without a suffix of compression; None if
  it names none."""
  name = os.path.basename(path).lower()
  for suffix in _COMPRESSIONS:
    name = name.removesuffix(suffix)
  return _FORMS.get(os.path.splitext(name)[1])


def source_for_path(path: str) -> str:
  """Return the source that a path means: `reviews.csv` is `csv:reviews.csv`.

  A directory holds files by split (`train.csv`, `dev.csv`), files of one form, a folder of texts
  for each class, or what the library datasets saves.

  Args:
    path: a file, a pattern, `train=a.csv,validation=b.csv`, or a directory; a source is returned as
      it is.
  Raises:
    UserError: nothing is there, or its form is unknown.
  """
  if path.partition(":")[0] in sources.formats():
    return path
  by_split = _SPLIT_NAME.findall(path)
  if by_split and path.startswith(f"{by_split[0][0]}="):
    return f"{_form(path, [file for _, file in by_split])}:{path}"
  if as_path(path).is_dir():
    return _of_directory(path.rstrip("/"))
  return f"{_form(path, [path])}:{path}"


def _form(given: str, files: Sequence[str]) -> str:
  """Return the one form of some files or patterns."""
  forms = {format_of(file) for file in files}
  if None in forms or len(forms) > 1:
    unknown = next((file for file in files if format_of(file) is None), None)
    if unknown and not globs.find_matches(unknown):
      raise UserError(
        f"config.task.source: found nothing at {unknown!r}, expected a file or a directory; check "
        "the path"
      )
    name = (
      f"{os.path.basename(unknown)!r}" if unknown else ", ".join(map(os.path.basename, files[:4]))
    )
    raise UserError(
      f"config.task.source: found {given!r}, expected files of one form that their suffix tells, "
      f"{_SUFFIXES}, not {name}; or write the form before it, such as csv:{given}"
    )
  (form,) = forms
  if form != "json":
    return form
  starts = {_first_character(path) for file in files for path in globs.find_matches(file)}
  return "jsonl" if starts == {"{"} else "json"


def _first_character(path: str) -> str:
  try:
    with _compression.open_plain(path) as file:
      return file.read(4096).decode("utf-8", "replace").removeprefix("\ufeff").lstrip()[:1]
  except _compression.DAMAGED as error:
    raise UserError(f"{path}: cannot be read ({one_line(error)})") from error


def _of_directory(folder: str) -> str:
  inside = globs.find_matches(f"{glob.escape(folder)}/*")
  names = [os.path.basename(path) for path in inside]
  if any(name in _SAVED_BY_DATASETS for name in names):
    return f"arrow:{folder}"
  files = [path for path in inside if globs.file_kind(path) == "file" and format_of(path)]
  if not files:
    if any(globs.file_kind(path) == "directory" for path in inside):
      return f"text_folders:{folder}"
    raise UserError(
      f"config.task.source: found no table in {folder}, expected files such as train.csv and "
      f"validation.csv ({_SUFFIXES}), or a folder of texts for each class"
    )
  form = _form(folder, files)
  splits = [_split_in(path) for path in files]
  if not any(splits):
    splits = ["train"] * len(files)
  if None in splits:
    stray = os.path.basename(files[splits.index(None)])
    raise UserError(
      f"config.task.source: found {stray!r} in {folder} beside files of splits, expected a split "
      f"in its name, such as train; or name the files, {form}:train={folder}/{stray},validation=…"
    )
  order = ["train", "validation", "test"]
  listed = sorted(zip(splits, files), key=lambda entry: (order.index(entry[0]), entry[1]))
  return f"{form}:" + ",".join(f"{split}={path}" for split, path in listed)


def _split_in(path: str) -> str | None:
  """Return the split that a file's name tells: `train-00000-of-00002.parquet` is of train."""
  parts = re.split("[^a-z]+", os.path.basename(path).lower())
  return next((SPLIT_WORDS[part] for part in parts if part in SPLIT_WORDS), None)


def guess_texts(columns: Sequence[str], label: str | None) -> list[str]:
  """Return the columns of the text or of the two texts by their usual names; none if no name is
  known.

  Of two columns, the one beside the label is the text.

  Args:
    columns: the names of the table's columns.
    label: the column of the label, if known.
  """
  by_name = {column.strip().lower(): column for column in reversed(columns)}
  for first, second in _PAIRS:
    if first in by_name and second in by_name:
      return [by_name[first], by_name[second]]
  for name in _TEXTS:
    if name in by_name and by_name[name] != label:
      return [by_name[name]]
  others = [column for column in columns if column != label]
  return others if label in columns and len(others) == 1 else []


def guess_label(columns: Sequence[str]) -> str | None:
  """Return the column of the label by its usual names, or the only one beside the text; None if
  neither is known."""
  by_name = {column.strip().lower(): column for column in reversed(columns)}
  for name in _LABELS:
    if name in by_name:
      return by_name[name]
  texts = guess_texts(columns, None)
  others = [column for column in columns if column not in texts]
  return others[0] if texts and len(others) == 1 else None
