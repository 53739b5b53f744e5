"""BigBird: a RoBERTa-sized encoder for 4,096 tokens with block-sparse attention.

Zaheer et al. 2020, https://arxiv.org/abs/2007.14062.

The published models continue RoBERTa's weights with tanh-approximated GELU, the token types of BERT
and a vocabulary of 50,358 pieces. Sequences must be longer than `(5 + 2 * random_blocks) * block`
tokens (704); for shorter ones choose `design.core="dense"`, which has the same parameters.
"""

from dataclasses import replace

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.architectures.encoder import Encoder
from t5x_like.models import bert
from t5x_like.nn.dims import Dims

DESIGN = replace(
  bert.DESIGN,
  activation="gelu_tanh",
  position={"name": "learned", "length": 4096},
  core={"name": "bigbird", "block": 64, "random_blocks": 3},
)
TOKENS = Tokens(pad=0, start=1, eos=2)


def _bigbird(embed, mlp, heads, layers) -> Variant:
  return Variant(
    Dims(embed, heads, heads, embed // heads, mlp, layers), DESIGN, 50358, TOKENS, types=2
  )


VARIANTS = {
  "bigbird-tiny":          _bigbird(   128,  512,  2,  2),  # for debugging
  #                                  embed   mlp heads layers
  "bigbird-roberta-base":  _bigbird(   768, 3072, 12, 12),
  "bigbird-roberta-large": _bigbird(  1024, 4096, 16, 24),
}  # fmt: skip


class Model(Encoder):
  """A BigBird in one of its `VARIANTS`, with the features and arguments of every encoder."""

  VARIANTS = VARIANTS
