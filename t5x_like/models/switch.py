"""Switch Transformers: T5 with a mixture of experts, one for each token.

Fedus et al. 2022, arXiv:2101.03961.

The second feed-forward layer of each pair has experts; in `switch-c-2048` every layer does. Sizes,
activations and outputs follow Flaxformer's Switch configurations: base and large have the ReLU of
T5 1.0 and a tied output, xxl has T5 1.1's gated GELU; xxl and c have an untied output. Table 9 of
the paper instead describes base and large as gated, with feed-forward widths of 2048 and 2816.

By default no token is dropped, so that a token's output does not depend on its neighbours in the
batch. The paper trains with `dispatch="capacity"`, as the recipe in `configs/switch` does.
"""

from dataclasses import replace

from t5x_like.architectures.design import Variant
from t5x_like.architectures.encoder_decoder import EncoderDecoder
from t5x_like.models.t5 import V1_0
from t5x_like.nn.dims import Dims
from t5x_like.nn.feed_forward import Experts

ROUTING = Experts(top_k=1, normalise=False, jitter=0.01, balance_loss=0.01, z_loss=0.0)


def _switch(embed, mlp, heads, layers, experts, experts_every=2, **changes) -> Variant:
  routing = replace(ROUTING, experts=experts)
  design = replace(V1_0, experts=routing, experts_every=experts_every, **changes)
  return Variant(Dims(embed, heads, heads, 64, mlp, layers), design, vocab_size=32128)


_OUTPUT = {"tied": False, "logits_scale": False}

VARIANTS = {
  #                          embed    mlp heads layers experts
  "switch-tiny-8":    _switch( 256,   512,    4,     4,      8),
  "switch-base-8":    _switch( 768,  3072,   12,    12,      8),
  "switch-base-16":   _switch( 768,  3072,   12,    12,     16),
  "switch-base-32":   _switch( 768,  3072,   12,    12,     32),
  "switch-base-64":   _switch( 768,  3072,   12,    12,     64),
  "switch-base-128":  _switch( 768,  3072,   12,    12,    128),
  "switch-base-256":  _switch( 768,  3072,   12,    12,    256),
  "switch-large-128": _switch(1024,  4096,   16,    24,    128),
  "switch-xxl-128":   _switch(4096, 10240,   64,    24,    128, activation="geglu_tanh", **_OUTPUT),
  "switch-c-2048":    _switch(2080,  6144,   30,    15,   2048, experts_every=1, **_OUTPUT),
}  # fmt: skip


class Model(EncoderDecoder):
  """A Switch Transformer in one of its `VARIANTS`, called as every encoder-decoder."""

  VARIANTS = VARIANTS
