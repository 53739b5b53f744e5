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
  tokens (at least 4 where `length` is 64 or more), and the row begins between two words, or
  anywhere, where none begins. The stride leaves as many free: at 512 about 4% of a row is padding.
- `doc_sentences`: [CLS] text [SEP], up to `length - 2` tokens of one document, which may begin
  within a sentence, as above; those at the end of documents are short. (RoBERTa then takes more
  rows into a batch; shapes are fixed here.)

An epoch has every chunk of every document once, as `doc_sentences` or as the source of A, which B
follows in half of the pairs. With segments, a row of `doc_sentences` or `segment_pair` holds
several sequences (`packed`); see `_packed_rows.py`. A sentence pair has a row of its own, because
its size is known only once it is drawn.

A rule on ids finds sentences, see `data/preprocessors/sentences.py`; `data/document_chunks.py`
finds pairs and single documents. Every epoch draws new masks. With `static_copies` there are only
so many masks per example, as the original BERT copied its corpus (ten copies, so with 40 epochs
each mask is seen four times; RoBERTa, section 4.1).
"""

from t5x_like.data.tasks._masked_rows import features, task

__all__ = ["FEW_TARGETS", "features", "task"]

FEW_TARGETS = True  # see `laptop`
