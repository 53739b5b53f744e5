"""XLNet: an encoder that predicts tokens in random orders.

Yang et al. 2019, https://arxiv.org/abs/1906.08237.

In pretraining by `objectives.permutation_lm`, `encoder_order` numbers the tokens to predict in a
random order, and the query stream gives the predictions. Without an order, as in fine-tuning, the
model is an encoder of the content stream alone, where all tokens see each other. `nn.two_stream` is
the attention.

Published models put <cls> after the texts, A <sep> B <sep> <cls>, in a segment of its own. Here
rows begin with <cls>, as in every encoder, and `encode` gives it the position after the last token.
Attention depends only on distances and segments, so the hidden states are the same.

Left out: the memory of earlier rows (section 2.4), which published checkpoints do not need; an
example here is a function of its own index alone. GELU is exact, as in `transformers`; the authors'
code has its tanh form.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like import slots
from t5x_like.architectures.architecture import Batch
from t5x_like.architectures.build import StackBuilder
from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.architectures.encoder import Encoder
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.dims import Dims, subkey
from t5x_like.nn.layer import Context
from t5x_like.nn.two_stream import StreamMask, TwoStreamAttention

DESIGN = Design(
  norm="layernorm",
  norm_epsilon=1e-12,
  norm_position="post",
  activation="gelu",
  biases=("mlp",),
  core="dense",
  mlp_dropout=True,
  init_stddev=0.02,
  logits_bias=True,
)
TOKENS = Tokens(pad=5, start=3, eos=4)  # <pad>, <cls>, <sep>
CLS_TYPE = 2


def _xlnet(embed, mlp, heads, layers) -> Variant:
  dims = Dims(embed, heads, heads, embed // heads, mlp, layers)
  return Variant(dims, DESIGN, 32_000, TOKENS, types=3, head="lm")  # types: A, B and <cls>


VARIANTS = {
  #                     embed   mlp heads layers
  "xlnet-tiny":  _xlnet( 128,  512,  2,  2),  # for debugging
  "xlnet-base":  _xlnet( 768, 3072, 12, 12),
  "xlnet-large": _xlnet(1024, 4096, 16, 24),
}  # fmt: skip


class TwoStreamBuilder(StackBuilder):
  """A builder of blocks with two-stream attention.

  The attention compares token types, so the inputs have no vectors for them.
  """

  def inputs(self, rngs: nnx.Rngs, *, types: int = 0, **options):
    return super().inputs(rngs, **options)

  def _attention(self, kind: type, rngs: nnx.Rngs, layer_index: int | None = None):
    return super()._attention(TwoStreamAttention, rngs, layer_index)


class Model(Encoder):
  """An XLNet, one of `VARIANTS`: an encoder that also takes the feature `encoder_order`."""

  VARIANTS = VARIANTS
  STACK_BUILDER = TwoStreamBuilder

  def build(self, rngs: nnx.Rngs, **options) -> None:
    design = self.variant.design
    position, _ = slots.name_and_arguments("config.model.design.position", design.position)
    core, _ = slots.name_and_arguments("config.model.design.core", design.core)
    is_plain = position == "none" and core == "dense" and not design.qk_norm
    if not is_plain or design.attention_scale == "cosine":
      raise UserError(
        f"config.model.design: found position {position!r}, core {core!r}, qk_norm "
        f"{design.qk_norm} and attention_scale {design.attention_scale!r}, expected position "
        "'none', core 'dense', no qk_norm and no cosines: XLNet's attention has its own positions"
      )
    super().build(rngs, **options)
    width = self.variant.embed or self.variant.dims.embed
    # The first state of every query (w in section 2.3): it knows nothing of its token.
    self.unknown = params.param(rngs, design.table_init(), (width,), ("embed",))

  def outputs(self, batch: Batch, key: jax.Array | None = None) -> dict:
    """Compute the head's outputs from the content stream, or from the query stream for an order.

    Args:
      batch: the features of every encoder. To predict in an order, also `encoder_order` int32
        [B, S]: 0 for known tokens, and 1, 2, … for tokens to predict, each from all tokens with
        lower numbers. `encoder_masked_positions` int32 [B, K] are then the positions to predict
        (default: all).

    Returns:
      The head's outputs, such as "logits", or with an order "permutation_logits"
      (`VocabularyLogits` [B, K, V]); and auxiliary scalars.
    """
    if "encoder_order" not in batch:
      return super().outputs(batch, key)
    x_BTD, _, aux = self.encode(batch, subkey(key, 0))
    query_BKD = x_BTD[:, batch["encoder_order"].shape[1] :]
    outputs = self.head(query_BKD, self.embed, None, subkey(key, 1))
    return {"permutation_logits": outputs["logits"], **aux}

  def generate(self, batch: Batch, key: jax.Array | None = None) -> dict:
    """Compute `logits` of the tokens at `encoder_masked_positions` [B, K] from all other tokens."""
    tokens_BS = batch["encoder_input_tokens"]
    targets_BK = batch["encoder_masked_positions"]
    row_B1 = jnp.arange(len(tokens_BS))[:, None]
    order_BS = jnp.zeros_like(tokens_BS).at[row_B1, targets_BK].set(1)
    order_BS = order_BS.at[:, 0].set(0)  # unused slots point to [CLS]
    return {"logits": self.outputs(batch | {"encoder_order": order_BS}, key)["permutation_logits"]}

  def encode(self, batch: Batch, key: jax.Array | None = None):
    """Return (hidden states, validity bool [B, S] or None, scalars).

    Hidden states are [B, S, D], or [B, S + K, D] of both streams if the batch has an order.
    """
    tokens_BS, pos, segments_BS, valid = self._features(batch, "encoder")
    B, S = tokens_BS.shape
    pos_BS = jnp.broadcast_to(pos, (B, S))
    types_BS = batch.get("encoder_token_types", jnp.zeros_like(tokens_BS))
    text_BS = segments_BS
    if text_BS is None:
      text_BS = jnp.broadcast_to(True if valid is None else valid, (B, S))
    length_BS = jnp.sum(text_BS[:, :, None] == text_BS[:, None, :], axis=-1)
    cls_BS = (tokens_BS == self.variant.tokens.start) & (pos_BS == 0)
    pos_BS = jnp.where(cls_BS, length_BS, pos_BS)
    types_BS = jnp.where(cls_BS, CLS_TYPE, types_BS)
    order_BS = batch.get("encoder_order")
    targets_BK = jnp.broadcast_to(jnp.arange(S, dtype=jnp.int32), (B, S))
    if order_BS is None:
      targets_BK = targets_BK[:, :0]
    else:
      targets_BK = batch.get("encoder_masked_positions", targets_BK)
    mask = _stream_mask(pos_BS, types_BS, segments_BS, valid, order_BS, targets_BK)
    x_BSD = self.embed(tokens_BS, self.dtype)
    query = self.unknown[...].astype(x_BSD.dtype)
    query_BKD = jnp.broadcast_to(query, (*targets_BK.shape, x_BSD.shape[-1]))
    x_BTD = jnp.concatenate([x_BSD, query_BKD], axis=1)
    x_BTD = self.inputs(x_BTD, mask.q_pos, None, subkey(key, 0))
    x_BTD, aux, _ = self.encoder(x_BTD, Context(mask=mask), key=subkey(key, 1))
    return x_BTD, valid, aux


def _stream_mask(pos_BS, types_BS, segments_BS, valid, order_BS, targets_BK) -> StreamMask:
  """Build the mask of both streams from the values of all tokens and the positions to predict."""

  def append_targets(values_BS):
    values_BK = jnp.take_along_axis(values_BS, targets_BK, axis=1)
    return jnp.concatenate([values_BS, values_BK], axis=1)

  q_types = append_targets(types_BS)
  mask = StreamMask(
    append_targets(pos_BS), pos_BS, k_valid=valid, q_types=q_types, k_types=types_BS
  )
  if segments_BS is not None:
    mask = replace(mask, q_segments=append_targets(segments_BS), k_segments=segments_BS)
  if order_BS is not None:
    # The query stream does not see the token itself, so its queries come one number earlier.
    order_BK = jnp.take_along_axis(order_BS, targets_BK, axis=1)
    q_order = jnp.concatenate([order_BS, order_BK - 1], axis=1)
    mask = replace(mask, q_order=q_order, k_order=order_BS)
  return mask
