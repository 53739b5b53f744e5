"""Open a trained model with a recipe, or with changes to its config, to evaluate and predict."""

import json
from collections.abc import Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like.data import open_values
from t5x_like.errors import UserError
from t5x_like.parallel.rules import Rules
from t5x_like.recipes import load as load_recipe
from t5x_like.saved_model import SavedModel, open_saved_model
from t5x_like.saved_model.workdir import IDENTITY_FILE
from t5x_like.training import class_count, imported_weights, warm_start
from t5x_like.training import workdir as workdirs
from t5x_like.training.resolve import adopt_imported_model, resolve
from t5x_like.vocabularies import Vocabulary


def open_with_recipe(
  workdir: str, recipe: str | None, overrides: Sequence[str], rows: bool = False
) -> SavedModel:
  """Open a trained model with a recipe or with changes to its config, without its parameters.

  Args:
    workdir: see `open_saved_model`.
    recipe: a recipe as for training, or None for the run's saved config.
    overrides: `KEY=VALUE` of each `--config.KEY=VALUE`.
    rows: whether the caller chooses the number of rows, so that the config's batch size is ignored.
  Raises:
    UserError: there is no model, a published model is opened without a recipe, or the config has
      another model.
  """
  saved = open_saved_model(workdir)
  if rows:
    # One row for each device fits any mesh.
    overrides = [*overrides, f"batch_size={jax.device_count()}", "accumulation_steps=1"]
  config = resolve(_config_for(saved, recipe, overrides))
  rules = Rules.from_config(config)
  rules.check_batch(config.batch_size, config.accumulation_steps)
  reopened = saved.with_config(config, rules)
  _check_model(reopened)
  if saved.is_published:
    imported_weights.check_parameters(saved.model, reopened.model, workdir, recipe)
  return reopened


def _config_for(saved: SavedModel, recipe: str | None, overrides: Sequence[str]) -> ConfigDict:
  """Return the config to use a trained model with, before it is resolved."""
  if recipe is not None:
    config, _ = open_values.complete(load_recipe(recipe, overrides))
    if saved.is_published:
      return warm_start.with_model_keys(config, saved.identity["model"], saved.path)
    return _with_trained_parts(config, saved.identity, saved.path)
  if saved.is_published:
    raise UserError(
      f"{saved.path}: a published model without a config and data; add --config=RECIPE "
      "of its family and --config.task.store=DIR, or ask it --questions=FILE"
    )
  return config_lib.restore(saved.identity, overrides, f"{saved.path}/{IDENTITY_FILE}")


def _with_trained_parts(config: ConfigDict, identity: dict[str, Any], workdir: str) -> ConfigDict:
  """Return a recipe's config with the imported model, classes, special ids and tuning of a run."""
  model = identity["model"]
  config = adopt_imported_model(config, workdir)
  config = class_count.adopt_class_count(config, model)
  if "tokens" in model:
    with config.model.unlocked(), config.model.ignore_type():
      config.model.tokens = model["tokens"]  # from the vocabulary
  config.tuning = ConfigDict(identity["tuning"])  # the adapters
  return config


def _check_model(saved: SavedModel) -> None:
  """Refuse a config whose model is not the trained one, and name the changed keys."""
  model = saved.config.model.to_dict()
  trained_model = dict(saved.identity["model"])
  if saved.is_published:  # its config has no keys of training
    model = {key: model.get(key) for key in trained_model}
  # Dropout does not affect a trained model.
  model.pop("dropout", None)
  trained_model.pop("dropout", None)
  workdirs.check_identity({"model": trained_model}, {"model": model}, saved.path)


def check_vocabulary(saved: SavedModel, vocabulary: Vocabulary) -> None:
  """Check that data have the vocabulary of training; raise UserError naming classes or keys."""
  _check_classes(saved, vocabulary)
  trained_fingerprints = {"vocabulary": saved.vocabulary_fingerprint}
  data_fingerprints = {"vocabulary": vocabulary.fingerprint}
  workdirs.check_identity(
    {"fingerprints": trained_fingerprints}, {"fingerprints": data_fingerprints}, saved.path
  )


def _check_classes(saved: SavedModel, vocabulary: Vocabulary) -> None:
  """Refuse data whose classes are not exactly those that the model learned, in the same order."""
  data_classes = getattr(vocabulary, "names", ())
  if not data_classes or vocabulary.fingerprint == saved.vocabulary_fingerprint:
    return
  model_classes = getattr(saved.vocabulary, "names", ())
  if not model_classes:
    return
  foreign = [name for name in data_classes if name not in model_classes]
  if foreign:
    raise UserError(
      f"config.task: found data of the class {foreign[0]!r}, but {saved.path} learned "
      f"{', '.join(model_classes[:8])}; take data of these, under their names"
    )
  raise UserError(
    f"config.task: found data of {len(data_classes)} classes, {', '.join(data_classes[:8])}, but "
    f"{saved.path} learned {len(model_classes)}; name all of them, "
    f"--config.task.classes='{json.dumps(model_classes)}'"
  )
