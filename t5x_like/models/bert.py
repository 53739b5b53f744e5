"""BERT: the bidirectional encoder of Devlin et al. 2019 (https://arxiv.org/abs/1810.04805).

Post-norm with LayerNorm, biases everywhere, learned positions and token types, and a norm on the
embeddings. GELU is exact and initial values are normal, as in `transformers`; the authors' code now
has its tanh form, and draws values beyond two deviations anew. The smaller sizes are from Turc et
al. 2019 (https://arxiv.org/abs/1908.08962). Pretraining has two heads, masked tokens (tied to the
token table) and next sentence; fine-tuning selects another with `head`.
"""

from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.architectures.encoder import Encoder
from t5x_like.nn.dims import Dims

DESIGN = Design(
  norm="layernorm",
  norm_epsilon=1e-12,
  norm_position="post",
  activation="gelu",
  biases=("qkv", "out", "mlp"),
  position={"name": "learned", "length": 512},
  init_stddev=0.02,
  embed_norm=True,
)
TOKENS = Tokens(pad=0, start=101, eos=102)  # [PAD], [CLS], [SEP]


def _bert(embed, mlp, heads, layers, vocab_size) -> Variant:
  dims = Dims(embed, heads, heads, embed // heads, mlp, layers)
  return Variant(dims, DESIGN, vocab_size, TOKENS, types=2, head="pretraining")


VARIANTS = {
  #                                   embed   mlp heads layers vocab
  "bert-tiny":                   _bert(  128,  512,  2,  2,  30522),
  "bert-mini":                   _bert(  256, 1024,  4,  4,  30522),
  "bert-small":                  _bert(  512, 2048,  8,  4,  30522),
  "bert-medium":                 _bert(  512, 2048,  8,  8,  30522),
  "bert-base-uncased":           _bert(  768, 3072, 12, 12,  30522),
  "bert-base-cased":             _bert(  768, 3072, 12, 12,  28996),
  "bert-base-multilingual-cased": _bert( 768, 3072, 12, 12, 119547),
  "bert-large-uncased":          _bert( 1024, 4096, 16, 24,  30522),
  "bert-large-cased":            _bert( 1024, 4096, 16, 24,  28996),
}  # fmt: skip


class Model(Encoder):
  """A BERT in one of its `VARIANTS`, with the features and arguments of every encoder."""

  VARIANTS = VARIANTS
