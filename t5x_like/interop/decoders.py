"""Shared by the configs of decoder-only families: special ids, rotary positions, and refusals of
other designs."""

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

_LLAMA3 = {
  "factor": "factor",
  "low_freq_factor": "low",
  "high_freq_factor": "high",
  "original_max_position_embeddings": "original_length",
}

LAYER_TYPES = ("sliding_attention", "full_attention")  # of layers
ROPE_SCALINGS = ("linear", "llama3", "yarn", "dynamic", "longrope")
_YARN = {
  "factor": "factor",
  "original_max_position_embeddings": "original_length",
  "beta_fast": "fast",
  "beta_slow": "slow",
  "attention_factor": "attention",
  "truncate": "whole",
}
_WEIGHTS = {"mscale", "mscale_all_dim"}  # of the temperature, in DeepSeek's YaRN
_LONG = {
  "short_factor": "short",
  "long_factor": "long",
  "original_max_position_embeddings": "original_length",
  "factor": "factor",
  "attention_factor": "attention",
}
# of older programs, which the library does not read
_UNREAD = {"attn_factor", "extrapolation_factor", "finetuned"}


def take_nullable(fields: Fields, name: str, default: Any) -> Any:
  """Return the value of a field for which null is meaningful; the default if it is missing."""
  value = fields.take(name, None)
  return value if name in fields.values else default


def read_special_tokens(
  fields: Fields, *, pad: int | None = None, start: int | None = None, eos: int | None = None
) -> Tokens:
  """Return the special ids of a config, or a family's defaults.

  A negative padding id means none. The first of several end ids counts.
  """
  pad, start, eos = (
    take_nullable(fields, f"{n}_token_id", d)
    for n, d in (("pad", pad), ("bos", start), ("eos", eos))
  )
  eos = eos[0] if isinstance(eos, list) else eos
  return Tokens(None if pad is None or pad < 0 else pad, start or 0, eos or 0)


def special_token_fields(tokens: Tokens) -> dict[str, int | None]:
  return {"pad_token_id": tokens.pad, "bos_token_id": tokens.start, "eos_token_id": tokens.eos}


def read_rope(
  fields: Fields,
  *,
  theta: float = 1e4,
  fraction: float | None = None,
  names=("rope_theta", "partial_rotary_factor"),
) -> dict:
  """Return the rotary positions of a config.

  Version 5 of the library writes everything to `rope_parameters`; older files have the base and the
  fraction next to `rope_scaling`, which takes precedence if both exist.

  Args:
    theta, fraction: defaults; a fraction of None is for families that always rotate whole heads.
    names: the names of the base and the fraction in older files.
  Raises:
    UserError: the kind of scaling or its parameters are not supported.
  """
  whole = fraction is None
  theta = fields.take(names[0], theta)
  fraction = fields.take(names[1], fraction or 1.0)
  new = fields.take("rope_parameters", None)
  old = fields.take("rope_scaling", None)
  field, values = ("rope_scaling", old) if old else ("rope_parameters", new or {})
  values = {name: value for name, value in values.items() if value is not None}
  kind = values.get("rope_type", values.get("type", "default"))
  left = set(values) - {"rope_type", "type", "rope_theta", "partial_rotary_factor"} - _UNREAD
  position: dict[str, Any] = {"name": "rope", "theta": float(values.get("rope_theta", theta))}
  fraction = values.get("partial_rotary_factor", fraction)
  if fraction != 1.0:
    if whole:
      raise fields.refusal(names[1], fraction, "1.0")
    position["fraction"] = fraction
  if kind == "linear" and left == {"factor"}:
    position["linear"] = {"factor": float(values["factor"])}
  elif kind == "llama3" and left | {"original_max_position_embeddings"} == set(_LLAMA3):
    values = {"original_max_position_embeddings": _original_length(fields), **values}
    position["llama3"] = {ours: values[name] for name, ours in _LLAMA3.items()}
  elif kind == "yarn" and left <= {*_YARN, *_WEIGHTS}:
    position["yarn"] = _yarn(fields, field, values)
  elif kind == "dynamic" and {"factor"} <= left <= {"factor", "original_max_position_embeddings"}:
    position["dynamic"] = {
      "factor": float(values["factor"]),
      "original_length": _original_length(fields),
    }
  elif kind in ("longrope", "su") and {"short_factor", "long_factor"} <= left <= set(_LONG):
    position["longrope"] = _long(fields, field, values, fraction)
  elif kind != "default" or left:
    kinds = ", ".join(("'default'", *map(repr, ROPE_SCALINGS)))
    raise fields.refusal(field, values, f"rope_type {kinds} with its parameters")
  return position


def _original_length(fields: Fields) -> int:
  """Return the length before an extension, of a config whose parameters of scaling do not name
  it."""
  return fields.values.get("max_position_embeddings") or 2048


