"""Designs: every choice the field's Transformers differ in, as one table row, and the parts it is made into.

A family in `models/` is a `Design` and its sizes. A recipe may change any cell of it (`config.model.design`): a T5 with
SwiGLU and RoPE, a pre-norm BERT, a GPT with ALiBi and experts. The choices are objects by the time a model runs; no
layer looks at a design.
"""

import dataclasses
import math
import typing
from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError, did_you_mean
from t5x_like.nn import cores, moe, params
from t5x_like.nn.attention import CrossAttention, SelfAttention
from t5x_like.nn.block import Block, Normed, Parallel, Residual
from t5x_like.nn.dims import Dims
from t5x_like.nn.embed import Inputs, Types
from t5x_like.nn.linear import Linear
from t5x_like.nn.mlp import Mlp
from t5x_like.nn.norm import LayerNorm, RMSNorm
from t5x_like.nn.position import (
  Alibi,
  LearnedPosition,
  LinearScaling,
  Llama3Scaling,
  Position,
  Rope,
  SinusoidalPosition,
)
from t5x_like.nn.relative_position import RelativeBias, ShawPosition
from t5x_like.nn.stack import Stack
from t5x_like.slots import fits, words

NORMS = {
  "layernorm": LayerNorm,
  "layernorm_no_bias": partial(LayerNorm, bias=False),
  "rmsnorm": RMSNorm,
  "rmsnorm_plus_one": partial(RMSNorm, plus_one=True),
}

_gelu, _gelu_tanh = partial(jax.nn.gelu, approximate=False), partial(jax.nn.gelu, approximate=True)
ACTIVATIONS = {  # (function, gated)
  "relu": (jax.nn.relu, False),
  "gelu": (_gelu, False),
  "gelu_tanh": (_gelu_tanh, False),
  "silu": (jax.nn.silu, False),
  "tanh": (jnp.tanh, False),
  "reglu": (jax.nn.relu, True),
  "geglu": (_gelu, True),
  "geglu_tanh": (_gelu_tanh, True),
  "swiglu": (jax.nn.silu, True),
}

POSITIONS = {
  "none": {},
  "sinusoidal": {"interleaved"},
  "learned": {"length", "offset"},
  "alibi": {"mpt"},
  "relative_bias": {"buckets", "max_distance", "shared", "bidirectional"},
  "shaw": {"clip", "values"},
  "rope": {"theta", "fraction", "interleaved", "linear", "llama3"},
}


