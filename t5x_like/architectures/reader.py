"""The reader: a decoder's stack under an encoder's head."""

import jax
from flax import nnx

from t5x_like import slots
from t5x_like.architectures import heads
from t5x_like.architectures.architecture import Batch, has_aligned_positions
from t5x_like.architectures.build import StackBuilder, deepnorm_weights
from t5x_like.architectures.encoder import Encoder
from t5x_like.nn.dims import subkey
from t5x_like.nn.hidden_states import LAST_STATE, read_states
from t5x_like.nn.layer import Context
from t5x_like.nn.mask import Mask


class Reader(Encoder):
  """A causal stack with the features and heads of encoders.

  It is "LTR & No NSP" in Devlin et al. 2019, section 5.1. Parameters are called as in a `Decoder`,
  from whose run `config.init` takes them. Token types are ignored.
  """

  def build(self, rngs: nnx.Rngs, **options) -> None:
    variant = self.variant
    dims = self.variant.dims
    deepnorm = deepnorm_weights(0, dims.layers)["decoder"]
    parts = StackBuilder(variant.design, dims, causal=True, deepnorm=deepnorm, **options)
    self.inputs = parts.inputs(rngs)
    self.decoder = parts.stack(rngs)
    self.head = slots.make(
      "config.model.head",
      variant.head,
      heads,
      "make",
      rngs=rngs,
      variant=variant,
      dropout_rate=parts.dropout_rate,
    )

  def encode(self, batch: Batch, key: jax.Array | None = None):
    tokens_BS, pos, segments, valid = self._features(batch, "encoder")
    mask = Mask(
      pos,
      pos,
      segments,
      segments,
      valid,
      causal=True,
      aligned=has_aligned_positions(batch, "encoder"),
    )
    x_BSD = self.inputs(self.embed(tokens_BS, self.dtype), pos, key=subkey(key, 0))
    states = getattr(self.head, "states", LAST_STATE)
    x_BSD, aux = read_states(
      self.decoder, x_BSD, Context(mask=mask, valid=valid), subkey(key, 1), states
    )
    return x_BSD, valid, aux
