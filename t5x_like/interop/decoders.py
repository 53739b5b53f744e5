"""Entries of config tables that decoder-only families share.

These are sizes, special tokens, rotary positions, layers with a window, and experts.
"""

import dataclasses
import math
from typing import Any

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Entry, Field
from t5x_like.interop.variant_paths import get_attribute

GATED_ACTIVATIONS = {
  "silu": "swiglu",
  "swish": "swiglu",
  "gelu": "geglu",
  "gelu_pytorch_tanh": "geglu_tanh",
  "gelu_new": "geglu_tanh",
  "relu": "reglu",
}
PLAIN_ACTIVATIONS = {
  "gelu": "gelu",
  "gelu_new": "gelu_tanh",
  "gelu_pytorch_tanh": "gelu_tanh",
  "gelu_fast": "gelu_tanh",
  "relu": "relu",
  "silu": "silu",
  "swish": "silu",
  "tanh": "tanh",
}

LOCAL = "sliding_attention"  # the type of a layer with a window
FULL = "full_attention"
LAYER_TYPES = (LOCAL, FULL)

_ROPE_SCALINGS = ("linear", "llama3", "yarn", "dynamic", "longrope")
_ORIGINAL_LENGTH = "original_max_position_embeddings"
# For each scaling: the name of a parameter in a config -> the name of our argument.
_LLAMA3 = {
  "factor": "factor",
  "low_freq_factor": "low",
  "high_freq_factor": "high",
  _ORIGINAL_LENGTH: "original_length",
}
_YARN = {
  "factor": "factor",
  _ORIGINAL_LENGTH: "original_length",
  "beta_fast": "fast",
  "beta_slow": "slow",
  "attention_factor": "attention",
  "truncate": "truncate",
}
_LONG_ROPE = {
  "short_factor": "short",
  "long_factor": "long",
  _ORIGINAL_LENGTH: "original_length",
  "factor": "factor",
  "attention_factor": "attention",
}
# DeepSeek's factors of the logarithm in YaRN's temperature, see `yarn_temperature`.
_YARN_WEIGHTS = {"mscale", "mscale_all_dim"}
# Parameters that belong to no kind of scaling.
_COMMON_PARAMETERS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
# Parameters that older programs wrote and that `transformers` ignores.
_IGNORED_PARAMETERS = {"attn_factor", "extrapolation_factor", "finetuned"}


@dataclasses.dataclass(frozen=True)
class HeadDim(Field):
  """The width of a head, in types whose embedding width must also be a multiple of the heads."""

  name: str = "head_dim"
  attribute: str = "dims.head_dim"
  default: int | None = None

  def write(self, variant: Variant) -> dict[str, Any]:
    dims = variant.dims
    if dims.embed % dims.heads:
      raise UserError(
        f"dims.embed is {dims.embed}; this model type supports only multiples of {dims.heads} heads"
      )
    return super().write(variant)


@dataclasses.dataclass(frozen=True)
class SpecialTokens(Entry):
  """The ids of padding, start and end, with a family's defaults.

  A negative padding id means that there is none. If there are several end ids, only the first is
  used.
  """

  pad: int | None = None
  start: int | None = None
  eos: int | None = None

  def read(self, fields: Fields) -> dict[str, Any]:
    pad = fields.take_nullable("pad_token_id", self.pad)
    start = fields.take_nullable("bos_token_id", self.start)
    eos = fields.take_nullable("eos_token_id", self.eos)
    if isinstance(eos, list):
      eos = eos[0]
    if pad is not None and pad < 0:
      pad = None
    return {"tokens": Tokens(pad, start or 0, eos or 0)}

  def write(self, variant: Variant) -> dict[str, Any]:
    tokens = variant.tokens
    return {"pad_token_id": tokens.pad, "bos_token_id": tokens.start, "eos_token_id": tokens.eos}


@dataclasses.dataclass(frozen=True)
class Window(Entry):
  """A window of `sliding_window` tokens in every layer, null for none."""

  default: int | None

  def read(self, fields: Fields) -> dict[str, Any]:
    return {"design.windows": (fields.take_nullable("sliding_window", self.default),)}

  def write(self, variant: Variant) -> dict[str, Any]:
    return {"sliding_window": variant.design.windows[0]}


