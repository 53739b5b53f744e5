"""The records of prepared examples, read from the source again for metrics.

A store keeps only ids and numbers, from which the fields of a record cannot be recovered.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from t5x_like.corpora.sources import Record, Skip, first_records, open_source


def read_used_records(
  source: str,
  split: str,
  *,
  fields: Sequence[str],
  data_dir: str | None,
  examples: Callable[[Iterator[tuple[str, Record]]], Iterator[dict | Skip]],
) -> list[tuple[str, Record]]:
  """Return (where, record) of every example of `example_store.open_store`, in the same order.

  Args:
    source, split, data_dir: the same as for the store.
    fields: the required fields of the records, at least the fields of the examples.
    examples: the function that makes examples from records.

  Raises:
    UserError: a field is missing.
  """
  opened_source = open_source(source, fields=tuple(dict.fromkeys(fields)), data_dir=data_dir)
  used_records = []
  for where, record in drop_unusable(first_records(opened_source, split), Counter()):
    outcomes = examples(iter([(where, record)]))
    if not any(isinstance(outcome, Skip) for outcome in outcomes):
      used_records.append((where, record))
  return used_records


def drop_unusable(
  records: Iterator[tuple[str, Record | Skip]], skipped: Counter
) -> Iterator[tuple[str, Record]]:
  """Yield the records that have no NUL character in a field; count the others by reason."""
  for where, record in records:
    if isinstance(record, Skip):
      skipped[record.reason] += 1
      continue
    if any(_has_nul(content) for content in record.values()):
      skipped["NUL character"] += 1
    else:
      yield where, record


def _has_nul(content: Any) -> bool:
  """Return whether a text, or one text of a list, contains a NUL character."""
  texts = content if isinstance(content, list) else [content]
  return any(isinstance(text, str) and "\0" in text for text in texts)
