"""Build the parts of one stack from a design, turning every choice into an object.

`resolve_variant` and `stack_options` read a recipe's choices for a model.
"""

import dataclasses
import math
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar

import jax
from flax import nnx

from t5x_like import slots
from t5x_like.architectures.design import Design
from t5x_like.errors import UserError
from t5x_like.nn import cores, feed_forward, positions
from t5x_like.nn import remat as policies
from t5x_like.nn.attention import Attention, CrossAttention, SelfAttention
from t5x_like.nn.block import Block, Normed, Parallel, Residual
from t5x_like.nn.cores import Core
from t5x_like.nn.cores.auto import Auto
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.cosine import ScaledUnitNorm, UnitNorm
from t5x_like.nn.dims import NO_DROPOUT, Dims, Dropout
from t5x_like.nn.embed import Inputs, Types
from t5x_like.nn.feed_forward import ACTIVATIONS
from t5x_like.nn.latent_attention import make_latent_attention
from t5x_like.nn.layer import Layer
from t5x_like.nn.linear import Linear
from t5x_like.nn.norm import LayerScale
from t5x_like.nn.pipeline import DEFAULT_PIPELINE, Pipeline
from t5x_like.nn.positions import Position, check_attributes
from t5x_like.nn.remat import KEEP_ALL, Remat
from t5x_like.nn.stack import Stack
from t5x_like.nn.two_part_stack import build_two_part_stack

POSITION_KEY = "config.model.design.position"
CORE_KEY = "config.model.design.core"
# The norms of a `Residual`, by `norm_position`; for others, "out_norm" alone.
_NORMS = {
  "pre": ("in_norm",),
  "sandwich": ("in_norm", "res_norm"),
  "output": ("res_norm",),
  "res_post": ("res_norm",),
}


