"""T5: the encoder-decoder of Raffel et al. 2020 (https://arxiv.org/abs/1910.10683), versions 1.0 and 1.1.

Both are pre-norm with RMSNorm, without biases, with one relative position table for each stack and no 1/sqrt(H) in
attention (the query initialisation absorbs it). 1.0 has a ReLU feed-forward layer and shares the embedding with the
output, whose input is then scaled by 1/sqrt(D); 1.1 has a gated GELU (Shazeer 2020) and an output matrix of its own.
"""

import dataclasses
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.attention import Context, CrossAttention, SelfAttention
from t5x_like.nn.block import Block, Residual
from t5x_like.nn.decode import DecodeState
from t5x_like.nn.dims import Dims, subkey
from t5x_like.nn.embed import Embed, LogitsHead
from t5x_like.nn.mask import Mask, positions
from t5x_like.nn.mlp import Mlp
from t5x_like.nn.norm import RMSNorm
from t5x_like.nn.position import RelativeBias
from t5x_like.nn.stack import Stack


@dataclasses.dataclass(frozen=True)
class Variant:
  """One published size: widths as in the paper's table, and what version 1.1 changed."""

  embed: int
  mlp: int
  heads: int
  head_dim: int
  layers: int  # of the encoder, and again of the decoder
  gated: bool = False
  tied: bool = True

  @property
  def dims(self) -> Dims:
    return Dims(self.embed, self.heads, self.heads, self.head_dim, self.mlp, self.layers)


V1_1 = partial(Variant, gated=True, tied=False)

VARIANTS = {
  #                          embed    mlp heads head_dim layers
  "t5-tiny":         Variant(  256,  1024,   4,      64,     4),
  "t5-mini":         Variant(  384,  1536,   8,      64,     4),
  "t5-small":        Variant(  512,  2048,   8,      64,     6),
  "t5-base":         Variant(  768,  3072,  12,      64,    12),
  "t5-large":        Variant( 1024,  4096,  16,      64,    24),
  "t5-3b":           Variant( 1024, 16384,  32,     128,    24),
  "t5-11b":          Variant( 1024, 65536, 128,     128,    24),
  "t5-v1_1-tiny":    V1_1(     256,   512,   4,      64,     4),
  "t5-v1_1-mini":    V1_1(     384,   768,   8,      64,     4),
  "t5-v1_1-small":   V1_1(     512,  1024,   6,      64,     8),
  "t5-v1_1-base":    V1_1(     768,  2048,  12,      64,    12),
  "t5-v1_1-large":   V1_1(    1024,  2816,  16,      64,    24),
  "t5-v1_1-xl":      V1_1(    2048,  5120,  32,      64,    24),
  "t5-v1_1-xxl":     V1_1(    4096, 10240,  64,      64,    24),
}  # fmt: skip


