"""Read and write the fields of Hugging Face configs that decoder-only families share.

These are the special tokens, the rotary positions and the layers with a window. The functions
`require_…` refuse designs that a Hugging Face model type cannot express.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from t5x_like.architectures.design import Tokens
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.hf import exact_cores, require_design

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

ROPE_SCALINGS = ("linear", "llama3", "yarn", "dynamic", "longrope")
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
  "truncate": "whole",
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


def take_nullable(fields: Fields, name: str, default: Any) -> Any:
  """Return the value of a field, which may be null; the default only if the field is missing."""
  value = fields.take(name, None)
  return value if name in fields.values else default


def read_special_tokens(
  fields: Fields, *, pad: int | None = None, start: int | None = None, eos: int | None = None
) -> Tokens:
  """Return the special ids of a config, or a family's defaults.

  A negative padding id means that there is none. Of several end ids, only the first is used.
  """
  pad = take_nullable(fields, "pad_token_id", pad)
  start = take_nullable(fields, "bos_token_id", start)
  eos = take_nullable(fields, "eos_token_id", eos)
  if isinstance(eos, list):
    eos = eos[0]
  if pad is not None and pad < 0:
    pad = None
  return Tokens(pad, start or 0, eos or 0)


def special_token_fields(tokens: Tokens) -> dict[str, int | None]:
  """Return the fields of a config that name its special ids."""
  return {"pad_token_id": tokens.pad, "bos_token_id": tokens.start, "eos_token_id": tokens.eos}


def read_rope(
  fields: Fields,
  *,
  theta: float = 1e4,
  fraction: float | None = None,
  names: tuple[str, str] = ("rope_theta", "partial_rotary_factor"),
) -> dict[str, Any]:
  """Return the rotary positions of a config.

  Version 5 of `transformers` writes everything to `rope_parameters`. Older files have the base and
  the fraction beside `rope_scaling`, which takes precedence if both objects exist.

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
    kinds = ", ".join(map(repr, ("default", *ROPE_SCALINGS)))
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


def read_local_and_full_rope(
  fields: Fields, *, local: float, full: float, local_name: str = "rope_theta"
) -> tuple[dict, dict]:
  """Return (rotary positions of layers with a window, those of layers without).

  Args:
    local, full: default bases.
    local_name: the field for the local base in files from before version 5, where `rope_scaling`
      applies only to the full layers.
  Raises:
    UserError: as `read_rope` does.
  """
  parameters = fields.take("rope_parameters", {})
  if set(parameters) - set(LAYER_TYPES):
    expected = f"an object for each of {' and '.join(LAYER_TYPES)}"
    raise fields.refusal("rope_parameters", parameters, expected)
  local_fields = {
    "rope_theta": fields.take(local_name, local),
    "rope_parameters": parameters.get(LOCAL),
  }
  full_fields = {
    "rope_theta": fields.take("rope_theta", full),
    "rope_parameters": parameters.get(FULL),
    "rope_scaling": fields.values.get("rope_scaling"),
    "max_position_embeddings": fields.values.get("max_position_embeddings"),
  }
  fields.ignore("rope_scaling")
  local_rope = read_rope(Fields(local_fields, fields.origin))
  return local_rope, read_rope(Fields(full_fields, fields.origin))


def read_local_layers(fields: Fields, is_local: Callable[[int], bool]) -> list[bool]:
  """Return for each layer of the shortest repeating pattern whether it has a window.

  Args:
    is_local: decides whether a layer has a window if the config does not list the types of layers.
  Raises:
    UserError: the list has another length than the layers, or names an unknown type.
  """
  layers = fields.take("num_hidden_layers")
  default = [LOCAL if is_local(layer) else FULL for layer in range(layers)]
  types = fields.take("layer_types", default)
  if len(types) != layers or set(types) - set(LAYER_TYPES):
    expected = f"{layers} of {' or '.join(map(repr, LAYER_TYPES))}"
    raise fields.refusal("layer_types", types, expected)
  return [layer_type == LOCAL for layer_type in types[: _period(types)]]


