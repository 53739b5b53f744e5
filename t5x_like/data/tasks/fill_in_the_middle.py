"""Fill-in-the-middle: a language model that also learns to infill (Bavarian et al. 2022).

Example i is window i of `length - 6` tokens. Each document in it, or its part in the window
(the paper's context-level FIM, section 4.4), is with probability `rate` cut into prefix, middle and
suffix and rearranged, so that the middle comes last; see `preprocessors/fill_in_the_middle.py` for
orders, cuts and a worked example. All tokens are targets. The rest of a row is padding without
weight. Rows with several rearranged documents may exceed `length`; the excess is cut from their
end.

The sentinels are pieces of the vocabulary, by their usual spellings or as named, or its first three
sentinels.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from t5x_like.data import random
from t5x_like.data.features import Features, decoder
from t5x_like.data.preprocessors.decoder_only import decoder_only
from t5x_like.data.preprocessors.fill_in_the_middle import ROOM, FillInTheMiddle
from t5x_like.data.task import Task, unfingerprinted
from t5x_like.data.windows import ONLY_CHECKED, DocumentsEnd, TextArguments
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import Length
from t5x_like.vocabularies import Vocabulary, start_id


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(TextArguments):
  """The arguments of fill-in-the-middle.

  Attributes:
    length: length of every feature.
    rate: share of rearranged documents; 0.5 to 0.9 does not harm the others in the paper.
    spm_rate: share of rearranged documents in the order SPM, not PSM.
    level: the units between which cuts fall.
    sentinels: the pieces for prefix, suffix and middle; by default one of
      `preprocessors.fill_in_the_middle.KNOWN_PIECES`.
    document_mask: whether to add `decoder_segment_ids` and `decoder_positions`, which restart with
      every document.
    documents_end: the end of each document in the store: `eos`, `nothing` or `any`.
  """

  length: Length = 1024
  rate: float = 0.5
  spm_rate: float = 0.5
  level: Literal["characters", "tokens"] = "characters"
  sentinels: tuple[str, ...] = ()
  document_mask: bool = False
  documents_end: DocumentsEnd = unfingerprinted(ONLY_CHECKED, default="eos")

  def features(self, vocabulary: Vocabulary) -> Features:
    if self.document_mask:
      return decoder(self.length, "segment_ids", "positions")
    return decoder(self.length)

  def build(self) -> Task:
    """Open the store and return the task.

    Raises:
      UserError: the store cannot be used, is shorter than one window, or its documents do not end
        as they should; a length too short, rates outside of 0 to 1, or a vocabulary without
        sentinels.
    """
    length = self.length
    if length <= ROOM + 2:
      raise UserError(f"length: found {length}, expected at least {ROOM + 3}")
    if not 0 <= self.rate <= 1 or not 0 <= self.spm_rate <= 1:
      raise UserError(
        f"rate, spm_rate: found {self.rate} and {self.spm_rate}, expected shares of 0 to 1"
      )
    windows = self.windows(length - ROOM, self.documents_end)
    vocabulary = windows.vocabulary
    rearrange = FillInTheMiddle(
      vocabulary,
      length,
      float(self.rate),
      float(self.spm_rate),
      self.level == "characters",
      self.sentinels,
    )
    start = start_id(vocabulary)

    def rearrange_documents(
      tokens_BW: np.ndarray, documents_BW: np.ndarray, key_B: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
      return rearrange(tokens_BW, np.diff(documents_BW, axis=1, prepend=0) > 0, key_B)

    def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
      window_BW = windows.read(example_index_B, epoch_B, seed)
      document_BW = windows.document_numbers(example_index_B, epoch_B, seed)
      key_B = random.row_keys(seed, epoch_B, example_index_B)
      tokens_BT, documents_BT = tf.numpy_function(
        rearrange_documents,
        [window_BW, document_BW, key_B],
        [tf.int32, tf.int32],
        stateful=False,
      )
      shape = [example_index_B.shape[0], length]
      tokens_BT = tf.ensure_shape(tokens_BT, shape)
      documents_BT = tf.ensure_shape(documents_BT, shape)
      rows = decoder_only(tokens_BT, start, documents_BT if self.document_mask else None)
      rows["decoder_loss_weights"] = tf.cast(documents_BT > 0, tf.float32)
      return rows

    return self.build_task("fill_in_the_middle.v1", windows, batch, sentinels=rearrange.sentinels)
