"""REALM: a retriever and a reader that are trained together (Guu et al. 2020, https://arxiv.org/abs/2002.08909).

The retriever is a BERT: a query and a passage are compared by the inner product of their projected [CLS] states, in 128
dimensions (Lee et al. 2019, section 3). The paper's reader is a BERT too, with a head for masked tokens in pretraining
and another for spans in fine-tuning. Here it is a T5, which writes a masked span and an answer alike, so one model and
one objective serve both (as in Lewis et al. 2020, RAG-Sequence).
"""

from t5x_like.architectures.retriever_reader import RetrievalVariant, RetrieverReader
from t5x_like.models import bert, t5

VARIANTS = {
  "realm-tiny": RetrievalVariant(bert.VARIANTS["bert-tiny"], t5.VARIANTS["t5-v1_1-tiny"], 64),  # for debugging
  "realm-base": RetrievalVariant(bert.VARIANTS["bert-base-uncased"], t5.VARIANTS["t5-v1_1-base"], 128),
  "realm-large": RetrievalVariant(bert.VARIANTS["bert-base-uncased"], t5.VARIANTS["t5-v1_1-large"], 128),
}


class Model(RetrieverReader):
  """A REALM of one of `VARIANTS`."""

  VARIANTS = VARIANTS
