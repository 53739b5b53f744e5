"""The base of formats whose lines are JSON objects that hold several records each."""

import abc
from collections.abc import Iterator

from t5x_like.corpora.sources import Record, Skip, jsonl
from t5x_like.errors import UserError, one_line


class Nested(jsonl.Source):
  """The records within each line's object; a format defines `nested_records`."""

  expected: str  # the keys of an object, for messages

  @abc.abstractmethod
  def nested_records(self, content: Record) -> Iterator[Record]:
    """Yield the records of an object.

    A KeyError, TypeError or AttributeError means that it has another form.
    """

  def read(self, path: str) -> Iterator[tuple[str, Record | Skip]]:
    for where, content in super().read(path):
      if isinstance(content, Skip):
        yield where, content
        continue
      try:
        yield from ((where, record) for record in self.nested_records(content))
      except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
          f"{where}: found an object in another form ({type(error).__name__}: {one_line(error)}), "
          f"expected {self.expected}"
        ) from None
