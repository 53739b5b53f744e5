"""REALM: a retriever and a reader that are trained together.

Guu et al. 2020, https://arxiv.org/abs/2002.08909.

The retriever is a BERT: a query and a passage are compared by the inner product of their [CLS]
states, projected to 128 dimensions by a matrix for queries and one for passages (Lee et al. 2019,
section 3; the authors' code takes BERT's pooled states, has one matrix and normalises after it).
The paper's reader is a BERT too, with one head for masked tokens and another for spans. Here a T5
writes both, so one model and one objective serve both (as in Lewis et al. 2020, RAG-Sequence).
"""

from t5x_like.contrib.retrieval.retriever_reader import RetrievalVariant, RetrieverReader
from t5x_like.models import bert, t5

VARIANTS = {
  # for debugging
  "realm-tiny": RetrievalVariant(bert.VARIANTS["bert-tiny"], t5.VARIANTS["t5-v1_1-tiny"], 64),
  "realm-base": RetrievalVariant(
    bert.VARIANTS["bert-base-uncased"], t5.VARIANTS["t5-v1_1-base"], 128
  ),
  "realm-large": RetrievalVariant(
    bert.VARIANTS["bert-base-uncased"], t5.VARIANTS["t5-v1_1-large"], 128
  ),
}


class Model(RetrieverReader):
  """A REALM in one of its `VARIANTS`."""

  VARIANTS = VARIANTS
