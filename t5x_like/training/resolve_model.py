"""Resolve `config.model`: check it against its class, and fill in every default."""

import dataclasses

import jax
from ml_collections import ConfigDict

import t5x_like.models
from t5x_like import slots


def resolve_model(slot: str, values: ConfigDict, platform: str | None) -> ConfigDict:
  """Return a `config.model`, checked, with all defaults."""
  model_class = slots.find(f"config.{slot}.name", values.get("name"), t5x_like.models, "Model")
  name, arguments = slots.name_and_arguments(f"config.{slot}", values)
  resolved = ConfigDict(
    {"name": name} | slots.fill(f"config.{slot}", arguments, model_class, supplied=("rngs",))
  )
  with resolved.ignore_type():
    for key in [key for key, value in resolved.items() if dataclasses.is_dataclass(value)]:
      resolved[key] = dataclasses.asdict(resolved[key])  # checked; a saved config has plain values
    if "variant" in resolved:
      resolved.variant = values.variant  # as given: all of its fields may be
      variant = slots.resolve_variant(model_class, values)
      if "design" in resolved:
        slots.replace_fields("config.model.design", variant.design, resolved.design)
        resolved.design = ConfigDict(slots.to_json(resolved.design))
      if "vocab_size" in resolved and resolved.vocab_size is None:
        resolved.vocab_size = variant.vocab_size
  on_cpu = (platform or jax.default_backend()) == "cpu"
  suited = (
    {"dtype": "float32", "layers": "loop"} if on_cpu else {"dtype": "bfloat16", "layers": "scan"}
  )
  for key, value in suited.items():
    if key in resolved and values.get(key, "auto") == "auto":
      resolved[key] = value
  return resolved
