"""Read, replace and compare attributes of a variant by dotted paths, as "design.position.length".

A path may end within a scheme of positions or a core, a name or {"name": …} with its arguments.
"""

import dataclasses
import math
from typing import Any

from t5x_like import slots
from t5x_like.architectures import backbones, heads
from t5x_like.architectures.heads.lm import hidden_scale
from t5x_like.errors import UserError
from t5x_like.nn import cores, image_positions, positions
from t5x_like.nn.cores.auto import EXACT_CORES
from t5x_like.nn.dims import Dims
from t5x_like.nn.latent_attention import Latent
from t5x_like.nn.positions import rope

_SLOTS = (positions, image_positions, backbones, heads)
# Fields of a design that matter only in training.
_TRAINING_FIELDS = {
  "quantization",
  "mlp_dropout",
  "shared_dropout",
  "no_dropout",
  "attention_dropout",
  "init_stddev",
  "kernel_scales",
  "residual_init",
  "embed_init",
}
# Arguments of cores that matter only in training.
_TRAINING_ARGUMENTS_OF_CORES = ("plan", "seed", "stddev")
# Fields of experts that do not matter only in training.
_FIELDS_OF_EXPERTS = ("experts", "top_k", "mlp", "shared", "normalise", "router", "dispatch")
_ROPE_SCALINGS = {
  "linear": rope.LinearScaling,
  "llama3": rope.Llama3Scaling,
  "yarn": rope.YarnScaling,
  "dynamic": rope.DynamicScaling,
  "longrope": rope.LongScaling,
}
_BIASES = ("qkv", "qv", "out", "mlp")


def get_attribute(variant: Any, path: str) -> Any:
  """Return an attribute of a variant, or its effective value where it is None.

  Raises:
    UserError: the design has no such part.
  """
  if path in ("decoder_layers", "decoder_heads", "decoder_mlp"):
    return getattr(variant.decoder_dims, path.removeprefix("decoder_"))
  if path == "embed":
    return variant.embed or variant.dims.embed
  if path == "design.biases":
    return _sort_biases(variant.design.biases)
  value = _get(variant, path)
  if value is None and path == "design.experts.mlp":
    return variant.dims.mlp
  if value is None and path == "design.experts.normalise":
    return variant.design.experts.top_k > 1
  return value


def _get(variant: Any, path: str) -> Any:
  value = variant
  parts = path.split(".")
  for depth, part in enumerate(parts):
    if isinstance(value, str | dict | tuple):
      value = complete_spec(value) if isinstance(value, str | dict) else {}
      if part not in value:
        raise _missing_part(variant, ".".join(parts[:depth]), part)
      value = value[part]
    elif value is None:
      raise _missing_part(variant, ".".join(parts[:depth]), part)
    else:
      value = getattr(value, part)
  return value


def _missing_part(variant: Any, path: str, part: str) -> UserError:
  return UserError(f"{path} is {_get(variant, path)!r}; this model type needs one with {part!r}")


def replace_attributes(record: Any, values: dict[str, Any]) -> Any:
  """Return a record, or the arguments of a slot, with attributes replaced by their paths."""
  changes: dict[str, Any] = {}
  inner: dict[str, dict[str, Any]] = {}
  for path, value in values.items():
    part, _, rest = path.partition(".")
    if rest:
      inner.setdefault(part, {})[rest] = value
    else:
      changes[part] = value
  if isinstance(record, str):
    return {"name": record, **changes}
  if isinstance(record, dict):
    return {**record, **changes}
  for part, attributes in inner.items():
    changes[part] = replace_attributes(changes.get(part, getattr(record, part)), attributes)
  return dataclasses.replace(record, **changes)


def complete_dims(sizes: dict[str, int | None]) -> Dims:
  """Return the sizes of a stack.

  Without sizes of their own, there are as many key/value heads as heads, heads share the embedding
  width, and the MLP is four times as wide.

  Raises:
    ValueError: the heads cannot share the width.
  """
  embed = sizes["embed"]
  heads = sizes["heads"]
  head_dim = sizes.get("head_dim")
  if not head_dim:
    if embed % heads:
      raise ValueError(f"{heads} heads cannot share a width of {embed}")
    head_dim = embed // heads
  kv_heads = sizes.get("kv_heads") or heads
  return Dims(embed, heads, kv_heads, head_dim, sizes.get("mlp") or 4 * embed, sizes["layers"])


def complete_spec(spec: str | dict) -> dict[str, Any]:
  """Return a slot's name with all its arguments; an unknown name is returned unchanged."""
  arguments = {"name": spec} if isinstance(spec, str) else spec
  for package in _SLOTS:
    if arguments.get("name") in slots.names(package):
      module = slots.module(arguments["name"], package)
      return {"name": arguments["name"]} | slots.defaults(module.make) | arguments
  return arguments