@dataclasses.dataclass(frozen=True)
class Design:
  """The choices of one architecture.

  Attributes:
    norm, norm_epsilon: one of `NORMS`.
    norm_position: around every sublayer: before it, after the addition, before and after it (sandwich), or after the
      addition with DeepNet's weights (Wang et al. 2022).
    parallel: attention and MLP read the same input, through one norm (PaLM) or each its own (GPT-NeoX).
    activation: one of `ACTIVATIONS`; names in -glu are gated (Shazeer 2020).
    biases: which projections have one, of "qkv", "out" and "mlp".
    position: one of `POSITIONS`, alone or as {"name": …} with its arguments; a tuple gives layers their own in turn.
    qk_norm: a norm on queries and keys.
    attention_scale: of the logits; None is 1/sqrt(head_dim).
    softcap: bound of the attention logits.
    windows: how far a query sees, None for without bound, by layers in turn.
    core: the attention core, a name or {"name": …} with its arguments, see `nn.cores`; {"encoder": …, "decoder": …}
      where the two differ.
    experts: arguments of a mixture of experts in place of the MLP; see `nn.moe`. None for an MLP.
    experts_every: the last of so many layers in turn has the experts.
    mlp_dropout: dropout also inside the MLP.
    init_stddev: of all kernels; None is 1/sqrt(fan in).
    residual_init: kernels that write to the residual stream start smaller by sqrt(2 * layers) (GPT-2).
    embed_init, embed_scale, embed_norm: of the token table (None is `init_stddev`, or 1), sqrt(D) times its vectors,
      a norm on them.
    tied: the output reads the token table.
    logits_scale, logits_softcap, logits_bias: of the output: 1/sqrt(D) before it, a bound, a bias.
  """

  norm: str = "rmsnorm"
  norm_epsilon: float = 1e-6
  norm_position: Literal["pre", "post", "sandwich", "deepnorm"] = "pre"
  parallel: Literal["no", "one_norm", "two_norms"] = "no"
  activation: str = "relu"
  biases: tuple = ()
  position: str | dict | tuple = "none"
  qk_norm: bool = False
  attention_scale: float | None = None
  softcap: float | None = None
  windows: tuple = (None,)
  core: str | dict = "dense"
  experts: dict | None = None
  experts_every: int = 1
  mlp_dropout: bool = False
  init_stddev: float | None = None
  residual_init: bool = False
  embed_init: float | None = None
  embed_scale: bool = False
  embed_norm: bool = False
  tied: bool = True
  logits_scale: bool = False
  logits_softcap: float | None = None
  logits_bias: bool = False

  def __post_init__(self):
    for field, table in (("norm", NORMS), ("activation", ACTIVATIONS)):
      if getattr(self, field) not in table:
        found = getattr(self, field)
        near = did_you_mean(found, table)
        raise UserError(f"design.{field}: found {found!r}, expected one of {', '.join(table)}{near}")
    for spec in self.position if isinstance(self.position, tuple) else (self.position,):
      _position_spec(spec)
    if unknown := set(self.biases) - {"qkv", "out", "mlp"}:
      raise UserError(f"design.biases: found {sorted(unknown)[0]!r}, expected some of 'qkv', 'out', 'mlp'")
    if self.parallel != "no" and self.norm_position != "pre":
      raise UserError(
        f"design.parallel: found {self.parallel!r} with norm_position {self.norm_position!r}, expected 'pre'"
      )

  def changed(self, changes: dict) -> "Design":
    """This design with a recipe's changes; lists count as tuples.

    Raises:
      UserError: naming the key and what it takes.
    """
    kinds = typing.get_type_hints(Design)
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in dict(changes).items()}
    for key, value in values.items():
      if key not in kinds:
        near = did_you_mean(key, kinds)
        raise UserError(f"config.model.design.{key}: unknown key{near}; a design has {', '.join(kinds)}")
      if not fits(value, kinds[key]):
        raise UserError(f"config.model.design.{key}: found {value!r}, expected {words(kinds[key])}")
    return dataclasses.replace(self, **values)

  # The parts

  def make_norm(self, dim: int, rngs: nnx.Rngs) -> nnx.Module:
    return NORMS[self.norm](dim, rngs, epsilon=self.norm_epsilon)

  def kernel_init(self, fan_in: int, gain: float = 1.0) -> Callable:
    if self.init_stddev is None:
      return params.fan_in_normal(fan_in, gain)
    return params.normal(self.init_stddev * gain)

  def table_init(self) -> Callable:
    return params.normal(self.embed_init or self.init_stddev or 1.0)

  def make_inputs(self, dim: int, width: int, rngs: nnx.Rngs, *, dropout_rate: float, types: int = 0) -> Inputs:
    """What is added to token vectors of width `dim` before a stack of another `width`."""
    name, options = _position_spec(self.position if not isinstance(self.position, tuple) else "none")
    scheme = None
    if name == "learned":
      length = options.pop("length", 512)
      scheme = LearnedPosition(length, dim, rngs, init=self.table_init(), **options)
    elif name == "sinusoidal":
      scheme = SinusoidalPosition(**options)
    return Inputs(
      scale=math.sqrt(dim) if self.embed_scale else 1.0,
      position=scheme,
      types=Types(types, dim, rngs, init=self.table_init()) if types else None,
      norm=self.make_norm(dim, rngs) if self.embed_norm else None,
      project=Linear((dim, width), ("embed", None), self.kernel_init(dim), rngs, bias=True) if dim != width else None,
      dropout_rate=dropout_rate,
    )

  def make_stack(
    self,
    dims: Dims,
    rngs: nnx.Rngs,
    *,
    causal: bool,
    cross: bool = False,
    deepnorm: tuple[float, float] = (1.0, 1.0),
    dropout_rate: float = 0.0,
    remat: str = "none",
    layers: str = "scan",
  ) -> Stack:
    """The blocks, their shared positions and the final norm.

    Args:
      causal: whether it is a decoder; relative buckets and some cores must know.
      cross: with cross-attention.
      deepnorm: (alpha, gain) where `norm_position` is deepnorm; see `deepnorm_weights`.
    """
    positions = self.position if isinstance(self.position, tuple) else (self.position,)
    period = math.lcm(len(self.windows), self.experts_every if self.experts else 1, len(positions))
    if dims.layers % period:
      raise UserError(f"design: layers differ in turns of {period}, found {dims.layers} layers, expected a multiple")
    alpha, gain = deepnorm if self.norm_position == "deepnorm" else (1.0, 1.0)
    if self.residual_init:
      gain = (2 * dims.layers) ** -0.5
    block = partial(self._block, dims, positions, period, causal, cross, alpha, gain, dropout_rate)
    core = cores.make(self._core(causal), nnx.Rngs(0), **_sizes(dims, causal))
    return Stack(
      block,
      dims.layers // period,
      rngs,
      position=self._shared_position(positions[0], dims, causal, rngs),
      pieces=core.pieces,
      final_norm=self.make_norm(dims.embed, rngs) if self.norm_position in ("pre", "sandwich") else None,
      dropout_rate=dropout_rate if self.mlp_dropout else 0.0,
      remat=remat,
      layers=layers,
    )

  def _block(self, dims, positions, period, causal, cross, alpha, gain, dropout_rate, rngs) -> Block:
    sublayers = {}
    for turn in range(period):
      suffix = f"_{turn}" if period > 1 else ""
      window, spec = self.windows[turn % len(self.windows)], positions[turn % len(positions)]
      experts = self.experts if self.experts and (turn + 1) % self.experts_every == 0 else None
      attention = partial(self._attention, dims, gain=gain, dropout_rate=dropout_rate, rngs=rngs, causal=causal)
      parts = {"self_attention": attention(SelfAttention, window=window, spec=spec)}
      if cross:
        parts["cross_attention"] = attention(CrossAttention, window=None, spec="none")
      parts["moe" if experts else "mlp"] = self._mlp(dims, gain, dropout_rate, experts, rngs)
      if self.parallel == "no":
        sublayers |= {n + suffix: self._residual(dims.embed, alpha, dropout_rate, rngs, p) for n, p in parts.items()}
      elif self.parallel == "one_norm":
        sublayers["parallel" + suffix] = self._residual(dims.embed, alpha, dropout_rate, rngs, Parallel(**parts))
      else:
        branches = {name: Normed(part, norm=self.make_norm(dims.embed, rngs)) for name, part in parts.items()}
        sublayers["parallel" + suffix] = Residual(Parallel(**branches), dropout_rate=dropout_rate)
    return Block(**sublayers)

  def _core(self, causal: bool) -> str | dict:
    """The core of encoders or of decoders."""
    if isinstance(self.core, str) or "name" in self.core:
      return self.core
    return self.core.get("decoder" if causal else "encoder", "dense")

  def _attention(self, dims, kind, *, window, spec, gain, dropout_rate, rngs, causal):
    D, N, H = dims.embed, dims.heads, dims.head_dim
    scale = 1 / math.sqrt(H) if self.attention_scale is None else self.attention_scale
    # T5 leaves out the 1/sqrt(H) of the logits and makes queries smaller by it instead.
    query_gain = H**-0.5 if scale == 1.0 and self.init_stddev is None else 1.0
    return kind(
      dims,
      rngs,
      scale=scale,
      init=self.kernel_init(D),
      query_init=self.kernel_init(D, query_gain),
      value_init=self.kernel_init(D, gain if self.norm_position == "deepnorm" else 1.0),
      out_init=self.kernel_init(N * H, gain),
      biases=self.biases,
      q_norm=self.make_norm(H, rngs) if self.qk_norm else None,
      k_norm=self.make_norm(H, rngs) if self.qk_norm else None,
      position=_layer_position(spec, dims, causal, rngs),
      core=cores.make(self._core(causal) if kind is SelfAttention else "dense", rngs, **_sizes(dims, causal)),
      softcap=self.softcap,
      window=window,
      dropout_rate=dropout_rate,
    )

  def _mlp(self, dims, gain, dropout_rate, experts, rngs):
    activation, gated = ACTIVATIONS[self.activation]
    options = dict(
      activation=activation,
      gated=gated,
      init=self.kernel_init(dims.embed, gain if self.norm_position == "deepnorm" else 1.0),
      out_init=self.kernel_init(dims.mlp, gain),
      dropout_rate=dropout_rate if self.mlp_dropout else 0.0,
    )
    if experts:
      return moe.make(dims.embed, dims.mlp, rngs, experts, **options)
    return Mlp(dims.embed, dims.mlp, rngs, bias="mlp" in self.biases, **options)

  def _residual(self, dim, alpha, dropout_rate, rngs, layer) -> Residual:
    places = {"pre": ("in_norm",), "sandwich": ("in_norm", "res_norm")}.get(self.norm_position, ("out_norm",))
    norms = {place: self.make_norm(dim, rngs) for place in places}
    return Residual(layer, **norms, alpha=alpha, dropout_rate=dropout_rate)

  def _shared_position(self, spec, dims: Dims, causal: bool, rngs: nnx.Rngs) -> Position | None:
    name, options = _position_spec(spec)
    if name == "alibi":
      return Alibi(dims.heads, **options)
    if name == "relative_bias" and options.pop("shared", True):
      return RelativeBias(dims.heads, rngs, **{"bidirectional": not causal, **options})
    return None


