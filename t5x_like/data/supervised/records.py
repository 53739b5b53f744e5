"""The records behind prepared examples, read from the source again for metrics, because ids do not hold them."""

import collections
from collections.abc import Callable, Iterator, Sequence

from t5x_like.corpora.sources import Record, Skip, first_records, open_source
from t5x_like.data.supervised import pieces


def used(
  source: str,
  split: str,
  *,
  fields: Sequence[str],
  data_dir: str | None,
  examples: Callable[[Iterator[tuple[str, Record]]], Iterator[dict | Skip]],
) -> list[tuple[str, Record]]:
  """Return (where, record) of every example of `example_store.open_store` with the same arguments, in the same order.

  Args:
    fields: the required fields of the records, at least the fields of the examples.

  Raises:
    UserError: a field is missing.
  """
  opened = open_source(source, fields=tuple(dict.fromkeys(fields)), data_dir=data_dir)
  records = pieces.usable(first_records(opened, split), collections.Counter())
  return [
    (where, record)
    for where, record in records
    if not any(isinstance(made, Skip) for made in examples(iter([(where, record)])))
  ]
