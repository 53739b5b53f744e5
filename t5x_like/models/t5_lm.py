"""The decoder-only models of Raffel et al. 2020 (arXiv:1910.10683), section 3.2.

They are stacks of T5's blocks, in T5's sizes. Variants named by size alone are the paper's
"language model", in which every position bucket is for keys before the query. Variants named
`prefix-…` are its "prefix LM", in which half of the position buckets are for keys after the query,
as in an encoder. A batch marks the prefix in `decoder_causal_attention` (1 where attention is
bidirectional).
"""

from dataclasses import replace

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Variant
from t5x_like.models import t5

# tiny to 11b and v1_1-micro to v1_1-xxl; an encoder-decoder that shares its parameters is left out
_CAUSAL = {
  name.removeprefix("t5-"): Variant(variant.dims, variant.design, variant.vocab_size)
  for name, variant in t5.VARIANTS.items()
  if name.startswith("t5-") and not variant.shared
}
_PREFIX = {"name": "relative_bias", "bidirectional": True}

VARIANTS = _CAUSAL | {
  f"prefix-{name}": replace(variant, design=replace(variant.design, position=_PREFIX))
  for name, variant in _CAUSAL.items()
}


class Model(Decoder):
  """A language model, one of `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
