"""The source of a task's records, for tasks that prepare their examples themselves."""

import dataclasses
from typing import Any

from t5x_like.data.task import TaskArguments, unfingerprinted
from t5x_like.errors import UserError
from t5x_like.files.paths import is_remote
from t5x_like.store.reader import Verify


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceArguments(TaskArguments):
  """The arguments of tasks that prepare their examples from the records of a source.

  Attributes:
    source: where the records are read from; see `corpora/sources/__init__.py`.
    cache: the local directory of prepared examples.
    data_dir: the directory in which TensorFlow datasets are prepared.
    label: the name of the task in metrics; by default `<corpus>_<task>`.
    verify: how thoroughly prepared examples are checked when opened; see `TokenStore.open`.

  Raises:
    UserError: the cache is not a local directory.
  """

  source: str = unfingerprinted("the fingerprint covers the content of the records")
  cache: str = unfingerprinted("prepared examples may be anywhere", default="data/prepared")
  data_dir: str | None = unfingerprinted(
    "the fingerprint covers the content of the records", default=None
  )
  label: str | None = unfingerprinted("it only names the task", default=None)
  verify: Verify = unfingerprinted("it only checks files", default="auto")

  def __post_init__(self):
    if is_remote(self.cache):
      raise UserError(
        f"config.task.cache: found {self.cache}, expected a local directory; leave "
        "it out or name one"
      )

  @property
  def store_arguments(self) -> dict[str, Any]:
    """The arguments with which a store of examples is opened."""
    return {
      "source": self.source,
      "split": self.split,
      "cache": self.cache,
      "data_dir": self.data_dir,
      "verify": self.verify,
    }
