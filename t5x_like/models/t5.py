"""T5, the encoder-decoder of Raffel et al. 2020 (arXiv:1910.10683), and its descendants.

All are pre-norm with RMSNorm, without biases, with learned relative position buckets and no
1/sqrt(H) in attention (the query initialisation absorbs it). T5 1.0 has a ReLU feed-forward layer
and shares the token table with the output, whose input is scaled by 1/sqrt(D); 1.1 has a gated GELU
(Shazeer 2020) and an untied output. mT5 (Xue et al. 2021) and ByT5 (Xue et al. 2022) are 1.1 with
other vocabularies and depths; umT5 (Chung et al. 2023) gives every layer its own position table.
"""

from dataclasses import replace
from functools import partial

from t5x_like.architectures.design import Design, Variant
from t5x_like.architectures.encoder_decoder import EncoderDecoder
from t5x_like.nn.dims import Dims

V1_0 = Design(
  norm="rmsnorm",
  norm_position="pre",
  activation="relu",
  position="relative_bias",
  attention_scale=1.0,
  mlp_dropout=True,
  shared_dropout=True,
  tied=True,
  logits_scale=True,
)
V1_1 = replace(V1_0, activation="geglu_tanh", tied=False, logits_scale=False)
UMT5 = replace(V1_1, position={"name": "relative_bias", "shared": False})


def _t5(embed, mlp, heads, head_dim, layers, design=V1_0, vocab_size=32128, **options) -> Variant:
  return Variant(Dims(embed, heads, heads, head_dim, mlp, layers), design, vocab_size, **options)


_v1_1 = partial(_t5, design=V1_1)
_mt5 = partial(_t5, design=V1_1, vocab_size=250_112)
_umt5 = partial(_t5, design=UMT5, vocab_size=256_384)
_byt5 = partial(_t5, design=V1_1, vocab_size=384)

VARIANTS = {
  #                       embed    mlp heads head_dim layers
  "t5-tiny":         _t5(   256,  1024,   4,      64,     4),
  "t5-mini":         _t5(   384,  1536,   8,      64,     4),
  "t5-small":        _t5(   512,  2048,   8,      64,     6),
  "t5-base":         _t5(   768,  3072,  12,      64,    12),
  "t5-base-6":       _t5(   768,  3072,  12,      64,     6),
  "t5-base-shared":  _t5(   768,  3072,  12,      64,    12, shared=True),
  "t5-large":        _t5(  1024,  4096,  16,      64,    24),
  "t5-3b":           _t5(  1024, 16384,  32,     128,    24),
  "t5-11b":          _t5(  1024, 65536, 128,     128,    24),
  "t5-v1_1-micro": _v1_1(   128,   256,   4,      32,     2),
  "t5-v1_1-tiny":  _v1_1(   256,   512,   4,      64,     4),
  "t5-v1_1-mini":  _v1_1(   384,   768,   8,      64,     4),
  "t5-v1_1-small": _v1_1(   512,  1024,   6,      64,     8),
  "t5-v1_1-base":  _v1_1(   768,  2048,  12,      64,    12),
  "t5-v1_1-large": _v1_1(  1024,  2816,  16,      64,    24),
  "t5-v1_1-xl":    _v1_1(  2048,  5120,  32,      64,    24),
  "t5-v1_1-xxl":   _v1_1(  4096, 10240,  64,      64,    24),
  "mt5-small":      _mt5(   512,  1024,   6,      64,     8),
  "mt5-base":       _mt5(   768,  2048,  12,      64,    12),
  "mt5-large":      _mt5(  1024,  2816,  16,      64,    24),
  "mt5-xl":         _mt5(  2048,  5120,  32,      64,    24),
  "mt5-xxl":        _mt5(  4096, 10240,  64,      64,    24),
  "umt5-small":    _umt5(   512,  1024,   6,      64,     8),
  "umt5-base":     _umt5(   768,  2048,  12,      64,    12),
  "umt5-xl":       _umt5(  2048,  5120,  32,      64,    24),
  "umt5-xxl":      _umt5(  4096, 10240,  64,      64,    24),
  "byt5-small":    _byt5(  1472,  3584,   6,      64,    12, decoder_layers=4),
  "byt5-base":     _byt5(  1536,  3968,  12,      64,    18, decoder_layers=6),
  "byt5-large":    _byt5(  1536,  3840,  16,      64,    36, decoder_layers=12),
  "byt5-xl":       _byt5(  2560,  6720,  32,      64,    36, decoder_layers=12),
  "byt5-xxl":      _byt5(  4672, 12352,  64,      64,    36, decoder_layers=12),
}  # fmt: skip


class Model(EncoderDecoder):
  """A T5 in one of its `VARIANTS`, with the features and arguments of every encoder-decoder."""

  VARIANTS = VARIANTS
