"""The three architectures: encoder, decoder, encoder-decoder. A family in `models/` is one of these and its table.

All are called as `model(batch, key) -> {"logits", …}` with the batch features of T5X (docs/explanation/architecture.md). Id
`tokens.pad` is padding where a batch has no segment ids; with segment ids, segment 0 is.
"""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn import heads
from t5x_like.nn.decode import DecodeState
from t5x_like.nn.design import Design, deepnorm_weights
from t5x_like.nn.dims import Dims, subkey
from t5x_like.nn.embed import Embed
from t5x_like.nn.layer import CacheStart, Context
from t5x_like.nn.mask import Mask, positions

Batch = dict[str, jax.Array]
MASKED = "encoder_masked_positions"
Dtype = Literal["float32", "bfloat16", "auto"]
Remat = Literal["none", "dots", "full"]
Layers = Literal["scan", "loop", "auto"]


@dataclasses.dataclass(frozen=True)
class Tokens:
  """Ids with a meaning: padding (None: there is none), what a decoder starts with, and what ends a sequence."""

  pad: int | None = 0
  start: int = 0
  eos: int = 1

  def changed(self, changes: dict) -> "Tokens":
    """These ids with a recipe's changes.

    Raises:
      UserError: a key that is none, or an id that is none.
    """
    for key, value in dict(changes).items():
      if key not in ("pad", "start", "eos") or not (type(value) is int or key == "pad" and value is None):
        raise UserError(f"config.model.tokens.{key}: found {value!r}, expected ids for pad, start and eos")
    return dataclasses.replace(self, **dict(changes))


@dataclasses.dataclass(frozen=True)
class Variant:
  """One published size of a family.

  Attributes:
    dims: of the encoder, or of the only stack.
    design: what its blocks are.
    vocab_size: published size of the token table.
    tokens: special ids.
    types: token types (BERT's segments).
    embed: width of the token table where it is not that of the stack.
    decoder_layers: of an encoder-decoder; None is as many as the encoder has.
    shared: the encoder is the decoder without its cross-attention (Raffel et al. 2020, section 3.2.2).
    head: of an encoder; see `nn.heads.make_head`.
  """

  dims: Dims
  design: Design
  vocab_size: int
  tokens: Tokens = Tokens()
  types: int = 0
  embed: int | None = None
  decoder_layers: int | None = None
  shared: bool = False
  head: str | dict = "mlm"


class Architecture(nnx.Module):
  """What the three share: looking up the variant, the token table and the output."""

  VARIANTS: ClassVar[dict[str, Variant]] = {}
  NEEDS: ClassVar[tuple[str, ...]] = ()  # the features it cannot do without; its outputs stand beside the last

  def _open(
    self, variant: str | Variant, vocab_size: int | None, design: dict, dtype: Dtype, rngs: nnx.Rngs, tokens: dict
  ) -> Variant:
    """The variant with a recipe's changes; `tokens` are those of a vocabulary that is not the published one."""
    variant = self.VARIANTS[variant] if isinstance(variant, str) else variant
    variant = dataclasses.replace(
      variant,
      design=variant.design.changed(design),
      vocab_size=vocab_size or variant.vocab_size,
      tokens=variant.tokens.changed(tokens),
    )
    self.variant = variant
    self.dtype = jnp.dtype(dtype)
    width = variant.embed or variant.dims.embed
    self.embed = Embed(variant.vocab_size, width, rngs, init=variant.design.table_init())
    return variant

  def _lm_head(self, rngs: nnx.Rngs) -> heads.LmHead:
    design, D, V = self.variant.design, self.variant.dims.embed, self.variant.vocab_size
    return heads.LmHead(
      rngs,
      shape=None if design.tied else (D, V),
      init=design.kernel_init(D),
      scale=D**-0.5 if design.logits_scale else 1.0,
      softcap=design.logits_softcap,
      bias=V if design.logits_bias else None,
    )

  def _features(self, batch: Batch, side: str):
    """(tokens, positions, segments, validity) of one side of a batch."""
    tokens_BT = batch[f"{side}_input_tokens"]
    pos = batch.get(f"{side}_positions", positions(tokens_BT.shape[1]))
    segments = batch.get(f"{side}_segment_ids")
    valid = tokens_BT != self.variant.tokens.pad if self.variant.tokens.pad is not None else None
    if segments is not None:
      valid = segments > 0
    return tokens_BT, pos, segments, valid


