"""The reader, an encoder that reads from left to right: a causal stack below an encoder's head."""

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

  Devlin et al. 2019, section 5.1, call it "LTR & No NSP". Its parameters have the same names as a
  `Decoder`'s, so `config.init` can load them from a decoder's run. Token types are ignored.
  """

  def build(self, rngs: nnx.Rngs, **options) -> None:
    """Build the inputs and blocks of a decoder, and the head of `config.model.head`."""
    variant = self.variant
    deepnorm = deepnorm_weights(encoder_layers=0, decoder_layers=variant.dims.layers)["decoder"]
    builder = StackBuilder(variant.design, variant.dims, causal=True, deepnorm=deepnorm, **options)
    self.inputs = builder.inputs(rngs)
    self.decoder = builder.stack(rngs)
    self.head = slots.make(
      "config.model.head",
      variant.head,
      heads,
      "make",
      rngs=rngs,
      variant=variant,
      dropout_rate=builder.dropout_rate,
    )

  def encode(self, batch: Batch, key: jax.Array | None = None):
    """Return (hidden states for the head [B, S, X], valid tokens [B, S], auxiliary scalars)."""
    tokens_BS, pos, segments, valid = self._features(batch, "encoder")
    mask = Mask(
      q_pos=pos,
      k_pos=pos,
      q_segments=segments,
      k_segments=segments,
      k_valid=valid,
      causal=True,
      aligned=has_aligned_positions(batch, "encoder"),
    )
    x_BSD = self.inputs(self.embed(tokens_BS, self.dtype), pos, key=subkey(key, 0))
    context = Context(mask=mask, valid=valid)
    state_numbers = getattr(self.head, "states", LAST_STATE)
    states_BSX, aux = read_states(self.decoder, x_BSD, context, subkey(key, 1), state_numbers)
    return states_BSX, valid, aux
