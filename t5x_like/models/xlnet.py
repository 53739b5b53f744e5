"""XLNet: an encoder that predicts tokens in random orders (Yang et al. 2019,
https://arxiv.org/abs/1906.08237).

Pretraining by `objectives.permutation_lm` gives each token to predict its number in an order
(`encoder_order`), and reads the predictions off the query stream. Without an order, as in
fine-tuning, the model is an encoder of the content stream alone, where all tokens see each other.
`nn.two_stream` is the attention.

Published models put <cls> behind the texts, A <sep> B <sep> <cls>, in a segment of its own. Rows
here begin with it, as every encoder's do, and `encode` gives it the place behind the last token:
attention knows only distances and segments, so hidden states are those of the published order.

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
  return Variant(dims, DESIGN, 32_000, TOKENS, types=3, head="lm")  # A, B and that of <cls>


VARIANTS = {
  #                     embed   mlp heads layers
  "xlnet-tiny":  _xlnet( 128,  512,  2,  2),  # for debugging
  "xlnet-base":  _xlnet( 768, 3072, 12, 12),
  "xlnet-large": _xlnet(1024, 4096, 16, 24),
}  # fmt: skip


class TwoStreamBuilder(StackBuilder):
  """A builder of blocks with two-stream attention; token types are compared in it and have no
  vectors of their own."""

  def inputs(self, rngs: nnx.Rngs, *, types: int = 0, **options):
    return super().inputs(rngs, **options)

  def _attention(self, kind: type, rngs: nnx.Rngs, turn: int | None = None):
    return super()._attention(TwoStreamAttention, rngs, turn)


class Model(Encoder):
  """An XLNet in one of its `VARIANTS`, with the features and arguments of every encoder, and
  `encoder_order`."""

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
    self.unknown = params.param(rngs, design.table_init(), (width,), ("embed",))

  def outputs(self, batch: Batch, key: jax.Array | None = None) -> dict:
    """Compute the head's outputs from the content stream, or from the query stream if the batch has
    an order.

    Args:
      batch: as of every encoder; with `encoder_order` int32 [B, S], 0 for given tokens and 1, 2, …
        for the tokens to predict, each from the given ones and those with lower numbers, also
        `encoder_masked_positions` int32 [B, K], the positions to predict; without it, all.
    Returns:
      {"logits", …} of the head, or {"permutation_logits": `VocabularyLogits` [B, K, V]}; and
      auxiliary scalars.
    """
    if "encoder_order" not in batch:
      return super().outputs(batch, key)
    x_BTD, _, aux = self.encode(batch, subkey(key, 0))
    predicted_BKD = x_BTD[:, batch["encoder_order"].shape[1] :]
    return {
      "permutation_logits": self.head(predicted_BKD, self.embed, None, subkey(key, 1))["logits"]
    } | aux

  def generate(self, batch: Batch, key: jax.Array | None = None) -> dict:
    """Predict each token at `encoder_masked_positions` [B, K] from all others: {"logits":
    `VocabularyLogits`}."""
    tokens_BS = batch["encoder_input_tokens"]
    places_BK = batch["encoder_masked_positions"]
    order_BS = jnp.zeros_like(tokens_BS).at[jnp.arange(len(tokens_BS))[:, None], places_BK].set(1)
    order_BS = order_BS.at[:, 0].set(0)  # unused slots point to [CLS]
    return {"logits": self.outputs(batch | {"encoder_order": order_BS}, key)["permutation_logits"]}

  def encode(self, batch: Batch, key: jax.Array | None = None):
    """Return (hidden states [B, S, D], or [B, S + K, D] of both streams, validity bool [B, S] or
    None, scalars)."""
    tokens_BS, pos, segments, valid = self._features(batch, "encoder")
    (B, S), order_BS = tokens_BS.shape, batch.get("encoder_order")
    pos_BS = jnp.broadcast_to(pos, (B, S))
    types_BS = batch.get("encoder_token_types", jnp.zeros_like(tokens_BS))
    mine_BS = (
      jnp.broadcast_to(True if valid is None else valid, (B, S)) if segments is None else segments
    )
    size_BS = jnp.sum(mine_BS[:, :, None] == mine_BS[:, None, :], axis=-1)
    cls_BS = (tokens_BS == self.variant.tokens.start) & (pos_BS == 0)
    pos_BS = jnp.where(cls_BS, size_BS, pos_BS)
    types_BS = jnp.where(cls_BS, CLS_TYPE, types_BS)
    everywhere_BS = jnp.broadcast_to(jnp.arange(S, dtype=jnp.int32), (B, S))
    places_BK = (
      everywhere_BS[:, :0]
      if order_BS is None
      else batch.get("encoder_masked_positions", everywhere_BS)
    )

    def rows(x):
      """Append the values at the places to predict to those of all tokens."""
      return jnp.concatenate([x, jnp.take_along_axis(x, places_BK, axis=1)], axis=1)

    mask = StreamMask(rows(pos_BS), pos_BS, k_valid=valid, q_types=rows(types_BS), k_types=types_BS)
    if segments is not None:
      mask = replace(mask, q_segments=rows(segments), k_segments=segments)
    if order_BS is not None:  # the query stream does not see the token itself
      mask = replace(
        mask, q_order=rows(order_BS) - (jnp.arange(S + places_BK.shape[1]) >= S), k_order=order_BS
      )
    x_BSD = self.embed(tokens_BS, self.dtype)
    unknown_BKD = jnp.broadcast_to(
      self.unknown[...].astype(x_BSD.dtype), (*places_BK.shape, x_BSD.shape[-1])
    )
    x_BTD = self.inputs(
      jnp.concatenate([x_BSD, unknown_BKD], axis=1), mask.q_pos, None, subkey(key, 0)
    )
    x_BTD, aux, _ = self.encoder(x_BTD, Context(mask=mask), key=subkey(key, 1))
    return x_BTD, valid, aux
