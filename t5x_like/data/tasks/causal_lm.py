"""Language modelling: a decoder predicts every token of a window from the preceding tokens.

Example i is window i of `length` tokens. All tokens are targets, so an epoch predicts every token
once. The inputs are the window shifted by one position after a start token (see
`preprocessors/decoder_only.py`, with a worked example). Documents are packed in stream order
(Radford et al. 2019; Brown et al. 2020, section 2.3, who do not mask attention between documents).
`document_mask` keeps attention inside a document and starts its positions at 0 (as Grattafiori et
al. 2024, section 3.2, do for Llama 3). EOS ends every document, so that the model learns where
texts end. A store without EOS (`prepare_data` without `--append_eos`) is refused unless
`documents_end` says otherwise.
"""

from __future__ import annotations

import dataclasses

from t5x_like.data.features import Features, decoder
from t5x_like.data.preprocessors.decoder_only import decoder_only
from t5x_like.data.task import Task, unfingerprinted
from t5x_like.data.windows import ONLY_CHECKED, DocumentsEnd, TextArguments
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import Length
from t5x_like.vocabularies import Vocabulary, start_id


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(TextArguments):
  """The arguments of language modelling.

  Attributes:
    length: tokens in a window, and of every feature.
    document_mask: whether to add `decoder_segment_ids` and `decoder_positions`, which restart with
      every document.
    documents_end: the end of each document in the store: `eos`, which the model learns to predict,
      `nothing` or `any`.
  """

  length: Length = 1024
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
        as they should.
    """
    windows = self.windows(self.length, self.documents_end)
    start = start_id(windows.vocabulary)

    def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
      documents_BT = None
      if self.document_mask:
        documents_BT = windows.document_numbers(example_index_B, epoch_B, seed)
      return decoder_only(windows.read(example_index_B, epoch_B, seed), start, documents_BT)

    return self.build_task("causal_lm.v1", windows, batch)
