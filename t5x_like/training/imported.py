"""Workdirs made from published weights: the model and the vocabulary are theirs, the recipe decides the rest."""

import dataclasses
import json
from typing import Any

from ml_collections import ConfigDict

import t5x_like.models
from t5x_like import data, slots, trust
from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError, one_line
from t5x_like.files.places import place
from t5x_like.training import workdir as workdirs

FILE = "imported.json"
_OWN = (
  "name",
  "variant",
  "vocab_size",
  "tokens",
  "head",
  "labels",
  "queries",
)  # keys of config.model that weights decide
_TRAINING = ("core", "init_stddev", "residual_init", "embed_init", "mlp_dropout")  # cells of a design that they do not


def adopt(config: ConfigDict, workdir: str) -> ConfigDict:
  """The config with the model of the workdir's weights, if these were imported."""
  found = _read(workdir)
  return config if found is None else _with(config, found["model"], workdir)


def check_vocabulary(workdir, vocabulary) -> None:
  """Refuses data that were made with another vocabulary than that of the workdir's imported weights."""
  found = _read(workdir)
  if found is not None and found["vocabulary"] != vocabulary.fingerprint:
    raise UserError(
      f"{workdir}: holds imported weights with their vocabulary, but the data were made with another; prepare them "
      f"with --vocabulary={workdir}/vocabulary"
    )


def _read(workdir) -> dict[str, Any] | None:
  try:
    content = (place(workdir) / FILE).read()
    if content is None:
      return None
    found = json.loads(content)
    trust.was_read(f"{workdir}/{FILE}", found)
    return {"model": dict(found["model"]), "vocabulary": str(found["vocabulary"])}
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise UserError(f"{workdir}/{FILE}: damaged ({one_line(error)}); convert the weights into a new workdir") from None


def model_of(config: ConfigDict, model_class: type, variant: Variant, where: str) -> ConfigDict:
  """A recipe's config with the architecture that weights have.

  Args:
    config: the recipe's.
    model_class, variant: of the weights; where: what holds them, for messages.

  Raises:
    UserError: the recipe is for another family.
  """
  ours = slots.find("config.model.name", config.model.get("name"), t5x_like.models, "Model")
  if ours is not model_class:
    raise UserError(
      f"config.model.name: found {config.model.name!r}, but {where} holds "
      f"{model_class.__module__.rpartition('.')[2]!r}; use a recipe of that family"
    )
  found = json.loads(json.dumps(dataclasses.asdict(variant)))
  text = hasattr(variant, "vocab_size")
  of_images = {key: found[key] for key in ("head", "labels", "queries") if key in found}
  more = {"vocab_size": variant.vocab_size, "tokens": {}} if text else of_images
  return _with(config, {"variant": found} | more, where)


def _with(config: ConfigDict, model: dict[str, Any], where: str) -> ConfigDict:
  made = ConfigDict(config.to_dict())
  own = {key: value for key, value in model.items() if key in _OWN}
  if own.get("name", made.model.get("name")) != made.model.get("name"):
    raise UserError(
      f"config.model.name: found {made.model.get('name')!r}, but {where} holds {own['name']!r}; use a recipe of that "
      "family"
    )
  design = made.model.to_dict().get("design", {})
  design = {cell: value for cell, value in design.items() if cell in _TRAINING}
  with made.model.unlocked(), made.model.ignore_type():
    made.model = ConfigDict(made.model.to_dict() | own | {"design": design})
  return made


def record(workdir: str, config: ConfigDict, vocabulary) -> dict[str, Any]:
  """The identity of a run that has weights and a vocabulary, but no data yet; written to the workdir.

  Args:
    config: resolved, with the model of the weights.
  """
  prints = {"data_edition": data.EDITION, "vocabulary": vocabulary.fingerprint}
  identity = config.to_dict() | {"fingerprints": prints, "features": {}}
  model = {key: value for key, value in identity["model"].items() if key in _OWN}
  workdirs.write(workdir, FILE, {"model": model, "vocabulary": vocabulary.fingerprint})
  vocabulary.save(f"{workdir}/vocabulary")
  return identity
