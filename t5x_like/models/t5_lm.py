"""The decoder-only models of Raffel et al. 2020, section 3.2 (https://arxiv.org/abs/1910.10683): a
stack of T5's blocks, in T5's sizes.

The plain sizes are the "language model". Those named `prefix-` are the "prefix LM", for batches
that mark their inputs in `decoder_causal_attention` (1 where attention is bidirectional): half of
their position buckets serve keys after the query, as in an encoder. The language model uses all
buckets for keys before it.
"""

from dataclasses import replace

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Variant
from t5x_like.models import t5

_CAUSAL = {
  name.removeprefix("t5-"): Variant(variant.dims, variant.design, variant.vocab_size)
  for name, variant in t5.VARIANTS.items()
  if name.startswith("t5-") and not variant.shared
}  # tiny … 11b and v1_1-tiny … v1_1-xxl
_PREFIX = {"name": "relative_bias", "bidirectional": True}

VARIANTS = _CAUSAL | {
  f"prefix-{name}": replace(variant, design=replace(variant.design, position=_PREFIX))
  for name, variant in _CAUSAL.items()
}


class Model(Decoder):
  """A language model of one of `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
