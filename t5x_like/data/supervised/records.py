"""The records behind prepared examples, read from the source again for metrics, because ids do not
hold them."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from t5x_like.corpora.sources import Record, Skip, first_records, open_source


def used(
  source: str,
  split: str,
  *,
  fields: Sequence[str],
  data_dir: str | None,
  examples: Callable[[Iterator[tuple[str, Record]]], Iterator[dict | Skip]],
) -> list[tuple[str, Record]]:
  """Return (where, record) of every example of `example_store.open_store` with the same arguments,
  in the same order.

  Args:
    fields: the required fields of the records, at least the fields of the examples.

  Raises:
    UserError: a field is missing.
  """
  opened = open_source(source, fields=tuple(dict.fromkeys(fields)), data_dir=data_dir)
  records = usable(first_records(opened, split), Counter())
  return [
    (where, record)
    for where, record in records
    if not any(isinstance(made, Skip) for made in examples(iter([(where, record)])))
  ]


def usable(
  records: Iterator[tuple[str, Record | Skip]], skipped: Counter
) -> Iterator[tuple[str, Record]]:
  """Yield the records without NUL in a text or a list of texts; count the others."""
  for where, record in records:
    if isinstance(record, Skip):
      skipped[record.reason] += 1
      continue
    texts = itertools.chain.from_iterable(
      x if isinstance(x, list) else (x,) for x in record.values()
    )
    if any(isinstance(text, str) and "\0" in text for text in texts):
      skipped["NUL character"] += 1
    else:
      yield where, record