def canonical_attributes(variant: Any) -> dict[str, Any]:
  """Return the attributes, by path, that determine the function of a variant.

  Sizes, layers and schemes are complete, and fields that matter only in training are left out.
  """
  fields = {field.name: getattr(variant, field.name) for field in dataclasses.fields(variant)}
  values: dict[str, Any] = {}
  if hasattr(variant, "dims"):
    values |= {f"dims.{name}": size for name, size in vars(variant.dims).items()}
  for name, value in fields.items():
    if hasattr(value, "design"):  # one of two encoders
      values |= {f"{name}.{path}": part for path, part in canonical_attributes(value).items()}
    elif name == "backbone" and value is not None:
      for argument, part in complete_spec(value).items():
        if argument != "drop_path":  # which matters only in training
          values[f"backbone.{argument}"] = part
    elif name not in ("dims", "design", "tokens", "head", "vocab_size"):
      values[name] = value
  for name in ("decoder_layers", "decoder_heads", "decoder_mlp", "embed"):
    if name in values:
      values[name] = get_attribute(variant, name)
  if "design" not in fields:
    return values
  for name, value in vars(variant.design).items():
    if name not in _TRAINING_FIELDS:
      values[f"design.{name}"] = value
  return values | _canonical_design(variant)


def _canonical_design(variant: Any) -> dict[str, Any]:
  """Return the fields of a design that have several spellings, in their canonical one."""
  design = variant.design
  dims = variant.dims
  layers = range(dims.layers)
  position = design.position if isinstance(design.position, tuple) else (design.position,)
  completed = [_complete_position(scheme) for scheme in position]
  values: dict[str, Any] = {
    "design.biases": _sort_biases(design.biases),
    "design.core": _canonical_core(design.core),
    "design.windows": [design.windows[layer % len(design.windows)] for layer in layers],
    "design.position": [completed[layer % len(completed)] for layer in layers],
    "design.logits_scale": hidden_scale(design, dims.embed),
  }
  if design.attention_scale is None:
    values["design.attention_scale"] = _default_attention_scale(variant)
  if design.latent is not None:
    latent = Latent(**design.latent)
    epsilon = latent.norm_epsilon or design.norm_epsilon
    values["design.latent"] = vars(dataclasses.replace(latent, norm_epsilon=epsilon))
  if design.experts is None:
    values["design.experts_every"] = 1
    return values
  names = list(_FIELDS_OF_EXPERTS)
  if design.experts.router == "sigmoid":
    names += ("groups", "top_groups", "scale")
  values["design.experts"] = {
    name: get_attribute(variant, f"design.experts.{name}") for name in names
  }
  return values


def _default_attention_scale(variant: Any) -> Any:
  """Return the factor of a variant's logits, or the factors of its stages if they differ."""
  stages = getattr(variant, "stages", (variant.dims,))
  scales = [dims.head_dim**-0.5 for dims in stages]
  return scales[0] if len(set(scales)) == 1 else scales


def _complete_position(scheme: str | dict) -> dict[str, Any]:
  """Return a scheme of positions with the arguments that change its function."""
  arguments = complete_spec(scheme)
  for name, scaling in _ROPE_SCALINGS.items():
    if arguments.get(name):
      arguments = arguments | {name: slots.defaults(scaling) | arguments[name]}
  return {name: value for name, value in arguments.items() if name != "stddev" and value}


def _canonical_core(core: Any) -> Any:
  """Return a core with the arguments that change its function; "auto" for plain attention."""
  if _core_names(core) <= set(EXACT_CORES):
    return "auto"
  arguments = {"name": core} if isinstance(core, str) else core
  if not isinstance(arguments, dict) or "name" not in arguments:
    return core
  if arguments["name"] in slots.names(cores):
    module = slots.module(arguments["name"], cores)
    arguments = slots.defaults(module.make) | arguments
  return {
    name: value for name, value in arguments.items() if name not in _TRAINING_ARGUMENTS_OF_CORES
  }


def _core_names(core: Any) -> set[str]:
  """Return the names of all cores in a field of a design."""
  if isinstance(core, str):
    return {core}
  if "name" in core:
    return {core["name"]}
  alternatives = core.values() if isinstance(core, dict) else core
  return set().union(*map(_core_names, alternatives))


def _sort_biases(biases: tuple[str, ...]) -> tuple[str, ...]:
  return tuple(name for name in _BIASES if name in biases)


def is_same(first: Any, second: Any) -> bool:
  """Return whether two values of attributes are equal, floats up to rounding."""
  if isinstance(first, dict) and isinstance(second, dict):
    return first.keys() == second.keys() and all(is_same(first[k], second[k]) for k in first)
  if isinstance(first, list | tuple) and isinstance(second, list | tuple):
    return len(first) == len(second) and all(map(is_same, first, second))
  if isinstance(first, float) and isinstance(second, float | int):
    return math.isclose(first, second, rel_tol=1e-6)
  return first == second