def _layer_position(spec, dims: Dims, causal: bool, rngs: nnx.Rngs) -> Position | None:
  """A layer's own scheme; the stack's and the inputs' are made elsewhere."""
  name, options = _position_spec(spec)
  if name == "rope":
    linear, llama3 = options.pop("linear", None), options.pop("llama3", None)
    scaling = LinearScaling(**linear) if linear else Llama3Scaling(**llama3) if llama3 else None
    return Rope(**options, scaling=scaling)
  if name == "shaw":
    return ShawPosition(dims.head_dim, rngs, **options)
  if name == "relative_bias" and not options.pop("shared", True):
    return RelativeBias(dims.heads, rngs, **{"bidirectional": not causal, **options})
  return None


def _sizes(dims: Dims, causal: bool) -> dict:
  """What cores with parameters may read."""
  return dict(heads=dims.heads, kv_heads=dims.kv_heads, head_dim=dims.head_dim, causal=causal)


def _position_spec(spec: str | dict) -> tuple[str, dict]:
  """(name, arguments), checked."""
  options = {"name": spec} if isinstance(spec, str) else dict(spec)
  name = options.pop("name", None)
  if name not in POSITIONS:
    near = did_you_mean(str(name), POSITIONS)
    raise UserError(f"design.position: found {name!r}, expected one of {', '.join(POSITIONS)}{near}")
  for key in options:
    if key not in POSITIONS[name]:
      known = ", ".join(sorted(POSITIONS[name])) or "no arguments"
      raise UserError(f"design.position.{key}: unknown key{did_you_mean(key, POSITIONS[name])}; {name} takes {known}")
  return name, options


def deepnorm_weights(encoder_layers: int, decoder_layers: int) -> dict[str, tuple[float, float]]:
  """DeepNet's (alpha, initial gain) for each stack (Wang et al. 2022, figure 2); 0 layers where a stack is missing."""
  N, M = encoder_layers, decoder_layers
  if N and M:
    both = (N**4 * M) ** (1 / 16)
    return {"encoder": (0.81 * both, 0.87 / both), "decoder": ((3 * M) ** 0.25, (12 * M) ** -0.25)}
  layers = N or M
  return {"encoder" if N else "decoder": ((2 * layers) ** 0.25, (8 * layers) ** -0.25)}