@dataclasses.dataclass(frozen=True)
class StackBuilder:
  """A builder of the inputs and the blocks of one stack.

  Attributes:
    causal: whether the stack is a decoder.
    cross: whether blocks have cross-attention.
    deepnorm: (alpha, gain), used if `norm_position` is "deepnorm"; see `deepnorm_weights`.
    dropout_rate, remat, layers, pipeline: the rate wherever the design drops out, and arguments of
      the `Stack`.
    drop_path: rate at which training skips a sublayer, drawn for each example.
    depths: the depth of every layer, from 0 to 1, if the rate grows with it up to `drop_path`; else
      None.
  """

  POSITION_PACKAGE: ClassVar[ModuleType] = positions  # the package of position schemes

  design: Design
  dims: Dims
  causal: bool
  cross: bool = False
  deepnorm: tuple[float, float] = (1.0, 1.0)
  dropout_rate: float = 0.0
  remat: Remat = KEEP_ALL
  layers: str = "scan"
  pipeline: Pipeline = DEFAULT_PIPELINE
  drop_path: float = 0.0
  depths: tuple[float, ...] | None = None

  def inputs(
    self, rngs: nnx.Rngs, *, width: int | None = None, types: int = 0, kind: type[Inputs] = Inputs
  ) -> Inputs:
    """Build the input module of the stack.

    Args:
      width: width of the token vectors; None for the stack's.
      types: number of token types.
      kind: the class of the module.
    """
    design = self.design
    D = self.dims.embed
    width = width or D
    position = self._position_at("inputs", self.schemes[0], rngs, width)
    type_table = Types(types, width, rngs, init=design.table_init()) if types else None
    norm = design.make_norm(width, rngs) if design.embed_norm else None
    project = None
    if width != D:
      project = Linear((width, D), ("embed", None), design.kernel_init(width), rngs, bias=True)
    return kind(
      scale=math.sqrt(width) if design.embed_scale else 1.0,
      position=position,
      types=type_table,
      norm=norm,
      project=project,
      dropout=self.dropout_after("inputs"),
    )

  def stack(self, rngs: nnx.Rngs) -> Stack:
    """Build the blocks, the positions they share and the final norm."""
    layers = self.dims.layers
    design = self.design
    period = self.period
    if design.experts and design.dense_layers:
      return build_two_part_stack(self, rngs)
    if layers % period:
      raise UserError(
        f"config.model.design: the layer pattern repeats every {period} layers, found {layers} "
        f"layers, expected a multiple of {period}"
      )
    indices = range(len(self.cores))
    abstract_cores = jax.eval_shape(lambda: [self._core(index) for index in indices])
    stack = Stack(
      self.block,
      layers // period,
      rngs,
      position=self._position_at("stack", self.schemes[0], rngs),
      piecewise_bias_above=_smallest([core.piecewise_bias_above for core in abstract_cores]),
      final_norm=design.make_norm(self.dims.embed, rngs) if design.final_norm else None,
      dropout=self.mlp_dropout,
      remat=self.remat,
      layers=self.layers,
      pipeline=self.pipeline,
      depths=self._block_depths(),
    )
    for core in abstract_cores:
      stack = core.wrap_stack(stack, rngs)
    return stack

  def _block_depths(self) -> tuple[tuple[float, ...], ...] | None:
    """Return the depths of the layers of every block."""
    if self.depths is None:
      return None
    starts = range(0, self.dims.layers, self.period)
    return tuple(self.depths[start : start + self.period] for start in starts)

  def block(self, rngs: nnx.Rngs) -> Block:
    """Build one period of layers.

    If it has several layers, the names of their sublayers end in the layer's number.
    """
    sublayers = {}
    for layer_index in range(self.period):
      suffix = f"_{layer_index}" if self.period > 1 else ""
      for name, sublayer in self._layer(layer_index, rngs).items():
        sublayers[name + suffix] = sublayer
    block = Block(self.period, **sublayers)
    quantize = slots.make(
      "config.model.design.quantization",
      self.design.quantization,
      "t5x_like.nn.quantization",
      "make",
    )
    return quantize(block)

  @cached_property
  def schemes(self) -> tuple[str | dict, ...]:
    """The position schemes of the layers of a period.

    Raises:
      UserError: they differ, and one does not belong to a layer.
    """
    schemes = self.design.position
    if not isinstance(schemes, tuple):
      schemes = (schemes,)
    for scheme in schemes:
      differs = any(scheme != other_scheme for other_scheme in schemes)
      if differs and self._position_owner(scheme) != "layer":
        raise UserError(
          f"{POSITION_KEY}: found {scheme!r} mixed with others, expected schemes that belong to a "
          "layer"
        )
    return schemes

  @cached_property
  def period(self) -> int:
    """Number of layers after which the pattern repeats, at most all layers."""
    experts = self.design.experts_every if self.design.experts else 1
    periods = (len(self.design.windows), experts, len(self.schemes), len(self.cores))
    return min(self.dims.layers or 1, math.lcm(*periods))

  @cached_property
  def cores(self) -> tuple[tuple[str, str | dict], ...]:
    """The attention cores of the layers of a period, each with its key."""
    key = CORE_KEY
    specs = self.design.core
    if isinstance(specs, dict) and "name" not in specs:
      side = "decoder" if self.causal else "encoder"
      key = f"{CORE_KEY}.{side}"
      specs = slots.fill(CORE_KEY, specs, _SideCores)[side]
    if not isinstance(specs, tuple):
      specs = (specs,)
    return tuple((key, spec) for spec in specs)

  @property
  def dropout(self) -> Dropout:
    shared_axes = (-2,) if self.design.shared_dropout else ()
    return Dropout(self.dropout_rate, shared_axes)

  def dropout_after(self, sublayer: str) -> Dropout:
    """Return the dropout after "inputs" or a sublayer, named as in a block."""
    if sublayer == "moe":
      sublayer = "mlp"
    if sublayer in self.design.no_dropout:
      return NO_DROPOUT
    return self.dropout

  @property
  def attention_dropout(self) -> Dropout:
    kinds = {
      "pairs": self.dropout,
      "keys": Dropout(self.dropout_rate, (-2,)),
      "none": NO_DROPOUT,
    }
    return kinds[self.design.attention_dropout]

  @property
  def mlp_dropout(self) -> Dropout:
    return self.dropout if self.design.mlp_dropout else NO_DROPOUT

  @property
  def residual_gain(self) -> float:
    """Factor of the initial standard deviation of kernels that write to the residual stream."""
    if self.design.residual_init:
      return (2 * self.dims.layers) ** -0.5
    return self.deepnorm[1] if self.design.norm_position == "deepnorm" else 1.0

  @property
  def inner_gain(self) -> float:
    """Factor for the kernels of values and of the MLP's input, which DeepNorm scales too."""
    return self.residual_gain if self.design.norm_position == "deepnorm" else 1.0

  def _layer(self, layer_index: int, rngs: nnx.Rngs) -> dict[str, Layer]:
    """Build the sublayers of one layer of a period, each in its residual connection, by name."""
    design = self.design
    is_sparse = design.experts and (layer_index + 1) % design.experts_every == 0
    sublayers = {"self_attention": self._attention(SelfAttention, rngs, layer_index)}
    if self.cross:
      sublayers["cross_attention"] = self._attention(CrossAttention, rngs)
    sublayers["moe" if is_sparse else "mlp"] = self._mlp(rngs, is_sparse)
    if design.parallel == "no":
      residuals = {}
      for name, sublayer in sublayers.items():
        residuals[name] = self._residual(sublayer, rngs, layer_index, name)
      return residuals
    if design.parallel == "one_norm":
      return {"parallel": self._residual(Parallel(**sublayers), rngs, layer_index, "parallel")}
    branches = {}
    for name, sublayer in sublayers.items():
      branches[name] = Normed(sublayer, norm=design.make_norm(self.dims.embed, rngs))
    parallel = Residual(
      Parallel(**branches), dropout=self.dropout, drop_path=self.drop_path, layer_index=layer_index
    )
    return {"parallel": parallel}

  def _attention(
    self, kind: type[Attention], rngs: nnx.Rngs, layer_index: int | None = None
  ) -> Attention:
    """Build the self-attention of a layer, or cross-attention if `layer_index` is None.

    Cross-attention has no positions, window or special core.
    """
    design = self.design
    dims = self.dims
    D = dims.embed
    N = dims.heads
    H = dims.head_dim
    qkv, out, *_ = design.kernel_scales
    has_cosines = design.attention_scale == "cosine"
    scale = self._attention_scale()
    # T5 leaves out the 1/sqrt(H) of the logits and scales the initial query kernel by it instead.
    scales_query = scale == 1.0 and not has_cosines and design.init_stddev is None
    query_gain = H**-0.5 if scales_query else 1.0
    q_norm = design.make_qk_norm(N, H, rngs)
    k_norm = design.make_qk_norm(dims.kv_heads, H, rngs)
    if has_cosines:
      q_norm = ScaledUnitNorm(N, rngs)
      k_norm = UnitNorm()
    if layer_index is None:
      position = None
      core = Dense() if design.core == "dense" else Auto()
      window = None
    else:
      scheme = self.schemes[layer_index % len(self.schemes)]
      position = self._position_at("layer", scheme, rngs)
      core = self._core(layer_index, rngs)
      window = design.windows[layer_index % len(design.windows)]
      if design.latent is not None:
        kind = make_latent_attention(design)
    return kind(
      dims,
      rngs,
      scale=scale,
      init=design.kernel_init(D, 1.0, qkv),
      query_init=design.kernel_init(D, query_gain, qkv),
      value_init=design.kernel_init(D, self.inner_gain, qkv),
      out_init=design.kernel_init(N * H, self.residual_gain, out),
      biases=design.biases,
      q_norm=q_norm,
      k_norm=k_norm,
      position=position,
      core=core,
      softcap=design.softcap,
      window=window,
      dropout=self.attention_dropout,
    )

  def _attention_scale(self) -> float:
    """Return the factor of the attention logits."""
    if self.design.attention_scale == "cosine":
      return 1.0
    if self.design.attention_scale is None:
      return 1 / math.sqrt(self.dims.head_dim)
    return self.design.attention_scale

  def _mlp(self, rngs: nnx.Rngs, sparse: bool) -> Layer:
    """Build the feed-forward sublayer: experts if `sparse`."""
    design = self.design
    dims = self.dims
    mlp = dims.mlp
    if sparse and design.experts.mlp:
      mlp = design.experts.mlp
    activation, gated = ACTIVATIONS[design.activation]
    *_, wi, wo = design.kernel_scales
    return slots.make(
      "config.model.design.experts",
      "moe" if sparse else "mlp",
      feed_forward,
      "make",
      embed=dims.embed,
      mlp=mlp,
      rngs=rngs,
      experts=design.experts,
      bias="mlp" in design.biases,
      activation=activation,
      gated=gated,
      init=design.kernel_init(dims.embed, self.inner_gain, wi),
      out_init=design.kernel_init(mlp, self.residual_gain, wo),
      dropout=self.mlp_dropout,
    )

  def _residual(
    self, layer: Layer, rngs: nnx.Rngs, layer_index: int = 0, name: str = "mlp"
  ) -> Residual:
    """Build the residual connection of the sublayer `name` of a layer in the period."""
    design = self.design
    gain = 0.0 if design.norm_position == "res_post" else 1.0
    norms = {}
    for norm_name in _NORMS.get(design.norm_position, ("out_norm",)):
      norms[norm_name] = design.make_norm(self.dims.embed, rngs, gain)
    if design.layer_scale is not None:
      norms["res_norm"] = LayerScale(self.dims.embed, rngs, initial=design.layer_scale)
    alpha = 1.0
    if design.norm_position == "deepnorm":
      alpha, _ = self.deepnorm
    return Residual(
      layer,
      **norms,
      alpha=alpha,
      dropout=self.dropout_after(name),
      drop_path=self.drop_path,
      layer_index=layer_index,
    )

  def scheme_arguments(self) -> dict[str, Any]:
    """Return the arguments that position schemes take from the stack."""
    return dict(dims=self.dims, causal=self.causal, init=self.design.table_init())

  def _position(self, spec: str | dict, rngs: nnx.Rngs, width: int | None = None) -> Position:
    arguments = self.scheme_arguments() | dict(width=width or self.dims.embed, rngs=rngs)
    scheme = slots.make(POSITION_KEY, spec, self.POSITION_PACKAGE, "make", **arguments)
    check_attributes(scheme, POSITION_KEY)
    return scheme

  def _position_owner(self, spec: str | dict) -> str:
    return jax.eval_shape(lambda: self._position(spec, nnx.Rngs(0))).owner

  def _position_at(
    self, owner: str, spec: str | dict, rngs: nnx.Rngs, width: int | None = None
  ) -> Position | None:
    """Build the scheme if it belongs to `owner`, else return None."""
    if self._position_owner(spec) != owner:
      return None
    return self._position(spec, rngs, width)

  def _core(self, layer_index: int, rngs: nnx.Rngs | None = None) -> Core:
    key, spec = self.cores[layer_index % len(self.cores)]
    rngs = rngs or nnx.Rngs(0)
    return slots.make(key, spec, cores, "make", rngs=rngs, dims=self.dims, causal=self.causal)


