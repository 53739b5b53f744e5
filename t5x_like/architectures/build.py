"""Build the parts of one stack from a design, turning every choice into an object.

`resolve_variant` and `stack_options` read a recipe's choices for a model.
"""

import dataclasses
import math
from functools import cached_property, reduce
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
from t5x_like.nn.positions import Position
from t5x_like.nn.remat import KEEP_ALL, Remat
from t5x_like.nn.stack import Stack
from t5x_like.nn.two_part_stack import build_two_part_stack

POSITION_KEY = "config.model.design.position"
CORE_KEY = "config.model.design.core"
_NORMS = {
  "pre": ("in_norm",),
  "sandwich": ("in_norm", "res_norm"),
  "output": ("res_norm",),
  "res_post": ("res_norm",),
}  # else after the addition


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
    """Build the module from token vectors of `width` (by default the stack's) to the stack's
    input."""
    design = self.design
    D = self.dims.embed
    width = width or D
    return kind(
      scale=math.sqrt(width) if design.embed_scale else 1.0,
      position=self._position_at("inputs", self.schemes[0], rngs, width),
      types=Types(types, width, rngs, init=design.table_init()) if types else None,
      norm=design.make_norm(width, rngs) if design.embed_norm else None,
      project=Linear((width, D), ("embed", None), design.kernel_init(width), rngs, bias=True)
      if width != D
      else None,
      dropout=self.dropout_at("inputs"),
    )

  def stack(self, rngs: nnx.Rngs) -> Stack:
    """Build the blocks, the positions they share and the final norm."""
    layers = self.dims.layers
    design = self.design
    if design.experts and design.dense_layers:
      return build_two_part_stack(self, rngs)
    if layers % self.period:
      period = f"the layer pattern repeats every {self.period} layers"
      raise UserError(
        f"config.model.design: {period}, found {layers} layers, expected a multiple "
        f"of {self.period}"
      )
    kinds = jax.eval_shape(lambda: [*map(self._core, range(len(self.cores)))])
    pieces = [core.piecewise_bias_above for core in kinds]
    stack = Stack(
      self.block,
      layers // self.period,
      rngs,
      position=self._position_at("stack", self.schemes[0], rngs),
      piecewise_bias_above=min((n for n in pieces if n is not None), default=None),
      final_norm=design.make_norm(self.dims.embed, rngs) if design.final_norm else None,
      dropout=self.mlp_dropout,
      remat=self.remat,
      layers=self.layers,
      pipeline=self.pipeline,
      depths=self.depths
      and tuple(self.depths[at : at + self.period] for at in range(0, layers, self.period)),
    )
    return reduce(lambda stack, core: core.wrap_stack(stack, rngs), kinds, stack)

  def block(self, rngs: nnx.Rngs) -> Block:
    """Build one period of layers; if it has several, their sublayers' names end in the layer's
    number."""
    turns = range(self.period)
    named = {
      f"{n}_{t}" if self.period > 1 else n: x
      for t in turns
      for n, x in self._layer(t, rngs).items()
    }
    quantization = self.design.quantization
    package = "t5x_like.nn.quantization"
    return slots.make("config.model.design.quantization", quantization, package, "make")(
      Block(self.period, **named)
    )

  @cached_property
  def schemes(self) -> tuple[str | dict, ...]:
    """The position schemes of the layers of a period; UserError if they differ and one does not
    belong to a layer."""
    found = self.design.position
    schemes = found if isinstance(found, tuple) else (found,)
    for scheme in schemes:
      if any(scheme != other for other in schemes) and self._place(scheme) != "layer":
        raise UserError(
          f"{POSITION_KEY}: found {scheme!r} mixed with others, expected schemes that belong to a layer"
        )
    return schemes

  @cached_property
  def period(self) -> int:
    """Number of layers after which the pattern repeats, at most all layers."""
    experts = self.design.experts_every if self.design.experts else 1
    lengths = len(self.design.windows), experts, len(self.schemes), len(self.cores)
    return min(self.dims.layers or 1, math.lcm(*lengths))

  @cached_property
  def cores(self) -> tuple[tuple[str, str | dict], ...]:
    """The attention cores of the layers of a period, each with its key."""
    where = CORE_KEY
    spec = self.design.core
    if isinstance(spec, dict) and "name" not in spec:
      side = "decoder" if self.causal else "encoder"
      where = f"{CORE_KEY}.{side}"
      spec = slots.fill(CORE_KEY, spec, _Sides)[side]
    return tuple((where, one) for one in (spec if isinstance(spec, tuple) else (spec,)))

  @property
  def dropout(self) -> Dropout:
    return Dropout(self.dropout_rate, (-2,) if self.design.shared_dropout else ())

  def dropout_at(self, place: str) -> Dropout:
    return (
      NO_DROPOUT if {"moe": "mlp"}.get(place, place) in self.design.no_dropout else self.dropout
    )

  @property
  def attention_dropout(self) -> Dropout:
    kinds = {"pairs": self.dropout, "keys": Dropout(self.dropout_rate, (-2,)), "none": NO_DROPOUT}
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
    """The same factor for values and the MLP's first kernel, which DeepNorm scales too."""
    return self.residual_gain if self.design.norm_position == "deepnorm" else 1.0

  def _layer(self, turn: int, rngs: nnx.Rngs) -> dict[str, Layer]:
    design = self.design
    dims = self.dims
    sparse = design.experts and (turn + 1) % design.experts_every == 0
    parts = {"self_attention": self._attention(SelfAttention, rngs, turn)}
    if self.cross:
      parts["cross_attention"] = self._attention(CrossAttention, rngs)
    parts["moe" if sparse else "mlp"] = self._mlp(rngs, sparse)
    if design.parallel == "no":
      return {name: self._residual(part, rngs, turn, name) for name, part in parts.items()}
    if design.parallel == "one_norm":
      return {"parallel": self._residual(Parallel(**parts), rngs, turn, "parallel")}
    branches = {
      name: Normed(part, norm=design.make_norm(dims.embed, rngs)) for name, part in parts.items()
    }
    return {
      "parallel": Residual(
        Parallel(**branches), dropout=self.dropout, drop_path=self.drop_path, turn=turn
      )
    }

  def _attention(self, kind: type[Attention], rngs: nnx.Rngs, turn: int | None = None) -> Attention:
    """Build the self-attention of a turn; without one, cross-attention, without positions, window
    or special core."""
    design = self.design
    dims = self.dims
    own = turn is not None
    D = dims.embed
    N = dims.heads
    H = dims.head_dim
    qkv, out, *_ = design.kernel_scales
    cosine = design.attention_scale == "cosine"
    scale = (
      1.0
      if cosine
      else 1 / math.sqrt(H)
      if design.attention_scale is None
      else design.attention_scale
    )
    # T5 leaves out the 1/sqrt(H) of the logits and scales the initial query kernel by it instead.
    query_gain = H**-0.5 if scale == 1.0 and not cosine and design.init_stddev is None else 1.0
    q_norm, k_norm = (design.make_qk_norm(heads, H, rngs) for heads in (N, dims.kv_heads))
    if own and design.latent is not None:
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
      q_norm=ScaledUnitNorm(N, rngs) if cosine else q_norm,
      k_norm=UnitNorm() if cosine else k_norm,
      position=self._position_at("layer", self.schemes[turn % len(self.schemes)], rngs)
      if own
      else None,
      core=self._core(turn, rngs) if own else Dense() if design.core == "dense" else Auto(),
      softcap=design.softcap,
      window=design.windows[turn % len(design.windows)] if own else None,
      dropout=self.attention_dropout,
    )

  def _mlp(self, rngs: nnx.Rngs, sparse: bool) -> Layer:
    design = self.design
    dims = self.dims
    mlp = (sparse and design.experts.mlp) or dims.mlp
    (activation, gated), (*_, wi, wo) = ACTIVATIONS[design.activation], design.kernel_scales
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

  def _residual(self, layer: Layer, rngs: nnx.Rngs, turn: int = 0, place: str = "mlp") -> Residual:
    design = self.design
    places = _NORMS.get(design.norm_position, ("out_norm",))
    gain = 0.0 if design.norm_position == "res_post" else 1.0
    norms = {place: design.make_norm(self.dims.embed, rngs, gain) for place in places}
    if design.layer_scale is not None:
      norms["res_norm"] = LayerScale(self.dims.embed, rngs, initial=design.layer_scale)
    alpha = self.deepnorm[0] if design.norm_position == "deepnorm" else 1.0
    rates = dict(dropout=self.dropout_at(place), drop_path=self.drop_path, turn=turn)
    return Residual(layer, **norms, alpha=alpha, **rates)

  def scheme_arguments(self) -> dict[str, Any]:
    """Return the arguments that position schemes take from the stack."""
    return dict(dims=self.dims, causal=self.causal, init=self.design.table_init())

  def _position(self, spec: str | dict, rngs: nnx.Rngs, width: int | None = None) -> Position:
    given = self.scheme_arguments() | dict(width=width or self.dims.embed, rngs=rngs)
    return slots.make(POSITION_KEY, spec, self.POSITION_PACKAGE, "make", **given)

  def _place(self, spec: str | dict) -> str:
    return jax.eval_shape(lambda: self._position(spec, nnx.Rngs(0))).owner

  def _position_at(
    self, place: str, spec: str | dict, rngs: nnx.Rngs, width: int | None = None
  ) -> Position | None:
    """Build the scheme if it belongs in `place`, else return None."""
    return self._position(spec, rngs, width) if self._place(spec) == place else None

  def _core(self, turn: int, rngs: nnx.Rngs | None = None) -> Core:
    where, spec = self.cores[turn % len(self.cores)]
    return slots.make(
      where, spec, cores, "make", rngs=rngs or nnx.Rngs(0), dims=self.dims, causal=self.causal
    )