def _period(types: list[str]) -> int:
  """Return the length of the shortest pattern that repeats to the whole list."""
  for period in range(1, len(types)):
    if len(types) % period == 0 and types == types[:period] * (len(types) // period):
      return period
  return len(types)


def arrange_by_kind(is_local: list[bool], local: Any, full: Any) -> Any:
  """Return a field of a design for a pattern of layers with and without a window.

  Returns:
    A tuple with `local` for each layer with a window and `full` for the others; a single value if
    both are equal.
  """
  if local == full:
    return local
  return tuple(local if has_window else full for has_window in is_local)


def arrange_windows(is_local: list[bool], window: int | None) -> tuple[int | None, ...]:
  """Return a design's windows for a pattern of layers: the width, or None without a window."""
  return tuple(window if has_window else None for has_window in is_local)


def window_width(design, default: int | None) -> int | None:
  """Return the width of the widest window of a design; the default if it has none."""
  return max((window for window in design.windows if window), default=default)


def write_layer_types(windows: tuple, layers: int) -> list[str]:
  """Return `layer_types` for a design's windows."""
  period = [FULL if window is None else LOCAL for window in windows]
  return [period[layer % len(period)] for layer in range(layers)]


def allow_one_window(design) -> dict[str, list]:
  """Return arguments for `require_plain_decoder` that allow windows of only one width."""
  widths = {window for window in design.windows if window is not None}
  if len(widths) < 2:
    return {"windows": [design.windows]}
  # No design equals the second entry; it completes the list of allowed values in the message.
  return {"windows": [(None,), "one window, and None"]}


def write_rope(position: dict[str, Any], **parameters: float) -> dict[str, Any]:
  """Return `rope_parameters` for a design's position, extended by `parameters`."""
  theta = position.get("theta", 1e4)
  return {**_write_rope_scaling(position), "rope_theta": theta, **parameters}


def _write_rope_scaling(position: dict[str, Any]) -> dict[str, Any]:
  if position.get("linear"):
    return {"rope_type": "linear", **position["linear"]}
  if position.get("llama3"):
    defaults = {"factor": 8.0, "low": 1.0, "high": 4.0, "original_length": 8192}
    return {"rope_type": "llama3", **_to_parameters(_LLAMA3, defaults | position["llama3"])}
  if position.get("yarn"):
    return {"rope_type": "yarn", **_to_parameters(_YARN, position["yarn"])}
  if position.get("dynamic"):
    scaling = {"rope_type": "dynamic", **position["dynamic"]}
    scaling[_ORIGINAL_LENGTH] = scaling.pop("original_length")
    return scaling
  if position.get("longrope"):
    return {"rope_type": "longrope", **_to_parameters(_LONG_ROPE, position["longrope"])}
  return {"rope_type": "default"}


def _to_parameters(table: dict[str, str], arguments: dict[str, Any]) -> dict[str, Any]:
  """Return the arguments that are given, under the names of a config's parameters."""
  return {name: arguments[argument] for name, argument in table.items() if argument in arguments}


def write_rope_by_kind(model) -> dict[str, dict]:
  """Return `rope_parameters` by type of layer.

  Raises:
    UserError: layers of one type differ in their positions.
  """
  design = model.variant.design
  positions = design.position if isinstance(design.position, tuple) else (design.position,)
  parameters: dict[str, dict] = {}
  layer_types = write_layer_types(design.windows, model.variant.dims.layers)
  for layer, layer_type in enumerate(layer_types):
    position = positions[layer % len(positions)]
    required = require_position(model, "rope", "theta", *ROPE_SCALINGS, position=position)
    rope = write_rope(required)
    if parameters.setdefault(layer_type, rope) != rope:
      raise UserError(
        f"design.position differs among the layers of {layer_type}; this model type has one "
        "scheme for each type of layer"
      )
  return parameters


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


def require_dropless_experts(experts, *, normalised: bool) -> None:
  """Refuse experts other than a dropless softmax over two or more, as wide as the MLP.

  Args:
    normalised: whether gates must add up to one.
  Raises:
    UserError: the experts cannot be expressed.
  """
  is_dropless_softmax = experts.router == "softmax" and experts.dispatch == "dropless"
  has_other_widths = experts.mlp or experts.shared
  lacks_normalisation = normalised and experts.normalise is False
  if experts.top_k < 2 or not is_dropless_softmax or has_other_widths or lacks_normalisation:
    gates = " whose gates add up to one" if normalised else ""
    raise UserError(
      f"design.experts is {experts!r}; this type supports only a softmax over two or more "
      f"experts{gates}, with dispatch 'dropless', each as wide as the MLP, and none shared"
    )


def require_position(
  model, name: str, *arguments: str, position: str | dict | tuple | None = None
) -> dict:
  """Return the position scheme of a design with its arguments.

  Args:
    name: the required scheme.
    arguments: the names of the arguments that it may have.
    position: the scheme to check, where layers differ; by default the scheme of the whole design.
  Raises:
    UserError: the scheme is not `name`, or has other arguments.
  """
  if position is None:
    position = model.variant.design.position
  if isinstance(position, tuple):
    require_design(model, position=[name])
  scheme = position if isinstance(position, dict) else {"name": position}
  allowed = {"name", *arguments}
  extra = {key for key, value in scheme.items() if key not in allowed and value}
  if scheme["name"] != name or extra:
    require_design(model, position=[name])
  return scheme


def require_plain_decoder(
  model, *, square: bool = True, heads: bool = True, mlp: bool = True, **expected
) -> None:
  """Refuse designs that a model type cannot express.

  Args:
    square: require heads that together are as wide as the embedding.
    heads: require as many key/value heads as query heads.
    mlp: require a feed-forward layer four times as wide as the embedding.
    expected: allowed values by field of the design; other fields must be as in a plain pre-norm
      `Design`.
  Raises:
    UserError: the design cannot be expressed; names the field or the sizes.
  """
  dims = model.variant.dims
  plain = dict(
    norm_position="pre",
    parallel="no",
    biases=(),
    qk_norm=False,
    attention_scale=[None, dims.head_dim**-0.5],
    softcap=None,
    windows=(None,),
    core=exact_cores(model.variant.design),
    experts=None,
    embed_scale=False,
    embed_norm=False,
    tied=True,
    logits_scale=False,
    logits_softcap=None,
    logits_bias=False,
  )
  require_design(model, **(plain | expected))
  if square and dims.heads * dims.head_dim != dims.embed:
    raise UserError(
      f"{dims.heads} heads of width {dims.head_dim} are not the embedding width {dims.embed}, as "
      "this type needs"
    )
  if heads and dims.kv_heads != dims.heads:
    raise UserError(
      f"{dims.kv_heads} key/value heads for {dims.heads} heads; this type needs as many of both"
    )
  if mlp and dims.mlp != 4 * dims.embed:
    raise UserError(
      f"feed-forward width {dims.mlp} is not four times the embedding width {dims.embed}, as this "
      "type needs"
    )
