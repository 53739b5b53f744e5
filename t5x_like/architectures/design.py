"""Designs and variants: the differences between published Transformers, as data.

A family in `models/` is a `Design` and a table of sizes. A recipe may change any field of the
design (`config.model.design`): a T5 with SwiGLU and RoPE, a pre-norm BERT, a GPT with ALiBi and
experts. `architectures.build` turns a design into a stack; layers never see it.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

from flax import nnx

from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.nn.feed_forward import ACTIVATIONS, Experts
from t5x_like.nn.norm import NORMS, AllHeads
from t5x_like.slots import NonNegativeInt, PositiveFloat, PositiveInt


@dataclasses.dataclass(frozen=True)
class Design:
  """The choices of one architecture.

  Attributes:
    norm, norm_epsilon: one of `nn.norm.NORMS`, and the epsilon that it adds to a mean of squares.
    norm_position: before every sublayer ("pre"), after the addition ("post"), before and after the
      sublayer ("sandwich"), after the sublayer ("output"), there with scales that start at 0
      ("res_post", Liu et al. 2022), or after the addition with DeepNet's weights ("deepnorm", Wang
      et al. 2022).
    parallel: attention and MLP read the same input, through one norm (PaLM) or one each (GPT-NeoX).
    layer_scale: initial factor of each channel of a sublayer's output, in a pre-norm stack
      (`norm.LayerScale`); None for no factor.
    activation: one of `nn.feed_forward.ACTIVATIONS`; names ending in -glu are gated (Shazeer 2020).
    biases: projections with a bias: "qkv" or "qv" (queries and values), "out" and "mlp".
    position: a scheme of `nn.positions`, a name or {"name": …} with its arguments; layers cycle
      through a tuple.
    qk_norm: a norm on queries and keys, of each head or of all heads together ("all_heads", OLMo
      2).
    attention_scale: factor of the logits; None is 1/sqrt(head_dim), "cosine" a learned scale of
      cosines (`cosine.ScaledUnitNorm`).
    softcap: bound of the attention logits.
    windows: range of a query, as in `Mask.window`, None for no limit; layers cycle through the
      tuple.
    core: an attention core of `nn.cores`, a name or {"name": …} with its arguments; layers cycle
      through a tuple; {"encoder": …, "decoder": …} where the two differ.
    quantization: 8-bit products of the blocks' projections, one of `nn.quantization`: "none",
      "int8" or "fp8".
    latent: sizes of keys and values as projections of one vector a token, the fields of
      `latent_attention.Latent`.
    experts: a mixture of experts instead of the MLP.
    experts_every: N, if only every N-th layer has experts.
    dense_layers: number of first layers with an MLP instead of experts.
    mlp_dropout: whether dropout also applies inside the MLP.
    shared_dropout: whether all positions of a row share one dropout mask, as in T5's code.
    no_dropout: parts without dropout: the sums of embeddings ("inputs"), the MLP's outputs ("mlp").
    attention_dropout: whether dropout zeroes attention weights one by one ("pairs"), all weights of
      some keys in a row ("keys", which is dropout of values, so that kernels can do it), or none.
    init_stddev: standard deviation of all initial kernels; None is sqrt(scale / fan in), with the
      scales of `kernel_scales`.
    kernel_scales: the scales of four groups of kernels: queries, keys and values; attention's
      output; the MLP's input; the MLP's output.
    residual_init: divide the initial kernels that write to the residual stream by sqrt(2 * layers)
      (GPT-2).
    embed_init: standard deviation of the token table; None is `init_stddev`, or 1.
    embed_scale, embed_norm: multiply token vectors by sqrt(D); normalise them.
    tied: whether the output projection is the token table.
    logits_scale: factor of the hidden states before the output projection; True is 1/sqrt(D).
    logits_softcap: bound of the output logits.
    logits_bias: whether the output projection has a bias.
  """

  norm: str = "rmsnorm"
  norm_epsilon: float = 1e-6
  norm_position: Literal["pre", "post", "sandwich", "output", "res_post", "deepnorm"] = "pre"
  parallel: Literal["no", "one_norm", "two_norms"] = "no"
  layer_scale: float | None = None
  activation: str = "relu"
  biases: tuple[Literal["qkv", "qv", "out", "mlp"], ...] = ()
  position: str | dict | tuple = "none"
  qk_norm: bool | Literal["all_heads"] = False
  attention_scale: float | Literal["cosine"] | None = None
  softcap: float | None = None
  windows: tuple[PositiveInt | None, ...] = (None,)
  core: str | dict | tuple = "auto"
  quantization: str | dict = "none"
  latent: dict | None = None
  experts: Experts | None = None
  experts_every: PositiveInt = 1
  dense_layers: NonNegativeInt = 0
  mlp_dropout: bool = False
  shared_dropout: bool = False
  no_dropout: tuple[Literal["inputs", "mlp"], ...] = ()
  attention_dropout: Literal["pairs", "keys", "none"] = "pairs"
  init_stddev: float | None = None
  kernel_scales: tuple[PositiveFloat, ...] = (1.0, 1.0, 1.0, 1.0)
  residual_init: bool = False
  embed_init: float | None = None
  embed_scale: bool = False
  embed_norm: bool = False
  tied: bool = True
  logits_scale: bool | float = False
  logits_softcap: float | None = None
  logits_bias: bool = False

  def __post_init__(self):
    slots.find("config.model.design.norm", self.norm, NORMS)
    slots.find("config.model.design.activation", self.activation, ACTIVATIONS)
    for name in ("windows", "core", "position"):
      if getattr(self, name) in ((), []):
        raise UserError(
          f"config.model.design.{name}: found an empty list, expected a value for each layer of a "
          "period, at least one"
        )
    if self.parallel != "no" and self.norm_position != "pre":
      raise UserError(
        f"config.model.design.parallel: found {self.parallel!r} with norm_position "
        f"{self.norm_position!r}, expected norm_position 'pre'"
      )
    if self.qk_norm and self.attention_scale == "cosine":
      raise UserError(
        "config.model.design.qk_norm: found True, but attention_scale 'cosine' already normalizes "
        "queries and keys; set it to False"
      )
    if len(self.kernel_scales) != 4:
      raise UserError(
        f"config.model.design.kernel_scales: found {self.kernel_scales}, expected four numbers"
      )
    allows_layer_scale = self.norm_position == "pre" and self.parallel != "two_norms"
    if self.layer_scale is not None and not allows_layer_scale:
      raise UserError(
        f"config.model.design.layer_scale: found {self.layer_scale} with norm_position "
        f"{self.norm_position!r} and parallel {self.parallel!r}, expected 'pre', and not "
        "'two_norms'"
      )

  @property
  def final_norm(self) -> bool:
    """Whether a norm follows the last block."""
    return self.norm_position in ("pre", "sandwich", "output", "res_post")

  def make_norm(self, dim: int, rngs: nnx.Rngs, gain: float = 1.0) -> nnx.Module:
    return NORMS[self.norm](dim, rngs, epsilon=self.norm_epsilon, gain=gain)

  def make_qk_norm(self, heads: int, head_dim: int, rngs: nnx.Rngs) -> nnx.Module | None:
    """Make the norm of queries or keys [B, T, heads, head_dim], if the design has one."""
    if self.qk_norm == "all_heads":
      return AllHeads(self.make_norm(heads * head_dim, rngs))
    return self.make_norm(head_dim, rngs) if self.qk_norm else None

  def kernel_init(self, fan_in: int, gain: float = 1.0, scale: float = 1.0) -> Callable:
    if self.init_stddev is None:
      return params.fan_in_normal(fan_in, gain * scale**0.5)
    return params.normal(self.init_stddev * gain)

  def table_init(self) -> Callable:
    return params.normal(self.embed_init or self.init_stddev or 1.0)


@dataclasses.dataclass(frozen=True)
class Tokens:
  """Special ids: padding (or None), the decoder's start token, and the end of a sequence."""

  pad: int | None = 0
  start: int = 0
  eos: int = 1