@dataclasses.dataclass(frozen=True)
class LayersByType(Entry):
  """Layers with and without a window, which `layer_types` lists.

  Attributes:
    window: the default width of the windows.
    full_every: without `layer_types`, each `full_every`-th layer has no window.
    period_field: a field that changes `full_every`.
    rope: the rotary positions of both types of layer; None if they do not differ in them.
  """

  window: int
  full_every: int
  period_field: str | None = None
  rope: "RopeByType | None" = None

  def read(self, fields: Fields) -> dict[str, Any]:
    period = self.full_every
    if self.period_field:
      period = fields.take(self.period_field, period)
    layers = fields.take("num_hidden_layers")
    default = [FULL if (layer + 1) % period == 0 else LOCAL for layer in range(layers)]
    types = read_layer_types(fields, default)
    width = fields.take_nullable("sliding_window", self.window)
    values = {"design.windows": arrange_windows(types, width)}
    if self.rope:
      local, full = self.rope.read(fields)
      position = tuple(local if layer_type == LOCAL else full for layer_type in types)
      values["design.position"] = local if local == full else position
    return values

  def write(self, variant: Variant) -> dict[str, Any]:
    values = write_layer_types(variant) | {"sliding_window": window_width(variant, self.window)}
    return values | self.rope.write(variant) if self.rope else values


