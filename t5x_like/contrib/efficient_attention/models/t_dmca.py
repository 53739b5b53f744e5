"""T-DMCA: a decoder that alternates local and memory-compressed attention.

Liu et al. 2018, arXiv:1801.10198.

Its five layers are LMLML: local, memory-compressed, local, memory-compressed, local (section
4.2.3). In all else it is the decoder of the base Transformer without the encoder, which is here
too, as `t-d` (section 4.2.2). Sizes named `-moe-` have one layer of experts with the gate of
Shazeer et al. 2017. The paper does not say which layer: the third has them in the authors' code
(`transformer_moe_prepend_8k` of Tensor2Tensor, where a token uses two experts of 2,048 units and
both losses weigh 0.01). Here an expert takes at most twice its share of a row.

Three details differ from the paper. Local attention is a window of the latest 256 tokens, instead
of separate blocks of 256. Convolutions mix the channels of a head, and queries before the first
whole stride see a learned key; see `cores.memory_compressed`.
"""

from dataclasses import replace

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Variant
from t5x_like.models.transformer import VASWANI
from t5x_like.nn.dims import Dims
from t5x_like.nn.feed_forward import Experts


def _lmlml(window=256, **changes) -> dict:
  local = {"name": "local", "window": window}
  compressed = {"name": "memory_compressed", "stride": 3}
  return {"core": (local, compressed, local, compressed, local), **changes}


def _experts(number) -> dict:
  losses = dict(importance_loss=0.01, load_loss=0.01)
  experts = Experts(
    number, top_k=2, router="noisy_top_k", dispatch="capacity", capacity_factor=2.0, **losses
  )
  return {"experts": experts, "experts_every": 3}


def _decoder(embed, heads, mlp, layers, **changes) -> Variant:
  design = replace(VASWANI, embed_init=embed**-0.5, **changes)
  return Variant(Dims(embed, heads, heads, embed // heads, mlp, layers), design, 32_000)


VARIANTS = {
  #                            embed heads  mlp layers
  # these three are for debugging
  "t-dmca-tiny-moe-4": _decoder(256,    4, 1024,     5, **_lmlml(32, **_experts(4))),
  "t-dmca-tiny":       _decoder(256,    4, 1024,     5, **_lmlml(32)),
  "t-d-tiny":          _decoder(256,    4, 1024,     2),
  "t-dmca":            _decoder(512,    8, 2048,     5, **_lmlml()),
  "t-dmca-moe-128":    _decoder(512,    8, 2048,     5, **_lmlml(**_experts(128))),
  "t-dmca-moe-256":    _decoder(512,    8, 2048,     5, **_lmlml(**_experts(256))),
  "t-d":               _decoder(512,    8, 2048,     6),
}  # fmt: skip


class Model(Decoder):
  """A T-DMCA in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