@dataclasses.dataclass(frozen=True)
class Variant:
  """One published size of a family.

  Attributes:
    dims: sizes of the encoder, or of the only stack.
    design: design of the blocks.
    vocab_size: published size of the token table.
    tokens: special ids.
    types: number of token types (BERT's segments).
    embed: width of the token table, if it differs from the stack's.
    decoder_layers, decoder_heads, decoder_mlp: layers, heads and feed-forward width of an
      encoder-decoder's decoder; None for the encoder's. Its heads are together as wide as the
      encoder's, in cross-attention too.
    shared: whether the encoder is the decoder without its cross-attention (Raffel et al. 2020,
      section 3.2.2).
    head: an encoder's head: one of `architectures.heads`, a name or {"name": …} with its arguments.
  """

  dims: Dims
  design: Design
  vocab_size: int
  tokens: Tokens = Tokens()
  types: int = 0
  embed: int | None = None
  decoder_layers: int | None = None
  decoder_heads: int | None = None
  decoder_mlp: int | None = None
  shared: bool = False
  head: str | dict = "mlm"

  @property
  def decoder_dims(self) -> Dims:
    """Return the sizes of an encoder-decoder's decoder.

    Raises:
      UserError: the width of the encoder's heads is not a multiple of `decoder_heads`.
    """
    dims = dataclasses.replace(
      self.dims,
      layers=self.decoder_layers or self.dims.layers,
      mlp=self.decoder_mlp or self.dims.mlp,
    )
    heads = self.decoder_heads
    if heads is None or heads == dims.heads:
      return dims
    width = dims.heads * dims.head_dim
    if width % heads or dims.kv_heads != dims.heads:
      raise UserError(
        f"config.model.variant.decoder_heads: found {heads} with {dims.heads} heads "
        f"({dims.kv_heads} of keys and values) of width {dims.head_dim}, expected a divisor of "
        f"{width}, and as many heads of keys and values as of queries"
      )
    return dataclasses.replace(dims, heads=heads, kv_heads=heads, head_dim=width // heads)
