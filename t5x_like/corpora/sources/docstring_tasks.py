"""`docstring_tasks:TASK`: supervised records from the embedded corpus.

Nothing is downloaded, and no text is in two splits.

`test` comes from the modules that the corpus `docstrings` holds out, so pretraining on that corpus
never sees it. `train` and `validation` come from the other modules, also divided by module. The
tasks are in `_docstrings/benchmark.py`. `TASK/tiny` comes from the corpus `docstrings:tiny`.
"""

import functools
from collections.abc import Iterator
from typing import Any

from t5x_like.corpora.sources import Record, check_split, docstrings
from t5x_like.corpora.sources import Source as Base
from t5x_like.corpora.sources._docstrings import benchmark
from t5x_like.errors import UserError, did_you_mean


class Source(Base):
  """The records of one task, with the fields listed in `benchmark.py` and `id`."""

  splits = ("train", "validation", "test")

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    del fields  # all are read, because they are few and short
    self._task, _, corpus = spec.partition("/")
    if self._task not in benchmark.TASKS:
      raise UserError(
        f"source docstring_tasks:{spec}: found {self._task!r}, expected one of "
        f"{', '.join(benchmark.TASKS)}"
        f"{did_you_mean(self._task, benchmark.TASKS)}"
      )
    self._corpus = corpus
    self._data_dir = data_dir
    self._facts = docstrings.Source(corpus, data_dir=data_dir).facts("text")
    self.name = f"docstrings_{self._task}"

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record]]:
    check_split(self, split)
    for record in _records(self._task, split, self._corpus, self._data_dir):
      yield f"{self.name}, split {split}, record {record['id']}", record

  def facts(self, field: str) -> dict[str, Any]:
    return self.split_facts("train") | {"text_field": field}

  def split_facts(self, split: str) -> dict[str, Any]:
    return {"form": "docstring_tasks.v1", "task": self._task, "split": split, "corpus": self._facts}


@functools.lru_cache(maxsize=12)  # four tasks, three splits
def _records(task: str, split: str, corpus: str, data_dir: str | None) -> list[Record]:
  """Return the records of a split of a task; its split test comes from the corpus's validation."""
  documents = _documents("validation" if split == "test" else "train", corpus, data_dir)
  if split == "test":
    return benchmark.records(task, documents)
  documents_of_split = []
  for document in documents:
    if benchmark.is_validation_module(document["module"]) == (split == "validation"):
      documents_of_split.append(document)
  return benchmark.records(task, documents_of_split)


@functools.lru_cache(maxsize=2)
def _documents(split: str, corpus: str, data_dir: str | None) -> list[Record]:
  """Return the documents of a split of the corpus `docstrings`."""
  return [record for _, record in docstrings.Source(corpus, data_dir=data_dir).records(split)]
