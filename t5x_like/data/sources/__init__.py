"""Sources: where documents come from. A source is spelled `form:rest`, and a form is a file of this folder.

    jsonl:/corpus/*.jsonl.gz                                one JSON object a line, the document under a key
    jsonl:train=a/*.jsonl.gz,validation=b.jsonl.gz          several splits; so for every form of files
    text:books/**/*.txt                                     one document a file
    lines:news.en.gz                                        one document a line
    tsv:reviews.tsv                                         one document a row, from a named or numbered column
    tfds:NAME[/config][:version]                            any TensorFlow dataset, prepared already or buildable
    docstrings                                              the embedded corpus, built on first use

A pattern without split names is the split `train`. Files are read in sorted order, gzip is recognised by its first
bytes, text is UTF-8 (a byte order mark is dropped). Empty documents and documents with NUL characters are passed over
and counted in `skipped`; everything else that is wrong raises a `UserError` naming file and line.

To add a form `x`, add `x.py` here with `open_form(rest, *, data_dir, text_field) -> Source`.
"""

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from t5x_like.errors import UserError, did_you_mean


class Source(Protocol):
  """Documents by split.

  Attributes:
    name: a short name of the corpus, letters, digits, `_`, `-` and `.`.
    splits: the names of its splits.
    skipped: how many documents of each split were passed over and why, `{split: Counter({reason: count})}`; complete
      for a split once `documents` has been read to its end.
  """

  name: str
  splits: tuple[str, ...]
  skipped: dict[str, Counter]

  def documents(self, split: str) -> Iterator[str]:
    """Yields the documents of a split, always in the same order; at least one.

    Raises:
      UserError: unknown split, or unreadable, damaged or empty data.
    """

  def fingerprint_facts(self) -> dict:
    """What defines the content and can be told without reading it all, JSON-serialisable, free of absolute paths."""


def forms() -> tuple[str, ...]:
  """The names of the forms: the public modules of this folder."""
  return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")))


def open_source(source: str, *, data_dir: str | None = None, text_field: str = "text") -> Source:
  """Opens a source by its spelling; see the top of this file.

  Args:
    source: `form:rest`, or a form alone where there is no rest.
    data_dir: where TensorFlow datasets are or will be prepared; TFDS's own default when None.
    text_field: the JSON key, TFDS feature, or TSV column that holds the document. A column is a header's name, or a
      number counted from 0 for files without a header.

  Raises:
    UserError: unknown form, no such files or dataset, an empty file.
  """
  form, _, rest = source.partition(":")
  if form not in forms():
    raise UserError(
      f"source {source!r}: found form {form!r}, expected one of {', '.join(forms())}{did_you_mean(form, forms())}; "
      "write it as form:rest, such as jsonl:corpus/*.jsonl.gz"
    )
  module = importlib.import_module(f"{__name__}.{form}")
  return module.open_form(rest, data_dir=data_dir, text_field=text_field)


def check_split(source: Source, split: str) -> None:
  """Raises UserError unless the source has the split."""
  if split not in source.splits:
    raise UserError(
      f"source {source.name}: found no split {split!r}, expected one of {', '.join(source.splits)}"
      f"{did_you_mean(split, source.splits)}"
    )


def wanted(documents: Iterator[str], skipped: Counter) -> Iterator[str]:
  """Yields the documents that are neither empty nor hold a NUL, counting the others."""
  for document in documents:
    if not document or document.isspace():
      skipped["empty"] += 1
    elif "\0" in document:
      skipped["NUL character"] += 1
    else:
      yield document