def read_layer_types(fields: Fields, default: list[str]) -> list[str]:
  """Return the types of the layers of the shortest repeating pattern.

  Raises:
    UserError: the list has another length than the layers, or names an unknown type.
  """
  layers = fields.take("num_hidden_layers")
  types = fields.take("layer_types", default)
  if len(types) != layers or set(types) - set(LAYER_TYPES):
    expected = f"{layers} of {' or '.join(map(repr, LAYER_TYPES))}"
    raise fields.refusal("layer_types", types, expected)
  for period in range(1, len(types)):
    if len(types) % period == 0 and types == types[:period] * (len(types) // period):
      return types[:period]
  return types


def arrange_windows(types: list[str], width: int | None) -> tuple[int | None, ...]:
  """Return a design's windows for the types of layers: the width, or None without a window."""
  return tuple(width if layer_type == LOCAL else None for layer_type in types)


def window_width(variant: Variant, default: int | None) -> int | None:
  """Return the width of the widest window of a variant; the default if it has none."""
  return max((window for window in variant.design.windows if window), default=default)


def write_layer_types(variant: Variant) -> dict[str, list[str]]:
  """Return the field that lists the types of a variant's layers."""
  period = [FULL if window is None else LOCAL for window in variant.design.windows]
  return {"layer_types": [period[layer % len(period)] for layer in range(variant.dims.layers)]}


@dataclasses.dataclass(frozen=True)
class RoutedExperts(Entry):
  """The number of experts, and the number of experts that each token uses.

  A token uses two or more, since a single normalised gate would be constant.

  Attributes:
    experts, top_k: the defaults of both numbers.
    older_name: another name of the field with the number of experts, which is written too.
  """

  experts: int
  top_k: int
  older_name: str | None = None

  def read(self, fields: Fields) -> dict[str, Any]:
    default = self.experts
    if self.older_name:
      default = fields.take(self.older_name, default)
    experts = fields.take("num_local_experts", default)
    top_k = fields.take("num_experts_per_tok", self.top_k)
    if not 2 <= top_k <= experts:
      raise fields.refusal("num_experts_per_tok", top_k, f"2 to {experts}")
    return {"design.experts.experts": experts, "design.experts.top_k": top_k}

  def write(self, variant: Variant) -> dict[str, Any]:
    experts = get_attribute(variant, "design.experts.experts")
    values = {
      "num_local_experts": experts,
      "num_experts_per_tok": get_attribute(variant, "design.experts.top_k"),
    }
    return values | {self.older_name: experts} if self.older_name else values


@dataclasses.dataclass(frozen=True)
class Unquantized(Entry):
  """The refusal of quantized files, with advice on how to get unquantized ones."""

  advice: str

  def read(self, fields: Fields) -> dict[str, Any]:
    if fields.take("quantization_config", None):
      raise UserError(
        f"{fields.origin}: found field 'quantization_config', expected none: {self.advice}"
      )
    return {}


@dataclasses.dataclass(frozen=True)
class Rope(Entry):
  """The rotary positions of all layers; see `read_rope` and `write_rope`.

  Attributes:
    theta, fraction, names: see `read_rope`.
    interleaved: whether neighbouring channels rotate together.
  """

  theta: float = 1e4
  fraction: float | None = None
  names: tuple[str, str] = ("rope_theta", "partial_rotary_factor")
  interleaved: bool = False

  def read(self, fields: Fields) -> dict[str, Any]:
    position = read_rope(fields, theta=self.theta, fraction=self.fraction, names=self.names)
    if self.interleaved:
      position["interleaved"] = True
    return {"design.position": position}

  def write(self, variant: Variant) -> dict[str, Any]:
    position = require_rope(variant.design.position)
    if self.fraction is None:
      return add_older_rope_fields(write_rope(position))
    theta_name, fraction_name = self.names
    fraction = position.get("fraction", 1.0)
    values = add_older_rope_fields(write_rope(position, partial_rotary_factor=fraction))
    values[theta_name] = values.pop("rope_theta")
    return values | {fraction_name: fraction}


def require_rope(position: str | dict | tuple) -> dict[str, Any]:
  """Return the arguments of rotary positions, of the first layer if layers differ.

  Raises:
    UserError: the positions are not rotary.
  """
  scheme = position[0] if isinstance(position, tuple) else position
  arguments = {"name": scheme} if isinstance(scheme, str) else scheme
  if arguments["name"] != "rope":
    raise UserError(f"design.position is {position!r}; this model type supports only 'rope'")
  return arguments


@dataclasses.dataclass(frozen=True)
class RopeByType:
  """The rotary positions of layers with and without a window ("local" and "full" layers).

  Attributes:
    local, full: the default bases of both types of layer.
    local_name: the field for the local base in files from before version 5, where `rope_scaling`
      applies only to the full layers.
  """

  local: float
  full: float
  local_name: str = "rope_theta"

  def read(self, fields: Fields) -> tuple[dict, dict]:
    """Return the positions of local layers and the positions of full layers."""
    parameters = fields.take("rope_parameters", {})
    if set(parameters) - set(LAYER_TYPES):
      expected = f"an object for each of {' and '.join(LAYER_TYPES)}"
      raise fields.refusal("rope_parameters", parameters, expected)
    local_fields = {
      "rope_theta": fields.take(self.local_name, self.local),
      "rope_parameters": parameters.get(LOCAL),
    }
    full_fields = {
      "rope_theta": fields.take("rope_theta", self.full),
      "rope_parameters": parameters.get(FULL),
      "rope_scaling": fields.values.get("rope_scaling"),
      "max_position_embeddings": fields.values.get("max_position_embeddings"),
    }
    fields.ignore("rope_scaling")
    local_rope = read_rope(Fields(local_fields, fields.origin))
    return local_rope, read_rope(Fields(full_fields, fields.origin))

  def write(self, variant: Variant) -> dict[str, Any]:
    """Return the fields of both types of layer, from the first layer of each."""
    design = variant.design
    positions = design.position if isinstance(design.position, tuple) else (design.position,)
    parameters: dict[str, dict] = {}
    for layer, layer_type in enumerate(write_layer_types(variant)["layer_types"]):
      position = require_rope(positions[layer % len(positions)])
      parameters.setdefault(layer_type, write_rope(position))
    values = add_older_rope_fields(parameters)
    if self.local_name not in values:
      values[self.local_name] = parameters.get(LOCAL, values)["rope_theta"]
    return values


def read_rope(
  fields: Fields,
  *,
  theta: float = 1e4,
  fraction: float | None = None,
  names: tuple[str, str] = ("rope_theta", "partial_rotary_factor"),
) -> dict[str, Any]:
  """Return the rotary positions of a config.

  Version 5 of `transformers` writes everything to `rope_parameters`. Older files have the base and
  the fraction outside `rope_scaling`, which takes precedence if both objects exist.

  Args:
    theta, fraction: defaults; a fraction of None is for families that always rotate whole heads.
    names: the names of the fields for the base and the fraction in older files.
  Raises:
    UserError: the kind of scaling or its parameters are not supported.
  """
  rotates_whole_heads = fraction is None
  theta_name, fraction_name = names
  theta = fields.take(theta_name, theta)
  fraction = fields.take(fraction_name, fraction or 1.0)
  new_parameters = fields.take("rope_parameters", None) or {}
  old_parameters = fields.take("rope_scaling", None)
  field = "rope_scaling" if old_parameters else "rope_parameters"
  parameters = old_parameters or new_parameters
  parameters = {name: value for name, value in parameters.items() if value is not None}
  fraction = parameters.get("partial_rotary_factor", fraction)
  position: dict[str, Any] = {"name": "rope", "theta": float(parameters.get("rope_theta", theta))}
  if fraction != 1.0:
    if rotates_whole_heads:
      raise fields.refusal(fraction_name, fraction, "1.0")
    position["fraction"] = fraction
  return position | _RopeScaling(fields, field, parameters, fraction).read()


@dataclasses.dataclass(frozen=True)
class _RopeScaling:
  """The scaling of rotary positions in a config.

  Attributes:
    fields: the config.
    field: the name of the object with the parameters.
    parameters: its content, without nulls.
    fraction: the rotated fraction of each head.
  """

  fields: Fields
  field: str
  parameters: dict[str, Any]
  fraction: float

  def read(self) -> dict[str, dict[str, Any]]:
    """Return {the name of our scaling: its arguments}, or {} without scaling."""
    kind = self.parameters.get("rope_type", self.parameters.get("type", "default"))
    names = set(self.parameters) - _COMMON_PARAMETERS - _IGNORED_PARAMETERS
    if kind == "default" and not names:
      return {}
    if kind == "linear" and names == {"factor"}:
      return {"linear": {"factor": float(self.parameters["factor"])}}
    if kind == "llama3" and names | {_ORIGINAL_LENGTH} == set(_LLAMA3):
      return {"llama3": self._read_llama3()}
    if kind == "yarn" and names <= {*_YARN, *_YARN_WEIGHTS}:
      return {"yarn": self._read_yarn()}
    if kind == "dynamic" and {"factor"} <= names <= {"factor", _ORIGINAL_LENGTH}:
      factor = float(self.parameters["factor"])
      return {"dynamic": {"factor": factor, "original_length": self._max_length()}}
    if kind in ("longrope", "su") and {"short_factor", "long_factor"} <= names <= set(_LONG_ROPE):
      return {"longrope": self._read_long_rope()}
    kinds = ", ".join(map(repr, ("default", *_ROPE_SCALINGS)))
    raise self._refusal(f"rope_type {kinds} with its parameters")

  def _refusal(self, expected: str) -> UserError:
    return self.fields.refusal(self.field, self.parameters, expected)

  def _max_length(self) -> int:
    return self.fields.values.get("max_position_embeddings") or 2048

  def _original_length(self) -> int:
    """Return the length before the extension; a top-level field overrides the parameter."""
    length = self.fields.take(_ORIGINAL_LENGTH, None)
    return length or self.parameters.get(_ORIGINAL_LENGTH) or self._max_length()

  def _rename_parameters(self, table: dict[str, str]) -> dict[str, Any]:
    """Return the parameters that the config has, under the names of our arguments."""
    return {
      argument: self.parameters[name] for name, argument in table.items() if name in self.parameters
    }

  def _read_llama3(self) -> dict[str, Any]:
    arguments = self._rename_parameters(_LLAMA3)
    arguments.setdefault("original_length", self._max_length())
    return arguments

  def _read_yarn(self) -> dict[str, Any]:
    """Return the arguments of `YarnScaling`.

    Raises:
      UserError: the config has neither a factor nor the two lengths whose ratio it is.
    """
    length = self._original_length()
    factor = self.parameters.get("factor")
    if factor is None:
      if "max_position_embeddings" not in self.fields.values:
        raise self._refusal("a factor, or max_position_embeddings")
      factor = self.fields.values["max_position_embeddings"] / length
    arguments = self._rename_parameters(_YARN)
    weight = self.parameters.get("mscale")
    divisor_weight = self.parameters.get("mscale_all_dim")
    if "attention" not in arguments and weight and divisor_weight:
      divisor = yarn_temperature(factor, divisor_weight)
      arguments["attention"] = yarn_temperature(factor, weight) / divisor
    return arguments | {"factor": factor, "original_length": length}

  def _read_long_rope(self) -> dict[str, Any]:
    """Return the arguments of `LongScaling`.

    Raises:
      UserError: the number of factors is not the number of rotated pairs of channels.
    """
    sizes = self.fields.values
    head_dim = sizes.get("head_dim")
    if head_dim is None and sizes.get("hidden_size") and sizes.get("num_attention_heads"):
      head_dim = sizes["hidden_size"] // sizes["num_attention_heads"]
    counts = {len(self.parameters["short_factor"]), len(self.parameters["long_factor"])}
    if head_dim is not None:
      pairs = int(head_dim * self.fraction) // 2
      if counts != {pairs}:
        raise self._refusal(f"{pairs} short and long factors")
    length = self._original_length()
    factor = self.parameters.get("factor") or self._max_length() / length
    arguments = self._rename_parameters(_LONG_ROPE)
    return arguments | {"factor": float(factor), "original_length": length}


def yarn_temperature(factor: float, weight: float) -> float:
  """Return `0.1 * weight * ln(factor) + 1`, by which YaRN multiplies queries and keys."""
  return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def write_rope(position: dict[str, Any], **parameters: float) -> dict[str, Any]:
  """Return `rope_parameters` for a design's position, extended by `parameters`."""
  theta = position.get("theta", 1e4)
  return {**_write_rope_scaling(position), "rope_theta": theta, **parameters}


def _write_rope_scaling(position: dict[str, Any]) -> dict[str, Any]:
  if position.get("linear"):
    return {"rope_type": "linear", **position["linear"]}
  if position.get("llama3"):
    defaults = {"factor": 8.0, "low": 1.0, "high": 4.0, "original_length": 8192}
    return {"rope_type": "llama3", **_rename_arguments(_LLAMA3, defaults | position["llama3"])}
  if position.get("yarn"):
    return {"rope_type": "yarn", **_rename_arguments(_YARN, position["yarn"])}
  if position.get("dynamic"):
    scaling = {"rope_type": "dynamic", **position["dynamic"]}
    scaling[_ORIGINAL_LENGTH] = scaling.pop("original_length")
    return scaling
  if position.get("longrope"):
    return {"rope_type": "longrope", **_rename_arguments(_LONG_ROPE, position["longrope"])}
  return {"rope_type": "default"}


def _rename_arguments(table: dict[str, str], arguments: dict[str, Any]) -> dict[str, Any]:
  """Return the arguments under the names of a config's parameters."""
  return {name: arguments[argument] for name, argument in table.items() if argument in arguments}


def add_older_rope_fields(parameters: dict[str, Any]) -> dict[str, Any]:
  """Return `rope_parameters` with the fields that `transformers` before version 5 reads instead.

  It reads the base from `rope_theta` (for Gemma 3's layers with a window, from
  `rope_local_base_freq`, which is not added here), and the factor of YaRN from the ratio of the
  lengths.

  Args:
    parameters: `rope_parameters` of all layers, or by type of layer.
  """
  rope = parameters.get(FULL) or parameters.get(LOCAL) or parameters
  scaling = {
    name: value
    for name, value in rope.items()
    if name not in ("rope_theta", "partial_rotary_factor")
  }
  fields = {
    "rope_parameters": parameters,
    "rope_theta": rope["rope_theta"],
    "rope_scaling": None if scaling["rope_type"] == "default" else scaling,
  }
  length = scaling.get(_ORIGINAL_LENGTH)
  if length:
    factor = 1.0 if scaling["rope_type"] == "dynamic" else scaling["factor"]
    fields["max_position_embeddings"] = round(factor * length)
  return fields
