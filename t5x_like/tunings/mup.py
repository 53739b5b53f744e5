"""muP: hyperparameters found on a narrow model hold for wide ones."""

import dataclasses
import json
from typing import Any

import jax
import optax
from flax import nnx
from ml_collections import ConfigDict

import t5x_like.models
from t5x_like import slots
from t5x_like.architectures.heads.lm import hidden_scale
from t5x_like.architectures.widths import resize_variant, stack_dims
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.slots import PositiveInt
from t5x_like.tunings import BaseTuning, Named

_BASE = "config.tuning.base"
_WIDTHS = ("embed", "heads", "kv_heads", "mlp")  # logical axes that grow with the model
# Optimizers whose updates do not grow with the gradients.
_KNOWN_OPTIMIZERS = ("adamw", "lion", "ademamix", "adafactor")
_TABLE = ("vocab", "embed")  # the axes of a token table
_OUTPUT = ("embed", "vocab")  # the axes of an output projection


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning(BaseTuning):
  """Train all parameters in the maximal update parametrization.

  It follows Yang et al. 2021 (arXiv:2203.03466, table 8). At the width of the base model, nothing
  differs from standard training. With m times the fan-in, a matrix between widths starts with
  1/sqrt(m) of the base's standard deviation and has 1/m of the rate. Tables, positions, norms and
  biases keep the base's deviation and the rate. The logits over a vocabulary are divided by m, and
  the logits of attention by head width instead of its square root. Any other head starts with 1/m
  of the deviation and has 1/m of the rate, which is the same as logits divided by m. Decay of
  weights is as strong at all widths.

  Attributes:
    base: the model whose hyperparameters are used: a width, with heads and feed-forward width in
      proportion; the name of a variant; or changed sizes, such as {"embed": 128, "heads": 2,
      "kv_heads": 2, "mlp": 512}.
    relative: whether updates are in proportion to a parameter's size, as Adafactor's may be. It is
      computed from `config.optimizer`; None for an optimizer whose rates muP does not know.
  """

  base: PositiveInt | str | dict
  relative: bool | None = None

  def resolve(self, config):
    return _resolve_config(config, self.base)

  def adapt(self, model, key, values):
    return _adapt_model(model, values, self.base)

  def scale_rates(self, optimizer, named):
    return _scale_rates(optimizer, named, self.relative)


def _resolve_config(config: ConfigDict, base: int | str | dict) -> ConfigDict:
  """Return the config with muP's factors in `model.design`.

  Raises:
    UserError: the design has other factors, or the run starts from weights that were trained
      without them.
  """
  optimizer = config.optimizer
  model = config.model
  if "generator_size" in model and model.generator_size is None:
    raise UserError(
      "config.model.generator_size: found None, expected a fraction that holds for "
      "all widths; set it"
    )
  factors = _factors(model, base)
  for key, value in factors.items():
    recipe_value = model.design.get(key)
    if recipe_value is not None and recipe_value != value:
      raise UserError(
        f"config.model.design.{key}: found {recipe_value}, but muP sets {value} here; leave it out"
      )
    if recipe_value is None and config.init.get("weights"):
      raise UserError(
        f"config.tuning.name: found 'mup', but {config.init.workdir} was trained without it; set "
        "--config.tuning.name=all"
      )
  design = model.get("design")
  if factors:
    design = ConfigDict(model.get("design", ConfigDict()).to_dict() | factors)
  relative = None
  if optimizer.name in _KNOWN_OPTIMIZERS:
    relative = bool(optimizer.get("multiply_by_parameter_scale"))
  with config.unlocked(), model.unlocked(), model.ignore_type():
    model.design = design
    config.tuning.relative = relative
  return config


def _find_variants(values: ConfigDict, base: int | str | dict) -> tuple[type, Any, Any]:
  """Return (the family's class, the variant of `config.model`, the variant of the base model)."""
  family = slots.find("config.model.name", values.name, t5x_like.models, "Model")
  variant = slots.resolve_variant(family, values)
  variants = getattr(family, "VARIANTS", {})
  return family, variant, resize_variant(_BASE, variants, variant, base)


def _factors(values: ConfigDict, base: int | str | dict) -> dict[str, float]:
  """Return the fields of a design that muP sets, by name; none at the base's sizes."""
  _, variant, narrow = _find_variants(values, base)
  if stack_dims(variant) is None or "design" not in values:
    return {}
  changes = values.design.to_dict()
  for computed_key in ("attention_scale", "logits_scale"):
    changes.pop(computed_key, None)
  design = slots.replace_fields("config.model.design", variant.design, changes)
  factors = {}
  H = variant.dims.head_dim
  base_H = narrow.dims.head_dim
  if H != base_H and design.attention_scale != "cosine":
    base_scale = base_H**-0.5 if design.attention_scale is None else design.attention_scale
    factors["attention_scale"] = base_scale * base_H / H
  D = _token_width(variant)
  base_D = _token_width(narrow)
  if D != base_D and "vocab_size" in values:
    table_growth = 1.0
    if design.tied and design.embed_scale:  # see `_multipliers`
      table_growth = (D / base_D) ** 0.5
    factors["logits_scale"] = hidden_scale(design, base_D) * base_D / D * table_growth
  return factors