class Model(nnx.Module):
  """A T5 of one of `VARIANTS`; see `__call__` for what goes in and out."""

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    variant: str,
    vocab_size: int,
    dropout: float = 0.0,
    dtype: Literal["float32", "bfloat16", "auto"] = "float32",
    remat: Literal["none", "dots", "full"] = "none",
    layers: Literal["scan", "loop", "auto"] = "scan",
  ):
    size = VARIANTS[variant]
    dims, D = size.dims, size.embed
    activation = partial(jax.nn.gelu, approximate=True) if size.gated else jax.nn.relu

    def attention(kind, rngs):
      # T5 leaves out the 1/sqrt(H) of the logits and makes queries smaller by it instead.
      query_init = params.fan_in_normal(D, gain=dims.head_dim**-0.5)
      return kind(dims, rngs, scale=1.0, query_init=query_init, dropout_rate=dropout)

    def residual(layer, rngs):
      return Residual(layer, in_norm=RMSNorm(D, rngs), dropout_rate=dropout)

    def mlp(rngs):
      return Mlp(D, dims.mlp, rngs, activation=activation, gated=size.gated, dropout_rate=dropout)

    def encoder_block(rngs):
      return Block(
        self_attention=residual(attention(SelfAttention, rngs), rngs),
        mlp=residual(mlp(rngs), rngs),
      )

    def decoder_block(rngs):
      return Block(
        self_attention=residual(attention(SelfAttention, rngs), rngs),
        cross_attention=residual(attention(CrossAttention, rngs), rngs),
        mlp=residual(mlp(rngs), rngs),
      )

    def stack(make_block, bidirectional):
      position = RelativeBias(dims.heads, rngs, bidirectional=bidirectional)
      norm = RMSNorm(D, rngs)
      return Stack(
        dims, make_block, rngs, position=position, final_norm=norm, dropout_rate=dropout, remat=remat, layers=layers
      )

    self.embed = Embed(vocab_size, D, rngs, init=params.normal(1.0))
    self.encoder = stack(encoder_block, bidirectional=True)
    self.decoder = stack(decoder_block, bidirectional=False)
    self.head = None if size.tied else LogitsHead(D, vocab_size, rngs, init=params.fan_in_normal(D))
    self.dtype = jnp.dtype(dtype)

  def __call__(self, batch: dict[str, jax.Array], key: jax.Array | None = None) -> dict[str, jax.Array]:
    """Teacher-forced logits.

    Args:
      batch: `encoder_input_tokens` [B, S] and `decoder_input_tokens` [B, T] int32; packed batches add
        `{encoder,decoder}_segment_ids` and `{encoder,decoder}_positions`.
      key: dropout key, or None for evaluation.
    Returns:
      {"logits": float32 [B, T, V]}
    """
    memory_BSD, k_pos, k_valid = self.encode(batch, subkey(key, 0))
    tokens_BT = batch["decoder_input_tokens"]
    q_pos = batch.get("decoder_positions", positions(tokens_BT.shape[1]))
    q_segments, k_segments = batch.get("decoder_segment_ids"), batch.get("encoder_segment_ids")
    context = Context(
      mask=Mask(q_pos, q_pos, q_segments, q_segments, causal=True),
      memory=memory_BSD,
      memory_mask=Mask(q_pos, k_pos, q_segments, k_segments, k_valid),
    )
    x_BTD, _, _ = self.decoder(self.embed(tokens_BT, self.dtype), context, key=subkey(key, 1))
    return {"logits": self.logits(x_BTD)}

  def encode(self, batch: dict[str, jax.Array], key: jax.Array | None = None):
    """Runs the encoder. Returns (memory [B, S, D], key positions, key validity bool [B, S])."""
    tokens_BS = batch["encoder_input_tokens"]
    pos = batch.get("encoder_positions", positions(tokens_BS.shape[1]))
    segments, valid_BS = batch.get("encoder_segment_ids"), tokens_BS > 0
    context = Context(mask=Mask(pos, pos, segments, segments, valid_BS))
    x_BSD, _, _ = self.encoder(self.embed(tokens_BS, self.dtype), context, key=key)
    return x_BSD, pos, valid_BS

  def logits(self, x_BTD: jax.Array) -> jax.Array:
    if self.head is None:
      return self.embed.attend(x_BTD * self.decoder.dims.embed**-0.5)
    return self.head(x_BTD)

  def start_decoding(self, batch: dict[str, jax.Array], slots: int) -> DecodeState:
    """Encodes `encoder_input_tokens` and makes an empty cache for `slots` decoded tokens."""
    memory_BSD, k_pos, k_valid = self.encode(batch)
    cross = jax.vmap(lambda block: block.cross_attention.layer.project_memory(memory_BSD, Mask(k_pos, k_pos)))
    cache = {
      "self_attention": self.decoder.self_cache(memory_BSD.shape[0], slots, self.dtype),
      "cross_attention": cross(self.decoder.blocks),
      "mlp": None,
    }
    return DecodeState.empty(cache, memory_BSD.shape[0], slots, k_pos, k_valid)

  def decode(self, tokens_BT: jax.Array, state: DecodeState) -> tuple[jax.Array, DecodeState]:
    """Feeds the next tokens through the cache. Returns (logits float32 [B, T, V], state)."""
    q_pos, state = state.advance(tokens_BT)
    context = Context(
      mask=Mask(q_pos, state.pos, k_valid=state.pos >= 0, causal=True),
      memory_mask=Mask(q_pos, state.memory_pos, k_valid=state.memory_valid),
      slot=state.slot - tokens_BT.shape[1],
    )
    x_BTD, _, cache = self.decoder(self.embed(tokens_BT, self.dtype), context, cache=state.cache)
    return self.logits(x_BTD), dataclasses.replace(state, cache=cache)
