"""The documents of a source: the text of one field of its records.

Unusable documents are counted by reason.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from t5x_like.corpora.sources import Skip, check_split, open_source
from t5x_like.errors import UserError


class Documents:
  """The documents of a source by split.

  Args:
    source: source spelled as `format:rest`; see `corpora/sources/__init__.py`.
    text_field: JSON key, TFDS feature, or TSV, CoNLL or Parquet column that holds the document. A
      column is a header's name, or a number from 0 for files without a header.
    data_dir: directory of prepared TensorFlow datasets; None is TFDS's default.

  Attributes:
    source: the open source.
    spec, text_field, data_dir: the arguments.
    skipped: number of skipped documents per split, by reason; complete once `usable` is exhausted.

  Raises:
    UserError: see `open_source`.
  """

  def __init__(self, source: str, *, text_field: str = "text", data_dir: str | None = None):
    self.source = open_source(source, fields=(text_field,), data_dir=data_dir)
    self.spec = source
    self.text_field = text_field
    self.data_dir = data_dir
    self.skipped = {split: Counter() for split in self.source.splits}

  def facts(self) -> dict[str, Any]:
    """Return the facts that define the documents, known without reading them.

    They are JSON without absolute paths.
    """
    return self.source.facts(self.text_field)

  def read(self, split: str, part: tuple[int, int] | None = None) -> Iterator[str | Skip]:
    """Iterate over all documents of a split or part, unusable ones included, in order."""
    return self.source.documents(split, self.text_field, part)

  def usable(self, split: str) -> Iterator[str]:
    """Yield the usable documents of a split, at least one.

    Raises:
      UserError: the split is unknown, or the data are unreadable, damaged or empty.
    """
    check_split(self.source, split)
    skipped = Counter()
    self.skipped[split] = skipped
    num_usable = 0
    for document in self.read(split):
      reason = skip_reason(document)
      if reason:
        skipped[reason] += 1
      else:
        num_usable += 1
        yield document
    if not num_usable:
      counts = [f"{count} skipped: {reason}" for reason, count in sorted(skipped.items())]
      raise UserError(
        f"source {self.spec}: found 0 documents in split {split!r} "
        f"({', '.join(counts) or 'none skipped'}), expected at least one"
      )


def skip_reason(document: str | Skip) -> str | None:
  """Return the reason to skip a document, or None."""
  if isinstance(document, Skip):
    return document.reason
  if not document or document.isspace():
    return "empty"
  return "NUL character" if "\0" in document else None