def _yarn(fields: Fields, field: str, values: dict[str, Any]) -> dict[str, Any]:
  """Return the arguments of `YarnScaling`; raise UserError if neither a factor nor two lengths are
  there."""
  # beside the parameters it takes precedence
  length = fields.take("original_max_position_embeddings", None)
  length = length or values.get("original_max_position_embeddings") or _original_length(fields)
  factor = values.get("factor")
  if factor is None and "max_position_embeddings" not in fields.values:
    raise fields.refusal(field, values, "a factor, or max_position_embeddings")
  if factor is None:
    factor = fields.values["max_position_embeddings"] / length
  known = {_YARN[name]: values[name] for name in _YARN if name in values}
  weight = values.get("mscale")
  weight_below = values.get("mscale_all_dim")
  if "attention" not in known and weight and weight_below:
    known["attention"] = yarn_temperature(factor, weight) / yarn_temperature(factor, weight_below)
  return known | {"factor": factor, "original_length": length}


def _long(fields: Fields, field: str, values: dict[str, Any], fraction: float) -> dict[str, Any]:
  """Return the arguments of `LongScaling`; raise UserError if there is not a factor of each pair of
  channels."""
  sizes = fields.values
  head_dim = sizes.get("head_dim")
  if head_dim is None and sizes.get("hidden_size") and sizes.get("num_attention_heads"):
    head_dim = sizes["hidden_size"] // sizes["num_attention_heads"]
  counts = {len(values["short_factor"]), len(values["long_factor"])}
  if head_dim is not None and counts != {int(head_dim * fraction) // 2}:
    raise fields.refusal(field, values, f"{int(head_dim * fraction) // 2} short and long factors")
  length = fields.take("original_max_position_embeddings", None)
  length = length or values.get("original_max_position_embeddings") or _original_length(fields)
  factor = values.get("factor") or _original_length(fields) / length
  known = {_LONG[name]: values[name] for name in _LONG if name in values}
  return known | {"factor": float(factor), "original_length": length}


def yarn_temperature(factor: float, weight: float) -> float:
  """Return `0.1 * weight * ln(factor) + 1`, by which YaRN multiplies queries and keys."""
  return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def read_local_and_full_rope(
  fields: Fields, *, local: float, full: float, local_name: str = "rope_theta"
) -> tuple[dict, dict]:
  """Return the rotary positions of layers with a window and of the others.

  Args:
    local, full: default bases.
    local_name: the name of the first base in files from before version 5, where `rope_scaling` is
      the others' alone.
  Raises:
    UserError: as `rope` does.
  """
  kinds = fields.take("rope_parameters", {})
  values = fields.values
  if set(kinds) - set(LAYER_TYPES):
    raise fields.refusal(
      "rope_parameters", kinds, f"an object for each of {' and '.join(LAYER_TYPES)}"
    )
  local = fields.take(local_name, local)
  full = fields.take("rope_theta", full)
  fields.ignore("rope_scaling")
  near = {"rope_theta": local, "rope_parameters": kinds.get(LAYER_TYPES[0])}
  far = {
    "rope_theta": full,
    "rope_parameters": kinds.get(LAYER_TYPES[1]),
    "rope_scaling": values.get("rope_scaling"),
  }
  far["max_position_embeddings"] = values.get("max_position_embeddings")
  return read_rope(Fields(near, fields.origin)), read_rope(Fields(far, fields.origin))


def read_local_layers(fields: Fields, default: Callable[[int], bool]) -> list[bool]:
  """Return which layers of a period have a window; `default` tells it of a layer if the config has
  no list.

  Raises:
    UserError: the list does not fit the layers.
  """
  layers = fields.take("num_hidden_layers")
  types = fields.take("layer_types", [LAYER_TYPES[not default(layer)] for layer in range(layers)])
  if len(types) != layers or set(types) - set(LAYER_TYPES):
    raise fields.refusal("layer_types", types, f"{layers} of {' or '.join(map(repr, LAYER_TYPES))}")
  period = next(
    p for p in range(1, layers + 1) if layers % p == 0 and types == types[:p] * (layers // p)
  )
  return [kind == LAYER_TYPES[0] for kind in types[:period]]


def arrange_by_kind(local: list[bool], near: Any, far: Any) -> Any:
  """Return a cell of a design for a period: `near` for layers with a window, `far` for the others;
  one if equal."""
  return near if near == far else tuple(near if here else far for here in local)


def window_width(design, default: int | None) -> int | None:
  """Return the width of the layers with a window."""
  return max((window for window in design.windows if window), default=default)


def write_layer_types(windows: tuple, layers: int) -> list[str]:
  """Return `layer_types` for a design's windows."""
  return [LAYER_TYPES[windows[layer % len(windows)] is None] for layer in range(layers)]


def allow_one_window(design) -> dict:
  """Return an argument of `refuse_others`: any windows of one width, and layers without."""
  wide = {window for window in design.windows if window is not None}
  return {"windows": [design.windows] if len(wide) < 2 else [(None,), "one window, and None"]}


def write_rope(position: dict, **more: float) -> dict:
  """Return `rope_parameters` for a design's position, extended by `more`."""
  if position.get("linear"):
    scaling = {"rope_type": "linear", **position["linear"]}
  elif position.get("llama3"):
    values = {"factor": 8.0, "low": 1.0, "high": 4.0, "original_length": 8192, **position["llama3"]}
    scaling = {"rope_type": "llama3", **{name: values[ours] for name, ours in _LLAMA3.items()}}
  elif position.get("yarn"):
    values = position["yarn"]
    scaling = {
      "rope_type": "yarn",
      **{name: values[ours] for name, ours in _YARN.items() if ours in values},
    }
  elif position.get("dynamic"):
    scaling = {"rope_type": "dynamic", **position["dynamic"]}
    scaling["original_max_position_embeddings"] = scaling.pop("original_length")
  elif position.get("longrope"):
    values = position["longrope"]
    scaling = {
      "rope_type": "longrope",
      **{name: values[ours] for name, ours in _LONG.items() if ours in values},
    }
  else:
    scaling = {"rope_type": "default"}
  return {**scaling, "rope_theta": position.get("theta", 1e4), **more}


def write_rope_by_kind(model) -> dict:
  """Return `rope_parameters` by kind of layer; raise UserError if layers of one kind differ in
  their positions."""
  design = model.variant.design
  positions = design.position if isinstance(design.position, tuple) else (design.position,)
  found: dict[str, dict] = {}
  for layer, kind in enumerate(write_layer_types(design.windows, model.variant.dims.layers)):
    position = write_rope(
      require_position(
        model, "rope", "theta", *ROPE_SCALINGS, found=positions[layer % len(positions)]
      )
    )
    if found.setdefault(kind, position) != position:
      raise UserError(
        f"design.position differs among the layers of {kind}; this type has one "
        "scheme for each kind"
      )
  return found


def add_older_rope_fields(rope: dict) -> dict:
  """Return `rope_parameters`, of one kind or of two, and the fields that readers from before
  version 5 take.

  They take the base from `rope_theta`, in layers with a window of Gemma 3 from
  `rope_local_base_freq`, and the factor of YaRN from the ratio of the lengths.
  """
  found = {"rope_parameters": rope}
  rope = rope.get(LAYER_TYPES[1]) or rope.get(LAYER_TYPES[0]) or rope
  scaling = {
    name: value
    for name, value in rope.items()
    if name not in ("rope_theta", "partial_rotary_factor")
  }
  found |= {
    "rope_theta": rope["rope_theta"],
    "rope_scaling": None if scaling["rope_type"] == "default" else scaling,
  }
  if length := scaling.get("original_max_position_embeddings"):
    stretched = 1.0 if scaling["rope_type"] == "dynamic" else scaling["factor"]
    found["max_position_embeddings"] = round(stretched * length)
  return found


def require_dropless_experts(experts, *, normalised: bool) -> None:
  """Refuse experts other than a dropless softmax over two or more, as wide as the MLP.

  Args:
    normalised: whether gates must add up to one.
  Raises:
    UserError: the experts cannot be expressed.
  """
  plain = (
    experts.router == "softmax"
    and experts.dispatch == "dropless"
    and not (experts.mlp or experts.shared)
  )
  if experts.top_k < 2 or not plain or (normalised and experts.normalise is False):
    gates = " whose gates add up to one" if normalised else ""
    raise UserError(
      f"design.experts is {experts!r}; this type supports only a softmax over two or more "
      f"experts{gates}, with dispatch 'dropless', each as wide as the MLP, and none shared"
    )


def require_position(
  model, name: str, *cells: str, found: str | dict | tuple | None = None
) -> dict:
  """Return the position scheme of a design, or `found` of some layers, with its arguments.

  Raises:
    UserError: the scheme is not `name`, or has arguments besides `cells`.
  """
  found = model.variant.design.position if found is None else found
  if isinstance(found, tuple):
    require_design(model, position=[name])
  position = found if isinstance(found, dict) else {"name": found}
  extra = {key for key, value in position.items() if key not in cells and key != "name" and value}
  if position["name"] != name or extra:
    require_design(model, position=[name])
  return position


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
  D = model.variant.dims.embed
  H = model.variant.dims.head_dim
  plain = dict(
    norm_position="pre",
    parallel="no",
    biases=(),
    qk_norm=False,
    attention_scale=[None, H**-0.5],
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
  dims = model.variant.dims
  if square and dims.heads * H != D:
    raise UserError(
      f"{dims.heads} heads of width {H} are not the embedding width {D}, as this type needs"
    )
  if heads and dims.kv_heads != dims.heads:
    raise UserError(
      f"{dims.kv_heads} key/value heads for {dims.heads} heads; this type needs as many of both"
    )
  if mlp and dims.mlp != 4 * D:
    raise UserError(
      f"feed-forward width {dims.mlp} is not four times the embedding width {D}, as this type needs"
    )
