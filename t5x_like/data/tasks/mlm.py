"""Masked language modelling of encoders, with or without next sentences.

It is the data of BERT, RoBERTa, SpanBERT and ELECTRA.

A row has one of the four formats that RoBERTa compares (Liu et al. 2019, section 4.2):

- `segment_pair`: [CLS] A [SEP] B [SEP], two stretches of sentences, with the label of BERT's next
  sentence prediction: in half of the rows B follows A in its document, in the other half it is from
  another document. The cut between them is before a sentence; where A begins and a B that follows
  ends is where the document is cut into chunks of a row's length, often within a sentence, as there
  is no index of sentences (BERT's code collects whole sentences, and then cuts longer ones at
  either end).
- `sentence_pair`: the same with one sentence each; rows are short.
- `full_sentences`: [CLS] text [SEP], whole sentences of the stream across documents, [SEP] between
  documents. Example i begins with the first sentence at or after token i * stride and ends where
  example i + 1 begins, so an epoch has every token once. A sentence is looked for in `length // 24`
  tokens (at least 4 where `length` is 64 or more). If none begins there, the row begins at token
  i * stride. The stride leaves as many tokens free: at 512, about 4% of a row is padding.
- `doc_sentences`: [CLS] text [SEP], up to `length - 2` tokens of one document, which may begin
  within a sentence, as above; those at the end of documents are short. (RoBERTa then takes more
  rows into a batch; shapes are fixed here.)

An epoch has every chunk of every document once: as a row of `doc_sentences`, or as the source of A
and, in half of the pairs, of B. With segments, a row of `doc_sentences` or `segment_pair` holds
several sequences (`packed`); see `_packed_rows.py`. A sentence pair is alone in its row, because
its size is known only once it is drawn.

A rule on ids finds sentences, see `data/preprocessors/sentences.py`. `data/document_chunks.py`
cuts documents into chunks. Every epoch draws new masks. With `static_copies` there are only that
many masks per example, as in the original BERT, which made ten copies of its corpus, so that each
mask was seen four times in 40 epochs (RoBERTa, section 4.1).
"""

from __future__ import annotations

import dataclasses

from t5x_like.data.features import Features
from t5x_like.data.task import Task
from t5x_like.data.tasks._masked_rows import MaskedRowArguments
from t5x_like.slots import Rate
from t5x_like.vocabularies import Vocabulary

FEW_TARGETS = True  # see `laptop`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(MaskedRowArguments):
  """The arguments of masked language modelling.

  Only `full_sentences` without `static_copies` has dynamic offsets: chunks begin with their
  documents, and static copies are copies of the same rows.

  Attributes:
    mask_share, random_share: shares of the predicted tokens that become the mask and a random
      token.
    static_copies: masks per example, used in turn from epoch to epoch; None draws a new mask each
      time.
    swapped: share of pairs whose segments are in the wrong order, and whose label is 1: ALBERT's
      sentence order prediction is 0.5, with a `random_next` of 0 (Lan et al. 2020, section 3.1).
  """

  mask_share: float = 0.8
  random_share: float = 0.1
  static_copies: int | None = None
  swapped: Rate = 0.0

  def features(self, vocabulary: Vocabulary) -> Features:
    return self.row_features(vocabulary)

  def build(self) -> Task:
    """Open the store and return the task.

    Raises:
      UserError: the store cannot be used or is shorter than one row; its vocabulary has no mask,
        [CLS] or [SEP] and no sentinels to use instead; impossible shares or length.
    """
    return self.build_rows(
      "mlm.v5",
      mask_share=float(self.mask_share),
      random_share=float(self.random_share),
      static_copies=self.static_copies,
      swapped=float(self.swapped),
    )
