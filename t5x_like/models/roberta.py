"""RoBERTa and XLM-RoBERTa.

RoBERTa is BERT trained longer, without next sentences (Liu et al. 2019,
https://arxiv.org/abs/1907.11692). XLM-RoBERTa is the same with a vocabulary for 100 languages
(Conneau et al. 2020, https://arxiv.org/abs/1911.02116).

There is one token type, padding is id 1, and position 0 is row 2 of the position table, as in
fairseq.
"""

from dataclasses import replace

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.architectures.encoder import Encoder
from t5x_like.models import bert
from t5x_like.nn.dims import Dims

DESIGN = replace(
  bert.DESIGN, norm_epsilon=1e-5, position={"name": "learned", "length": 512, "offset": 2}
)
TOKENS = Tokens(pad=1, start=0, eos=2)


def _roberta(embed, mlp, heads, layers, vocab_size) -> Variant:
  return Variant(
    Dims(embed, heads, heads, embed // heads, mlp, layers), DESIGN, vocab_size, TOKENS, types=1
  )


VARIANTS = {
  #                            embed   mlp heads layers vocab
  "roberta-tiny":      _roberta( 128,  512,  2,  2, 50265),  # for debugging; BERT's tiny size
  "roberta-base":      _roberta( 768, 3072, 12, 12,  50265),
  "roberta-large":     _roberta(1024, 4096, 16, 24,  50265),
  "xlm-roberta-base":  _roberta( 768, 3072, 12, 12, 250002),
  "xlm-roberta-large": _roberta(1024, 4096, 16, 24, 250002),
}  # fmt: skip


class Model(Encoder):
  """A RoBERTa in one of its `VARIANTS`, with the features and arguments of every encoder."""

  VARIANTS = VARIANTS
