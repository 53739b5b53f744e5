"""Build the abstract model and the objective of a config: shapes and axes, without arrays."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

import t5x_like.models
from t5x_like import slots
from t5x_like.objectives import OBJECTIVES, check_declarations
from t5x_like.tunings import TUNINGS, BaseTuning, lora

_ADAPTER_FOLD = 1  # folded into the key of the model's parameters for the key of its adapters


def model_name(model_class: type) -> str:
  """Return the name of a class in `config.model`."""
  module = model_class.__module__
  if model_class.__qualname__ == "Model":
    return module.rpartition(".")[2]
  return f"{module}:{model_class.__qualname__}"


def variant_fields(variant) -> dict[str, Any]:
  """Return the fields of a model's variant as a saved config holds them: dicts and lists."""
  return slots.to_json(dataclasses.asdict(variant))


def resolve_model(slot: str, values: ConfigDict, platform: str | None) -> ConfigDict:
  """Check a `config.model` and return it with all defaults.

  Args:
    slot: its key in the config, `model` or `teacher.model`.
    values: the values from the recipe and flags.
    platform: the platform for which `auto` chooses dtype and layers; None is this process's.
  Raises:
    UserError: a key or a value is wrong.
  """
  model_class = slots.find(f"config.{slot}.name", values.get("name"), t5x_like.models, "Model")
  name, arguments = slots.name_and_arguments(f"config.{slot}", values)
  filled = slots.fill(f"config.{slot}", arguments, model_class, supplied=("rngs",))
  for key, value in filled.items():
    if dataclasses.is_dataclass(value):
      filled[key] = dataclasses.asdict(value)  # a saved config has plain values
  resolved = ConfigDict({"name": name} | filled)
  with resolved.ignore_type():
    if "variant" in resolved:
      _resolve_variant(f"config.{slot}", model_class, values, resolved)
  on_cpu = (platform or jax.default_backend()) == "cpu"
  defaults = {"dtype": "bfloat16", "layers": "scan"}
  if on_cpu:
    defaults = {"dtype": "float32", "layers": "loop"}
  for key, default in defaults.items():
    if key in resolved and values.get(key, "auto") == "auto":
      resolved[key] = default
  return resolved


def _resolve_variant(where: str, model_class: type, values: ConfigDict, resolved: ConfigDict):
  """Check the changes to a variant's design, and fill in the size of its vocabulary, in place."""
  resolved.variant = values.variant  # a name, or the fields of a variant, as the recipe has it
  variant = slots.resolve_variant(model_class, values)
  if "design" in resolved:
    slots.replace_fields(f"{where}.design", variant.design, resolved.design)
    resolved.design = ConfigDict(slots.to_json(resolved.design))
  if "vocab_size" in resolved and resolved.vocab_size is None:
    resolved.vocab_size = variant.vocab_size


def build_model(config: ConfigDict) -> nnx.Module:
  """Return the abstract model of a resolved config; see `model_constructor`."""
  return jax.eval_shape(model_constructor(config), jax.random.key(0))


def model_constructor(config: ConfigDict) -> Callable[[jax.Array], nnx.Module]:
  """Return the function that makes the model of a resolved config from a random key.

  The model has adapters where the tuning needs them, and a reference model and further heads where
  the objective does.
  """
  tuning = build_tuning(config.tuning)
  objective = build_objective(config)

  def make_bare_model(key, slot="model", values=config.model):
    return slots.make(f"config.{slot}", values, t5x_like.models, "Model", rngs=nnx.Rngs(params=key))

  def make_model(key):
    adapter_key = jax.random.fold_in(key, _ADAPTER_FOLD)
    model = tuning.adapt(make_bare_model(key), adapter_key, config.model)
    if objective.teacher:
      model.reference = make_bare_model(key, "teacher.model", config.teacher.model)
    elif objective.needs_reference and not lora.trains_adapters_only(model, tuning):
      model.reference = make_bare_model(key)
    return objective.extend_model(model, key)

  return make_model


def build_objective(config: ConfigDict) -> Callable:
  """Return the objective; raise UserError if it lacks a declaration."""
  objective = OBJECTIVES.make("config.objective", config.objective)
  check_declarations(config.objective.name, objective)
  return objective


def build_tuning(values: ConfigDict) -> BaseTuning:
  """Return the tuning, which selects the trained parameters and may add adapters."""
  return TUNINGS.make("config.tuning", values)
