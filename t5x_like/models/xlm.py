"""XLM: BERT with a vector for the language of each token.

Lample and Conneau 2019, https://arxiv.org/abs/1901.07291.

Languages are given as token types; models of many languages have none (`types=0`, Conneau et al.
2020). The task `translation_lm` reads data for translation language modelling.

Two details differ from the authors' code. Sentences begin with <s>, as in `transformers`; their
code begins them with </s>. Parameters are initialised as in BERT; their code draws embedding tables
from N(0, 1/D) and leaves the others at PyTorch's defaults.
"""

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.architectures.encoder import Encoder
from t5x_like.models import bert
from t5x_like.nn.dims import Dims

TOKENS = Tokens(pad=2, start=0, eos=1)


def _xlm(embed, heads, layers, vocab_size, languages) -> Variant:
  dims = Dims(embed, heads, heads, embed // heads, 4 * embed, layers)
  return Variant(dims, bert.DESIGN, vocab_size, TOKENS, types=languages, head="linear_mlm")


VARIANTS = {
  #                  embed heads layers  vocab  languages
  "xlm-tiny":   _xlm( 128,  2,  2,  30_145,  2),  # for debugging
  "xlm-ende":   _xlm(1024,  8,  6,  64_699,  2),  # xlm-mlm-ende-1024
  "xlm-xnli15": _xlm(1024,  8, 12,  95_000, 15),  # xlm-mlm-tlm-xnli15-1024
  # xlm-mlm-17-1280; xlm-mlm-100-1280 has the same size
  "xlm-17":     _xlm(1280, 16, 16, 200_000,  0),
}  # fmt: skip


class Model(Encoder):
  """An XLM in one of its `VARIANTS`, with the features and arguments of every encoder."""

  VARIANTS = VARIANTS