class Encoder(Architecture):
  """Bidirectional: every token sees every other."""

  NEEDS = ("encoder_input_tokens",)

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    variant: str | Variant,
    vocab_size: int | None = None,
    head: str | dict | None = None,
    dropout: float = 0.0,
    dtype: Dtype = "float32",
    remat: Remat = "none",
    layers: Layers = "scan",
    design: dict = {},  # noqa: B006 (never written to)
    tokens: dict = {},  # noqa: B006
  ):
    variant = self._open(variant, vocab_size, design, dtype, rngs, tokens)
    dims, design = variant.dims, variant.design
    deepnorm = deepnorm_weights(dims.layers, 0)["encoder"]
    width = variant.embed or dims.embed
    self.inputs = design.make_inputs(width, dims.embed, rngs, dropout_rate=dropout, types=variant.types)
    self.encoder = design.make_stack(
      dims, rngs, causal=False, deepnorm=deepnorm, dropout_rate=dropout, remat=remat, layers=layers
    )
    self.variant = dataclasses.replace(variant, head=head or variant.head)
    self.head = heads.make_head(self.variant.head, variant, rngs, dropout_rate=dropout)

  def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    """What the head says.

    Args:
      batch: `encoder_input_tokens` int32 [B, S]; optional `encoder_token_types`, and for packed batches
        `encoder_segment_ids` and `encoder_positions`; `encoder_masked_positions` int32 [B, K] where only some tokens
        are predicted.
      key: dropout key, or None for evaluation.
    Returns:
      {"logits", …}: float32 [B, S, V] of the MLM head, [B, K, V] at masked positions; see `nn.heads` for the others.
    """
    x_BSD, valid, aux = self.encode(batch, subkey(key, 0))
    places = {"places_BK": batch[MASKED]} if MASKED in batch else {}
    return self.head(x_BSD, self.embed, valid, subkey(key, 1), **places) | aux

  def encode(self, batch: Batch, key: jax.Array | None = None):
    """Returns (hidden states [B, S, D], validity bool [B, S] or None, auxiliary scalars)."""
    tokens_BS, pos, segments, valid = self._features(batch, "encoder")
    context = Context(mask=Mask(pos, pos, segments, segments, valid))
    x_BSD = self.inputs(self.embed(tokens_BS, self.dtype), pos, batch.get("encoder_token_types"), subkey(key, 0))
    x_BSD, aux, _ = self.encoder(x_BSD, context, key=subkey(key, 1))
    return x_BSD, valid, aux


