"""GPT: decoder-only language models of OpenAI.

Radford et al. 2018, 2019; Brown et al. 2020 (arXiv:2005.14165).

All have LayerNorm, GELU (its tanh form), learned positions and biases everywhere, and share the
token table with the output. GPT-1 is post-norm; GPT-2 is pre-norm with a final norm, and the
kernels that write to the residual stream start smaller; positions start from N(0, 0.01^2), as in
its released code. GPT-3 is GPT-2 with 2,048 positions; its attention is dense in all layers here,
while every second one in the paper is locally banded sparse. Two sizes follow the counts of table
D.1 instead of table 2.1: XL has 16 heads, not 24, and 13B a width of 5,120, not 5,140.

Special ids are for vocabularies built here; the ids of other data come first. Published
vocabularies have no padding.
"""

from dataclasses import replace

from t5x_like.architectures import reader
from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Variant
from t5x_like.nn.dims import Dims

GPT1 = Design(
  norm="layernorm",
  norm_epsilon=1e-5,
  norm_position="post",
  activation="gelu_tanh",
  biases=("qkv", "out", "mlp"),
  position={"name": "learned", "length": 512},
  init_stddev=0.02,
  tied=True,
)
GPT2 = replace(
  GPT1,
  norm_position="pre",
  position=GPT1.position | {"length": 1024, "stddev": 0.01},
  residual_init=True,
)
GPT3 = replace(GPT2, position=GPT2.position | {"length": 2048})


def _gpt(design, embed, heads, layers, vocab_size=50257) -> Variant:
  return Variant(Dims(embed, heads, heads, embed // heads, 4 * embed, layers), design, vocab_size)


VARIANTS = {
  #                    design  embed heads layers
  "gpt1":          _gpt(GPT1,   768,   12,   12, vocab_size=40478),
  "gpt2-micro":    _gpt(GPT2,   128,    2,    2),
  "gpt2-tiny":     _gpt(GPT2,   256,    4,    4),
  "gpt2":          _gpt(GPT2,   768,   12,   12),
  "gpt2-medium":   _gpt(GPT2,  1024,   16,   24),
  "gpt2-large":    _gpt(GPT2,  1280,   20,   36),
  "gpt2-xl":       _gpt(GPT2,  1600,   25,   48),
  "gpt3-small":    _gpt(GPT3,   768,   12,   12),
  "gpt3-medium":   _gpt(GPT3,  1024,   16,   24),
  "gpt3-large":    _gpt(GPT3,  1536,   16,   24),
  "gpt3-xl":       _gpt(GPT3,  2048,   16,   24),
  "gpt3-2.7b":     _gpt(GPT3,  2560,   32,   32),
  "gpt3-6.7b":     _gpt(GPT3,  4096,   32,   32),
  "gpt3-13b":      _gpt(GPT3,  5120,   40,   40),
  "gpt3-175b":     _gpt(GPT3, 12288,   96,   96),
}  # fmt: skip


class Model(Decoder):
  """A GPT in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS


class Reader(reader.Reader):
  """A GPT under an encoder's head.

  `config.model.head` chooses it for a run that starts from a GPT.
  """

  VARIANTS = VARIANTS
