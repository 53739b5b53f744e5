"""Workdirs made from published weights: they fix the model and the vocabulary, the recipe decides the rest."""

import json
from typing import Any

from ml_collections import ConfigDict

from t5x_like import trust
from t5x_like.errors import UserError, one_line
from t5x_like.files.places import place

FILE = "imported.json"
OWN = ("name", "variant", "vocab_size", "tokens", "head", "labels", "queries")  # keys of config.model fixed by weights
_TRAINING = ("core", "init_stddev", "residual_init", "embed_init", "mlp_dropout")  # cells of a design that are not


def adopt(config: ConfigDict, workdir: str) -> ConfigDict:
  """Return the config with the model of the workdir's weights, if these were imported."""
  found = _read(workdir)
  return config if found is None else with_model(config, found["model"], workdir)


def check_vocabulary(workdir, vocabulary) -> None:
  """Refuse data made with another vocabulary than the workdir's imported weights, if any; raise UserError."""
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


def with_model(config: ConfigDict, model: dict[str, Any], where: str) -> ConfigDict:
  """Return a recipe's config with the `OWN` keys of another `config.model`; `where` holds its weights.

  Raises:
    UserError: the recipe is for another family.
  """
  made = ConfigDict(config.to_dict())
  own = {key: value for key, value in model.items() if key in OWN}
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