class Decoder(Architecture):
  """Causal: every token sees those before it; a prefix, where the batch marks one, sees itself whole."""

  NEEDS = ("decoder_input_tokens",)

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    variant: str | Variant,
    vocab_size: int | None = None,
    dropout: float = 0.0,
    dtype: Dtype = "float32",
    remat: Remat = "none",
    layers: Layers = "scan",
    design: dict = {},  # noqa: B006
    tokens: dict = {},  # noqa: B006
  ):
    variant = self._open(variant, vocab_size, design, dtype, rngs, tokens)
    dims, design = variant.dims, variant.design
    deepnorm = deepnorm_weights(0, dims.layers)["decoder"]
    self.inputs = design.make_inputs(dims.embed, dims.embed, rngs, dropout_rate=dropout)
    self.decoder = design.make_stack(
      dims, rngs, causal=True, deepnorm=deepnorm, dropout_rate=dropout, remat=remat, layers=layers
    )
    self.head = self._lm_head(rngs)

  def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    """Logits of the next token everywhere.

    Args:
      batch: `decoder_input_tokens` int32 [B, T]; optional `decoder_causal_attention` (1 where attention is
        bidirectional), and for packed batches `decoder_segment_ids` and `decoder_positions`.
      key: dropout key, or None for evaluation.
    Returns:
      {"logits": float32 [B, T, V]} and auxiliary scalars.
    """
    tokens_BT, pos, segments, valid = self._features(batch, "decoder")
    prefix = _prefix(batch, valid)
    mask = Mask(pos, pos, segments, segments, valid, prefix, causal=True)
    x_BTD = self.inputs(self.embed(tokens_BT, self.dtype), pos, key=subkey(key, 0))
    x_BTD, aux, _ = self.decoder(x_BTD, Context(mask=mask), key=subkey(key, 1))
    return self.head(x_BTD, self.embed, valid) | aux

  def prompt(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """What generation goes on from: (int32 [B, P], which of them are tokens and not padding)."""
    tokens_BP, _, _, valid = self._features(batch, "decoder")
    return tokens_BP, jnp.ones(tokens_BP.shape, bool) if valid is None else valid

  def start_decoding(self, batch: Batch, slots: int) -> DecodeState:
    """An empty cache for `slots` tokens, those of the prompt included."""
    B = batch["decoder_input_tokens"].shape[0]
    cache = self.decoder.start_cache(CacheStart(B, slots, self.dtype))
    return DecodeState.empty(cache, B, slots, prefix="decoder_causal_attention" in batch)

  def decode(self, tokens_BT: jax.Array, state: DecodeState, valid_BT=None, prefix_BT=None):
    """Feeds the next tokens through the cache; see `DecodeState.advance`. Returns (logits [B, T, V], state)."""
    q_pos, state = state.advance(tokens_BT, valid_BT, prefix_BT)
    context = Context(mask=state.mask(q_pos), slot=state.slot - tokens_BT.shape[1])
    x_BTD = self.inputs(self.embed(tokens_BT, self.dtype), q_pos)
    x_BTD, _, cache = self.decoder(x_BTD, context, cache=state.cache)
    return self.head(x_BTD, self.embed)["logits"], dataclasses.replace(state, cache=cache)


class EncoderDecoder(Architecture):
  """A decoder that also attends to the output of an encoder."""

  NEEDS = ("encoder_input_tokens", "decoder_input_tokens")

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    variant: str | Variant,
    vocab_size: int | None = None,
    dropout: float = 0.0,
    dtype: Dtype = "float32",
    remat: Remat = "none",
    layers: Layers = "scan",
    design: dict = {},  # noqa: B006
    tokens: dict = {},  # noqa: B006
  ):
    variant = self._open(variant, vocab_size, design, dtype, rngs, tokens)
    dims, design = variant.dims, variant.design
    decoder_dims = dataclasses.replace(dims, layers=variant.decoder_layers or dims.layers)
    deepnorm = deepnorm_weights(dims.layers, decoder_dims.layers)
    options = dict(dropout_rate=dropout, remat=remat, layers=layers)
    self.encoder_inputs = design.make_inputs(dims.embed, dims.embed, rngs, dropout_rate=dropout)
    self.encoder = (
      None if variant.shared else design.make_stack(dims, rngs, causal=False, deepnorm=deepnorm["encoder"], **options)
    )
    self.decoder_inputs = design.make_inputs(dims.embed, dims.embed, rngs, dropout_rate=dropout)
    self.decoder = design.make_stack(
      decoder_dims, rngs, causal=True, cross=True, deepnorm=deepnorm["decoder"], **options
    )
    self.head = self._lm_head(rngs)

  def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    """Teacher-forced logits.

    Args:
      batch: `encoder_input_tokens` [B, S] and `decoder_input_tokens` [B, T] int32; packed batches add
        `{encoder,decoder}_segment_ids` and `{encoder,decoder}_positions`.
      key: dropout key, or None for evaluation.
    Returns:
      {"logits": float32 [B, T, V]} and auxiliary scalars.
    """
    memory_BSD, k_pos, k_segments, k_valid, aux = self.encode(batch, subkey(key, 0))
    tokens_BT = batch["decoder_input_tokens"]
    q_pos = batch.get("decoder_positions", positions(tokens_BT.shape[1]))
    q_segments = batch.get("decoder_segment_ids")
    both = q_segments is not None and k_segments is not None
    context = Context(
      mask=Mask(q_pos, q_pos, q_segments, q_segments, causal=True),
      memory=memory_BSD,
      memory_mask=Mask(q_pos, k_pos, q_segments if both else None, k_segments if both else None, k_valid),
      valid=_after_start(tokens_BT, self.variant.tokens.pad) if q_segments is None else None,
    )
    x_BTD = self.decoder_inputs(self.embed(tokens_BT, self.dtype), q_pos, key=subkey(key, 1))
    x_BTD, decoder_aux, _ = self.decoder(x_BTD, context, key=subkey(key, 2))
    return self.head(x_BTD, self.embed) | {name: aux.get(name, 0.0) + value for name, value in decoder_aux.items()}

  def encode(self, batch: Batch, key: jax.Array | None = None):
    """Returns (memory [B, S, D], key positions, segments or None, validity bool [B, S] or None, auxiliary scalars)."""
    tokens_BS, pos, segments, valid = self._features(batch, "encoder")
    context = Context(mask=Mask(pos, pos, segments, segments, valid))
    encoder = self.decoder.without("cross_attention") if self.encoder is None else self.encoder
    x_BSD = self.encoder_inputs(self.embed(tokens_BS, self.dtype), pos, key=subkey(key, 0))
    x_BSD, aux, _ = encoder(x_BSD, context, key=subkey(key, 1))
    return x_BSD, pos, segments, valid, aux

  def prompt(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """The decoder's start token, and after it `decoder_prefix_tokens` [B, P] where a batch forces them."""
    B = batch["encoder_input_tokens"].shape[0]
    start_B1 = jnp.full((B, 1), self.variant.tokens.start, jnp.int32)
    if "decoder_prefix_tokens" not in batch:
      return start_B1, jnp.ones((B, 1), bool)
    forced_BP = batch["decoder_prefix_tokens"]
    tokens_BP = jnp.concatenate([start_B1, forced_BP], axis=1)
    return tokens_BP, jnp.concatenate([jnp.ones((B, 1), bool), forced_BP != (self.variant.tokens.pad or 0)], axis=1)

  def start_decoding(self, batch: Batch, slots: int) -> DecodeState:
    """Encodes `encoder_input_tokens` and makes an empty cache for `slots` decoded tokens."""
    memory_BSD, k_pos, _, k_valid, _ = self.encode(batch)
    B = memory_BSD.shape[0]
    start = CacheStart(B, slots, self.dtype, memory_BSD, Mask(k_pos, k_pos))
    return DecodeState.empty(self.decoder.start_cache(start), B, slots, memory_pos=k_pos, memory_valid=k_valid)

  def decode(self, tokens_BT: jax.Array, state: DecodeState, valid_BT=None, prefix_BT=None):
    """Feeds the next tokens through the cache; see `DecodeState.advance`. Returns (logits [B, T, V], state)."""
    q_pos, state = state.advance(tokens_BT, valid_BT, prefix_BT)
    context = Context(
      mask=state.mask(q_pos),
      memory_mask=Mask(q_pos, state.memory_pos, k_valid=state.memory_valid),
      slot=state.slot - tokens_BT.shape[1],
    )
    x_BTD = self.decoder_inputs(self.embed(tokens_BT, self.dtype), q_pos)
    x_BTD, _, cache = self.decoder(x_BTD, context, cache=state.cache)
    return self.head(x_BTD, self.embed)["logits"], dataclasses.replace(state, cache=cache)


def _after_start(tokens_BT: jax.Array, pad: int | None) -> jax.Array | None:
  """bool [B, T], what is not padding: a decoder's first token counts, though T5's is the padding id."""
  first_1T = jnp.arange(tokens_BT.shape[1])[None] == 0
  return None if pad is None else (tokens_BT != pad) | first_1T


def _prefix(batch: Batch, valid) -> jax.Array | None:
  prefix = batch.get("decoder_causal_attention")
  if prefix is None:
    return None
  return prefix > 0 if valid is None else (prefix > 0) & valid
