"""Consecutive windows of a token store, the input of tasks that pretrain on running text.

Window i of length W is tokens [i * W, (i + 1) * W) of one split's token stream; the tokens after the last whole window
are unused. A window may begin in the middle of a document and hold parts of several.
"""

import os
import threading
import weakref
from typing import Literal

import numpy as np

from t5x_like.config import Corpus
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.store import builtin
from t5x_like.data.store.reader import TokenStore, Verify
from t5x_like.data.vocabularies import Vocabulary
from t5x_like.errors import UserError

DocumentsEnd = Literal["eos", "nothing", "any"]

_open: weakref.WeakValueDictionary[tuple[str, Verify], TokenStore] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def open_tokens(
  store: str | Corpus, split: str, verify: Verify = "auto", documents_end: DocumentsEnd = "any"
) -> TokenStore:
  """Opens `<store>/<split>` and reports it, or returns it if a task of this process already has it open.

  Args:
    store: the directory or address that holds a token store per split (the `--output` of tools.prepare_data), or
      `builtin` for the small corpus of `data/store/builtin.py`, or what to make one from; see
      `data/prepare/corpus.py`.
    split: which split.
    verify: what opening the store checks: `size`, `full` (all checksums) or `auto`, see `TokenStore.open`.
    documents_end: how every document must end: with `eos`, with `nothing`, or with `any` of the two.

  Raises:
    UserError: the store cannot be used, or its documents do not end as required.
  """
  path = _path(store, split, append_eos=documents_end == "eos")
  with _lock:
    tokens = _open.get((path, verify))
    if tokens is None or not tokens.is_current():
      try:
        tokens = _open[path, verify] = TokenStore.open(path, verify=verify)
      except UserError as error:
        remedy = f"; or delete {path} and it is made again" if isinstance(store, Corpus) else ""
        raise UserError(f"{error}{remedy}") from error
      print(
        f"data: {path}: {tokens.num_tokens:,} tokens in {tokens.num_documents:,} documents, {tokens.verification}",
        flush=True,
      )
  _check_ends(tokens, documents_end)
  return tokens


def _path(store: str | Corpus, split: str, append_eos: bool) -> str:
  if isinstance(store, Corpus):
    from t5x_like.data.prepare import corpus  # its engines are not needed otherwise

    return corpus.prepared(store, split, append_eos)
  root = builtin.prepared(append_eos) if store == builtin.NAME else store
  return f"{root}/{split}" if "://" in root else os.path.join(root, split)


def _check_ends(tokens: TokenStore, expected: DocumentsEnd) -> None:
  found = "eos" if tokens.manifest.append_eos else "nothing"
  if expected not in (found, "any"):
    without = "without " if expected == "nothing" else ""
    raise UserError(
      f"{tokens.path}: found {found} at the end of documents, expected {expected}: prepare another store with python "
      f"-m tools.prepare_data {without}--append_eos, or set task.documents_end={found} to train on this one"
    )


class Windows:
  """The windows of one split of a store.

  Args:
    store: its place, see `open_tokens`, or an open store.
    split: which split; ignored for an open store.
    length: tokens in a window.
    verify, documents_end: see `open_tokens`; ignored for an open store.

  Attributes:
    tokens: the open store.
    length: tokens in a window.
    num_examples: how many windows there are.

  Raises:
    UserError: the store cannot be used, its documents do not end as required, or it is shorter than one window.
  """

  def __init__(
    self,
    store: str | Corpus | TokenStore,
    split: str,
    length: int,
    verify: Verify = "auto",
    documents_end: DocumentsEnd = "any",
  ):
    if length < 1:
      raise UserError(f"length: found {length}, expected windows of at least 1 token")
    self.tokens = open_tokens(store, split, verify, documents_end) if not isinstance(store, TokenStore) else store
    self.length = length
    self.num_examples = self.tokens.num_tokens // length
    if not self.num_examples:
      raise UserError(
        f"{self.tokens.path}: found {self.tokens.num_tokens} tokens, expected at least one window of "
        f"{length} tokens; shorten the task's lengths or prepare a larger corpus"
      )

  @property
  def vocabulary(self) -> Vocabulary:
    """The store's vocabulary."""
    return self.tokens.vocabulary

  @property
  def numbering(self) -> str:
    """Identifies what the indices count: windows of this length of this store."""
    return f"{self.tokens.fingerprint}/windows/{self.length}"

  def read(self, example_index_B: tf.Tensor) -> tf.Tensor:
    """Raw tokens: int64 [B], each in 0..num_examples-1 -> int32 [B, length]."""
    return self._call(lambda starts_B: self.tokens.windows(starts_B, self.length), example_index_B)

  def documents(self, example_index_B: tf.Tensor) -> tf.Tensor:
    """The number, from 1, of each token's document in its window: int64 [B] -> int32 [B, length]."""
    return self._call(lambda starts_B: documents(self.tokens, starts_B, self.length), example_index_B)

  def _call(self, function, example_index_B: tf.Tensor) -> tf.Tensor:
    out_BW = tf.numpy_function(function, [example_index_B * self.length], tf.int32, stateful=False)
    return tf.ensure_shape(out_BW, [example_index_B.shape[0], self.length])


def documents(tokens: TokenStore, starts_B: np.ndarray, length: int) -> np.ndarray:
  """The number, from 1, of each token's document in its window: first tokens [B] -> int32 [B, length]."""
  first_BW = tokens.document_begins(starts_B, length)
  first_BW[:, :1] = True
  return np.cumsum(first_BW, axis=1, dtype=np.int32)
