"""Resize a recipe to other widths and depths."""

import copy
import dataclasses
import json
import math
import re

from ml_collections import ConfigDict

import t5x_like.models
from t5x_like import abstract_model, slots
from t5x_like.architectures.widths import resize_variant, stack_dims
from t5x_like.errors import UserError
from t5x_like.nn import params

HELP = (
  "64 (a width; heads and feed-forward width in proportion), 64x6 (with 6 layers), or the "
  "name of a variant"
)
_SIZE = re.compile(r"(\d+)(?:x(\d+))?")


def at_size(config: ConfigDict, size: str, flag: str) -> ConfigDict:
  """Return a copy of a recipe's config at another size.

  Args:
    size: see `HELP`.
    flag: the flag that gave it, for messages.

  Raises:
    UserError: the family has no such size.
  """
  config = copy.deepcopy(config)
  family = slots.find("config.model.name", config.model.get("name"), t5x_like.models, "Model")
  variants = getattr(family, "VARIANTS", {})
  numbers = _SIZE.fullmatch(size)
  if numbers is None:
    slots.find(flag, size, variants)
    variant_value = size
  else:
    variant = resize_variant(
      flag, variants, slots.resolve_variant(family, config.model), int(numbers[1])
    )
    if numbers[2] and stack_dims(variant):
      layers = slots.replace_fields(flag, variant.dims, {"layers": int(numbers[2])})
      variant = dataclasses.replace(variant, dims=layers)
    variant_value = ConfigDict(json.loads(json.dumps(dataclasses.asdict(variant))))
  with config.model.unlocked(), config.model.ignore_type():
    config.model.variant = variant_value
  return config


def parse_list(text: str, flag: str, entry_type: type, min_count: int) -> list:
  """Parse a flag's list, such as `64,128`.

  Raises:
    UserError: an entry is no positive number, where numbers are expected; the list is too short or
      repeats an entry.
  """
  try:
    entries = [entry_type(entry) for entry in text.split(",") if entry]
    is_positive = entry_type is str or all(entry > 0 and math.isfinite(entry) for entry in entries)
  except ValueError:
    entries = []
    is_positive = False
  if not is_positive or len(entries) < min_count or len(set(entries)) < len(entries):
    numbers = "sizes" if entry_type is str else "positive numbers"
    raise UserError(
      f"{flag}={text}: expected {min_count} or more different {numbers}, separated by commas"
    )
  return entries


def parameters(config: ConfigDict) -> int:
  """Count a model's parameters outside token tables and outputs (Kaplan et al. 2020, N)."""
  model = abstract_model.build_model(config)
  shapes = [p.shape for p in params.named_params(model).values() if "vocab" not in p.axes]
  return sum(math.prod(shape) for shape in shapes)
