"""Running text: consecutive windows of a token store, and tasks made of them.

Window i of length W is tokens [i * W, (i + 1) * W) of one split's token stream; the tokens after
the last whole window are unused. A window may begin in the middle of a document and span several
documents.

With dynamic offsets, this holds only for the first epoch and for evaluation. Every later epoch
starts at an offset drawn uniformly from all T tokens by (seed, epoch), and wraps around: window i
is the W tokens from (offset + i * W) mod T on, and the corpus's last token is followed by its
first. An epoch therefore has T // W windows at any offset, and no token is in two of them. The T
mod W unused tokens vary from epoch to epoch. At most one window of an epoch joins the end of the
corpus to its beginning, just as other windows join two documents.

Worked example: T = 10 and W = 4. Windows of the first epoch: 0-3 and 4-7; of an epoch with offset
7: 7 8 9 0 and 1-4.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from t5x_like import data
from t5x_like.data import random
from t5x_like.data.features import BatchFunction
from t5x_like.data.preprocessors import as_decoder
from t5x_like.data.task import Task, TaskArguments, unfingerprinted
from t5x_like.errors import DamageError, UserError
from t5x_like.quiet_tensorflow import tf
from t5x_like.store.reader import Verify
from t5x_like.store.tokens import TokenStore
from t5x_like.vocabularies import Vocabulary

DocumentsEnd = Literal["eos", "nothing", "any"]
# Why `documents_end` is no part of a fingerprint.
ONLY_CHECKED = "it only checks the store, whose content the fingerprint covers"
# (split, whether documents end with EOS) -> the path of its store
PrepareSplit = Callable[[str, bool], str]

_open: weakref.WeakValueDictionary[tuple[str, Verify], TokenStore] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def open_tokens(
  store: str | PrepareSplit,
  split: str,
  verify: Verify = "auto",
  documents_end: DocumentsEnd = "any",
) -> TokenStore:
  """Open and report `<store>/<split>`, or return it if a task of this process already has it open.

  Args:
    store: the directory or URL that holds a token store per split (the `--output` of
      tools.prepare_data), or a function that prepares a split's store and returns its path; see
      `data.task.build_at`.
    split: name of the split.
    verify: the checks made on opening: `size`, `full` (all checksums) or `auto`, see
      `TokenStore.open`.
    documents_end: required end of every document: `eos`, `nothing`, or `any` for either.

  Raises:
    UserError: the store cannot be used, or its documents do not end as required.
    DamageError: a file of the store is truncated or corrupt.
  """
  path = store(split, documents_end == "eos") if callable(store) else _split_path(store, split)
  with _lock:
    tokens = _open.get((path, verify))
    if tokens is None or not tokens.is_current():
      try:
        tokens = TokenStore.open(path, verify=verify)
      except (UserError, DamageError) as error:
        remedy = f"; or delete {path} and it is made again" if callable(store) else ""
        raise type(error)(f"{error}{remedy}") from error
      _open[path, verify] = tokens
      data.announce(
        f"{path}: {tokens.num_tokens:,} tokens in {tokens.num_documents:,} documents",
        f", {tokens.verification}",
      )
  _check_ends(tokens, documents_end)
  return tokens


def _split_path(root: str, split: str) -> str:
  """Return the path or URL of a split."""
  if "://" in root:
    return f"{root}/{split}"
  return os.path.join(root, split)


def _check_ends(tokens: TokenStore, expected: DocumentsEnd) -> None:
  """Raise UserError if the documents of a store do not end as they should."""
  actual = "eos" if tokens.append_eos else "nothing"
  if expected not in (actual, "any"):
    without = "without " if expected == "nothing" else ""
    raise UserError(
      f"{tokens.path}: found {actual} at the end of documents, expected {expected}: prepare "
      "another store with python "
      f"-m tools.prepare_data {without}--append_eos, or set task.documents_end={actual} to train "
      "on this one"
    )


class Windows:
  """The windows of one split of a store.

  Args:
    store: the location, see `open_tokens`, or an open store.
    split: name of the split; ignored for an open store.
    length: tokens per window.
    verify, documents_end: see `open_tokens`; ignored for an open store.
    dynamic_offsets: whether later epochs start at random offsets; see above.

  Attributes:
    tokens: the open store.
    length: tokens per window.
    num_examples: number of windows.
    dynamic_offsets: whether later epochs start at random offsets.

  Raises:
    UserError: the store cannot be used, its documents do not end as required, or it is shorter than
      one window.
  """

  def __init__(
    self,
    store: str | PrepareSplit | TokenStore,
    split: str,
    length: int,
    verify: Verify = "auto",
    documents_end: DocumentsEnd = "any",
    dynamic_offsets: bool = False,
  ):
    if length < 1:
      raise UserError(f"length: found {length}, expected windows of at least 1 token")
    self.tokens = store
    if not isinstance(store, TokenStore):
      self.tokens = open_tokens(store, split, verify, documents_end)
    self.length = length
    self.dynamic_offsets = dynamic_offsets
    self.num_examples = self.tokens.num_tokens // length
    if not self.num_examples:
      raise UserError(
        f"{self.tokens.path}: found {self.tokens.num_tokens} tokens, expected at least one window "
        f"of {length} tokens; shorten the task's lengths, or prepare more text or with a larger "
        "validation_fraction"
      )

  @property
  def vocabulary(self) -> Vocabulary:
    """The store's vocabulary."""
    return self.tokens.vocabulary

  @property
  def numbering(self) -> str:
    """An identifier of the numbering of examples: this store, window length and kind of offsets."""
    numbering = f"{self.tokens.fingerprint}/windows/{self.length}"
    if self.dynamic_offsets:
      numbering += "/dynamic_offsets"
    return numbering

  def read(
    self, example_index_B: tf.Tensor, epoch_B: tf.Tensor | None = None, seed: int = 0
  ) -> tf.Tensor:
    """Read raw tokens: example indices -> int32 [B, length].

    Args:
      example_index_B: int64 [B], each in 0..num_examples-1.
      epoch_B: int64 [B]; None reads the windows of the first epoch.
      seed: the seed passed to the task's `batch`.
    """

    def read_tokens(starts_B: np.ndarray) -> np.ndarray:
      return read_wrapped(self.tokens.windows, starts_B, self.length, self.tokens.num_tokens)

    return self._read(read_tokens, example_index_B, epoch_B, seed)

  def document_numbers(
    self, example_index_B: tf.Tensor, epoch_B: tf.Tensor | None = None, seed: int = 0
  ) -> tf.Tensor:
    """Return the number of each token's document within its window, from 1.

    Arguments and shape are as for `read`.
    """

    def read_numbers(starts_B: np.ndarray) -> np.ndarray:
      begins_BW = read_wrapped(
        self.tokens.document_begins, starts_B, self.length, self.tokens.num_tokens
      )
      begins_BW[:, :1] = True
      return np.cumsum(begins_BW, axis=1, dtype=np.int32)

    return self._read(read_numbers, example_index_B, epoch_B, seed)

  def _read(
    self,
    read: Callable[[np.ndarray], np.ndarray],
    example_index_B: tf.Tensor,
    epoch_B: tf.Tensor | None,
    seed: int,
  ) -> tf.Tensor:
    """Apply `read` to the first tokens of windows, on the host."""
    starts_B = example_index_B * self.length
    T = self.tokens.num_tokens
    if self.dynamic_offsets and epoch_B is not None:
      starts_B = (starts_B + epoch_offsets(epoch_B, seed, T)) % T
    out_BW = tf.numpy_function(read, [starts_B], tf.int32, stateful=False)
    return tf.ensure_shape(out_BW, [example_index_B.shape[0], self.length])