def _smallest(limits: list[int | None]) -> int | None:
  """Return the smallest of the limits that are set; None if none is."""
  numbers = [limit for limit in limits if limit is not None]
  return min(numbers, default=None)


@dataclasses.dataclass(frozen=True)
class _SideCores:
  """The keys of a `core` that differs between encoder and decoder."""

  encoder: str | dict | tuple = "auto"
  decoder: str | dict | tuple = "auto"


def deepnorm_weights(encoder_layers: int, decoder_layers: int) -> dict[str, tuple[float, float]]:
  """Return each stack's (alpha, initial gain) in DeepNet (Wang et al. 2022, figure 2).

  Args:
    encoder_layers, decoder_layers: 0 for a missing stack.
  """
  N = encoder_layers
  M = decoder_layers
  if N and M:
    root = (N**4 * M) ** (1 / 16)
    encoder_weights = (0.81 * root, 0.87 / root)
    decoder_weights = ((3 * M) ** 0.25, (12 * M) ** -0.25)
    return {"encoder": encoder_weights, "decoder": decoder_weights}
  side = "encoder" if N else "decoder"
  layers = N or M
  return {side: ((2 * layers) ** 0.25, (8 * layers) ** -0.25)}


def resolve_variant(
  variants: dict[str, Any], variant: Any, design: dict = {}, tokens: dict = {}, **fields: Any
) -> Any:
  """Return the variant, looked up if it is a name, with its changes.

  Args:
    design, tokens: changes to its design and special ids.
    fields: other fields; None keeps the variant's.
  Raises:
    UserError: an unknown variant, or a key of a change that is unknown or does not fit.
  """
  if isinstance(variant, str):
    variant = slots.find("config.model.variant", variant, variants)
  fields = {name: value for name, value in fields.items() if value is not None}
  if design:
    fields["design"] = slots.replace_fields("config.model.design", variant.design, design)
  if tokens:
    fields["tokens"] = slots.replace_fields("config.model.tokens", variant.tokens, tokens)
  return dataclasses.replace(variant, **fields)


def stack_options(
  dropout: float, remat: str | dict, layers: str, pipeline: dict = {}, drop_path: float = 0.0
) -> dict:
  """Return the options of a `StackBuilder`.

  Raises:
    UserError: a rate is outside [0, 1), or a policy or key is unknown.
  """
  if not 0 <= drop_path < 1:
    raise UserError(
      f"config.model.drop_path: found {drop_path}, expected at least 0 and less than 1"
    )
  stages = slots.replace_fields("config.model.pipeline", DEFAULT_PIPELINE, pipeline)
  return dict(
    dropout_rate=dropout,
    drop_path=drop_path,
    remat=policies.build_remat(remat),
    layers=layers,
    pipeline=stages,
  )
