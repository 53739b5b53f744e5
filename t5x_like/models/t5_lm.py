"""The decoder-only models of Raffel et al. 2020, section 3.2 (https://arxiv.org/abs/1910.10683): one stack of T5's
blocks, of T5's sizes.

The same model is a "language model", and a "prefix LM" where a batch marks its inputs in `decoder_causal_attention`
(1 where attention is bidirectional). Position buckets are those of a decoder: tokens of the prefix that come after a
query all share the bucket of the query's own position.
"""

from t5x_like.models import t5
from t5x_like.nn.architectures import Decoder, Variant

VARIANTS = {
  name.removeprefix("t5-"): Variant(variant.dims, variant.design, variant.vocab_size)
  for name, variant in t5.VARIANTS.items()
  if name.startswith("t5-") and not variant.shared
}  # tiny … 11b and v1_1-tiny … v1_1-xxl


class Model(Decoder):
  """A language model of one of `VARIANTS`; features and arguments are those of every decoder."""

  VARIANTS = VARIANTS