def _token_width(variant: Any) -> int:
  """Return the width of a variant's token vectors."""
  return getattr(variant, "embed", None) or variant.dims.embed


def _base_params(values: ConfigDict, base: int | str | dict) -> tuple[dict[str, Any], Any]:
  """Return (the abstract parameters of the base model by name, its design or None)."""
  family, variant, narrow = _find_variants(values, base)
  _, arguments = slots.name_and_arguments("config.model", values)
  for key in _factors(values, base):
    del arguments["design"][key]
  if not stack_dims(variant):
    arguments["variant"] = base
  elif narrow is variant:
    arguments["variant"] = values.variant
  else:
    arguments["variant"] = json.loads(json.dumps(dataclasses.asdict(narrow)))
  model_values = {"name": values.name} | arguments
  model = jax.eval_shape(
    lambda: slots.make("config.model", model_values, t5x_like.models, "Model", rngs=nnx.Rngs(0))
  )
  design = getattr(getattr(model, "variant", None), "design", None)
  return params.named_params(model), design


def _adapt_model(model, values: ConfigDict, base: int | str | dict):
  """Return a new model with muP's initial values, and the multipliers as parameter metadata."""
  base_params, design = _base_params(values, base)
  scaled_table = bool(getattr(design, "embed_scale", False))
  divided = "logits_scale" in _factors(values, base)

  def parameter(path, p):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if name not in base_params:
      raise UserError(
        f"{_BASE}: found {base!r}, which has no parameter {name}; choose a base of the same design"
      )
    growth, rate = _multipliers(p, base_params[name], divided, scaled_table)
    value = p.get_value()
    base_stddev = getattr(base_params[name], "stddev", None)
    if not base_stddev:
      return p.replace(value, stddev=base_stddev, growth=1.0, rate=rate)
    stddev = base_stddev * growth
    if stddev != p.stddev:
      value = value * (stddev / p.stddev)
    return p.replace(value, stddev=stddev, growth=growth, rate=rate)

  return jax.tree_util.tree_map_with_path(parameter, model, is_leaf=params.is_param)


def _multipliers(p, base, divided: bool, scaled_table: bool) -> tuple[float, float]:
  """Return (initial standard deviation, rate) of a parameter, as multiples of the base's.

  Args:
    divided: whether logits over the vocabulary are divided in the forward pass.
    scaled_table: whether token vectors are multiplied by sqrt(D), which their table compensates.
  """
  row_growth = _growth(p, base, -2)
  column_growth = _growth(p, base, -1)
  if p.axes[-2:] == _TABLE and scaled_table:
    factor = (column_growth or 1.0) ** -0.5
    return factor, factor
  if row_growth is None or (p.axes[-2:] == _OUTPUT and divided):
    return 1.0, 1.0
  exponent = -1.0 if column_growth is None else -0.5
  return row_growth**exponent, 1.0 / row_growth


def _growth(p, base, axis: int) -> float | None:
  """Return how much longer an axis is than the base's, None if it does not grow with the model."""
  if len(p.axes) < -axis or p.axes[axis] in ("layers", "expert"):
    return None
  ratio = p.shape[axis] / base.shape[axis]
  if ratio == 1.0 and p.axes[axis] not in _WIDTHS:
    return None
  return ratio


def _scale_rates(
  optimizer, named: dict[str, Any], relative: bool | None
) -> optax.GradientTransformation:
  """Return the optimizer with muP's rates; raise UserError if its rule is not known."""
  if relative is None:
    raise UserError(
      f"config.optimizer.name: expected one of {', '.join(_KNOWN_OPTIMIZERS)}, whose rates muP "
      "knows"
    )
  scales = {}
  for name, p in named.items():
    growth = getattr(p, "growth", 1.0) if relative else 1.0
    scales[name] = getattr(p, "rate", 1.0) / growth

  def update(grads: Named, state, arrays: Named, **extra):
    # Only weight decay reads the weights: the division here and the update's scale cancel for it.
    if not relative:
      arrays = {name: x / scales[name] for name, x in arrays.items()}
    updates, state = optimizer.update(grads, state, arrays, **extra)
    scaled_updates = {name: u * scales[name] for name, u in updates.items()}
    return scaled_updates, state

  return optax.GradientTransformationExtraArgs(optimizer.init, update)