@dataclasses.dataclass(frozen=True)
class _Sides:
  """The keys of a `core` that differs between encoder and decoder."""

  encoder: str | dict | tuple = "auto"
  decoder: str | dict | tuple = "auto"


def deepnorm_weights(encoder_layers: int, decoder_layers: int) -> dict[str, tuple[float, float]]:
  """Return each stack's (alpha, initial gain) in DeepNet (Wang et al. 2022, figure 2); 0 layers for
  a missing stack."""
  N = encoder_layers
  M = decoder_layers
  if N and M:
    both = (N**4 * M) ** (1 / 16)
    return {"encoder": (0.81 * both, 0.87 / both), "decoder": ((3 * M) ** 0.25, (12 * M) ** -0.25)}
  layers = N or M
  return {"encoder" if N else "decoder": ((2 * layers) ** 0.25, (8 * layers) ** -0.25)}


def resolve_variant(
  variants: dict[str, Any], variant: Any, design: dict = {}, tokens: dict = {}, **given: Any
) -> Any:
  """Return the variant, looked up if it is a name, with its changes.

  Args:
    design, tokens: changes to its design and special ids.
    given: other fields; None keeps the variant's.
  Raises:
    UserError: an unknown variant, or a key of a change that is unknown or does not fit.
  """
  variant = (
    slots.find("config.model.variant", variant, variants) if isinstance(variant, str) else variant
  )
  given = {name: value for name, value in given.items() if value is not None}
  for name, changes in {"design": design, "tokens": tokens}.items():
    if changes:
      given[name] = slots.replace_fields(f"config.model.{name}", getattr(variant, name), changes)
  return dataclasses.replace(variant, **given)


def stack_options(
  dropout: float, remat: str | dict, layers: str, pipeline: dict = {}, drop_path: float = 0.0
) -> dict:
  """Return the options of a `StackBuilder`; raise UserError for a rate outside [0, 1), an unknown
  policy or key."""
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
