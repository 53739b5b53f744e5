"""The running text of tasks that pretrain: windows of a token store, and a task made of them."""

from __future__ import annotations

import dataclasses
from typing import Any

from t5x_like.data.features import Features
from t5x_like.data.task import Batch, Task, fingerprint
from t5x_like.data.windows import DocumentsEnd, Windows, open_tokens
from t5x_like.store.reader import Verify
from t5x_like.store.tokens import TokenStore


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text:
  """The arguments that tasks on running text share.

  Attributes:
    store: the directory or address that holds a token store per split (the `--output` of tools.prepare_data), or
      `builtin`, see `corpora/builtin.py`.
    split: the split to read.
    dynamic_offsets: shift the windows in every later epoch, see `data/windows.py`.
    label: the name in metrics; by default `<corpus>_<task>`.
    verify: the checks on opening the store: `size`, `full` (all checksums) or `auto`, see `TokenStore.open`.
  """

  store: str
  split: str
  dynamic_offsets: bool = True
  label: str | None = None
  verify: Verify = "auto"

  def windows(self, length: int, documents_end: DocumentsEnd = "any") -> Windows:
    """Open the store and return its windows of `length` tokens; errors as `Windows`."""
    return Windows(self.store, self.split, length, self.verify, documents_end, self.dynamic_offsets)

  def tokens(self, documents_end: DocumentsEnd = "any") -> TokenStore:
    """Open the store; raise UserError if it cannot be used or its documents do not end as they should."""
    return open_tokens(self.store, self.split, self.verify, documents_end)

  def task(self, version: str, windows: Windows, batch: Batch, features: Features, **facts: Any) -> Task:
    """Make a task whose example i is window i.

    Args:
      version: the task's name and version, such as `causal_lm.v1`; raise the version when its examples change.
      windows: the windows.
      batch, features: see `Task`.
      facts: all that examples depend on besides the windows; JSON.
    """
    return Task(
      name=self.label or f"{windows.tokens.name}_{version.partition('.')[0]}",
      vocabulary=windows.vocabulary,
      fingerprint=fingerprint(version, windows.tokens, **facts, **windows.facts),
      num_examples=windows.num_examples,
      features=features,
      batch=batch,
      numbering=windows.numbering,
    )