def epoch_offsets(epoch_B: tf.Tensor, seed: int, num_tokens: int) -> tf.Tensor:
  """Draw the first token of epochs; 0 for epoch 0: int64 [B] -> int64 [B].

  It is uniform to within num_tokens / 2^63.
  """
  key_B = random.row_keys(seed, epoch_B, tf.constant(-1, tf.int64))  # no example has this index
  word_B = tf.cast(tf.bitwise.right_shift(key_B, tf.constant(1, tf.uint64)), tf.int64)
  return tf.where(epoch_B > 0, word_B % num_tokens, 0)


def read_wrapped(
  read: Callable[[np.ndarray, int], np.ndarray], starts_B: np.ndarray, length: int, num_tokens: int
) -> np.ndarray:
  """Read windows of a stream that wraps around.

  Args:
    read: (first tokens int64 [N], length) -> [N, length], for windows inside the stream.
    starts_B: int64 [B], each in 0..num_tokens - 1.
    length: length of a window.
    num_tokens: length of the stream.

  Returns:
    [B, length].
  """
  over_B = starts_B > num_tokens - length
  if not over_B.any():
    return read(starts_B, length)
  inside_bW = read(starts_B[~over_B], length)
  out_BW = np.empty((starts_B.size, length), inside_bW.dtype)
  out_BW[~over_B] = inside_bW
  for row in np.flatnonzero(over_B).tolist():
    filled = 0
    position = int(starts_B[row])
    while filled < length:
      size = min(length - filled, num_tokens - position)
      out_BW[row, filled : filled + size] = read(np.array([position]), size)[0]
      filled += size
      position = 0
  return out_BW


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextArguments(TaskArguments):
  """The arguments that tasks on running text share.

  Attributes:
    store: the directory or URL that holds a token store per split (the `--output` of
      tools.prepare_data), or `builtin`, see `corpora/builtin.py`.
    dynamic_offsets: shift the windows of every later epoch by an offset drawn for it.
    label: the name in metrics; by default `<corpus>_<task>`.
    verify: the checks on opening the store: `size`, `full` (all checksums) or `auto`, see
      `TokenStore.open`.
    as_decoder: the form for decoders of a task for encoder-decoders, see
      `preprocessors/as_decoder.py`.
  """

  store: str = unfingerprinted("the fingerprint covers the content of the store")
  dynamic_offsets: bool = True
  label: str | None = unfingerprinted("it only names the task", default=None)
  verify: Verify = unfingerprinted("it only checks files", default="auto")
  as_decoder: Literal["causal", "prefix"] | None = None

  def windows(self, length: int, documents_end: DocumentsEnd = "any") -> Windows:
    """Open the store and return its windows of `length` tokens; errors as `Windows`."""
    return Windows(self.store, self.split, length, self.verify, documents_end, self.dynamic_offsets)

  def tokens(self, documents_end: DocumentsEnd = "any") -> TokenStore:
    """Open the store.

    Raises:
      UserError: it cannot be used, or its documents do not end as they should.
    """
    return open_tokens(self.store, self.split, self.verify, documents_end)

  def build_task(self, version: str, windows: Windows, batch: BatchFunction, **facts: Any) -> Task:
    """Return a task whose example i is window i.

    Args:
      version, facts: see `TaskArguments.fingerprint`; the content of the store is added.
      windows: the windows.
      batch: see `Task`.
    """
    vocabulary = windows.vocabulary
    features = self.features(vocabulary)
    if self.as_decoder:
      features = as_decoder.describe(self.as_decoder, features)
      batch = as_decoder.apply(self.as_decoder, batch, vocabulary)
    return Task(
      name=self.label or f"{windows.tokens.name}_{version.partition('.')[0]}",
      vocabulary=vocabulary,
      fingerprint=self.fingerprint(version, store=windows.tokens.fingerprint, **facts),
      num_examples=windows.num_examples,
      features=features,
      batch=batch,
      numbering=windows.numbering,
    )
