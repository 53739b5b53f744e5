"""Open a trained model with a recipe, or with changes to its config, to evaluate and predict."""

import json
from collections.abc import Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like import vocabularies
from t5x_like.abstract_model import build_model
from t5x_like.data import open_values, task_features
from t5x_like.errors import UserError
from t5x_like.parallel.rules import Rules
from t5x_like.recipes import load as load_recipe
from t5x_like.training import class_count, imported_weights, warm_start
from t5x_like.training import workdir as workdirs
from t5x_like.training.resolve import adopt_imported_model, resolve
from t5x_like.training.saved_model import SavedModel, identify_model, vocabulary_directory


def open_with_recipe(
  workdir: str, recipe: str | None, overrides: Sequence[str], rows: bool = False
) -> SavedModel:
  """Open a trained model with a recipe or with changes to its config, without its parameters.

  Args:
    workdir: the run's directory or address; or a Hugging Face directory, or a name of the Hub.
    recipe: a recipe as for training, or None for the run's saved config.
    overrides: `KEY=VALUE` of each `--config.KEY=VALUE`.
    rows: whether the run is used on rows of any number, so that its batch size does not matter.
  Raises:
    UserError: there is no model, it is published and has no saved config, or the config has another
      model.
  """
  identity, published = identify_model(workdir, "--workdir")
  if rows:
    # fits any mesh
    overrides = [*overrides, f"batch_size={jax.device_count()}", "accumulation_steps=1"]
  if recipe is None and published is not None:
    raise UserError(
      f"{workdir}: a published model, without a config or data of its own; add --config=RECIPE of "
      "its family and --config.task.store=DIR, or ask it --questions=FILE"
    )
  if recipe is None:
    config = config_lib.restore(identity, overrides, f"{workdir}/{workdirs.IDENTITY_FILE}")
  else:
    config, _ = open_values.complete(load_recipe(recipe, overrides))
    if published is not None:
      config = warm_start.with_model_keys(config, identity["model"], workdir)
    else:
      config = _with_trained_parts(config, identity, workdir)
  config = resolve(config)
  rules = Rules.from_config(config)
  rules.check_batch(config.batch_size, config.accumulation_steps)
  model, _ = build_model(config)
  run = SavedModel(workdir, config, identity, model, rules, published)
  check_saved_model(run)
  if published is not None:
    imported_weights.check_parameters(published.model, model, workdir, recipe)
  return run


def _with_trained_parts(config: ConfigDict, identity: dict[str, Any], workdir: str) -> ConfigDict:
  """Return a recipe's config with the imported model, classes, special ids and tuning of a run."""
  model = identity["model"]
  config = adopt_imported_model(config, workdirs.read_imported(workdir), workdir)
  config = class_count.adopt_class_count(config, model)
  if "tokens" in model:
    with config.model.unlocked(), config.model.ignore_type():
      config.model.tokens = model["tokens"]  # from the vocabulary
  config.tuning = ConfigDict(identity["tuning"])  # the adapters
  return config


def check_saved_model(run: SavedModel, vocabulary: vocabularies.Vocabulary | None = None) -> None:
  """Check that the config's model, and a vocabulary, are those of training.

  Raises:
    UserError: naming the changed keys.
  """
  model = run.config.model.to_dict()
  trained_model = dict(run.identity["model"])
  if run.published is not None:  # it has no choices of training
    model = {key: model.get(key) for key in trained_model}
  # dropout does not affect a trained model
  model.pop("dropout", None)
  trained_model.pop("dropout", None)
  identity = {"model": model}
  trained_identity = {"model": trained_model}
  if vocabulary is not None:
    _check_classes(run, vocabulary)
    trained_print = workdirs.vocabulary_fingerprint(run.identity)
    identity["fingerprints"] = {"vocabulary": vocabulary.fingerprint}
    trained_identity["fingerprints"] = {"vocabulary": trained_print}
  workdirs.check_identity(trained_identity, identity, run.workdir)


def _check_classes(run: SavedModel, vocabulary: vocabularies.Vocabulary) -> None:
  """Refuse data of other classes than a model learned, of some of them, or in another order.

  Raises:
    UserError: naming the classes.
  """
  data_classes = getattr(vocabulary, "names", ())
  if not data_classes or vocabulary.fingerprint == workdirs.vocabulary_fingerprint(run.identity):
    return
  model_vocabulary = vocabularies.load(vocabulary_directory(run.workdir, run.identity))
  model_classes = getattr(model_vocabulary, "names", ())
  if not model_classes:
    return
  foreign = [name for name in data_classes if name not in model_classes]
  if foreign:
    raise UserError(
      f"config.task: found data of the class {foreign[0]!r}, but {run.workdir} learned "
      f"{', '.join(model_classes[:8])}; take data of these, under their names"
    )
  raise UserError(
    f"config.task: found data of {len(data_classes)} classes, {', '.join(data_classes[:8])}, but "
    f"{run.workdir} learned {len(model_classes)}; name all of them, "
    f"--config.task.classes='{json.dumps(model_classes)}'"
  )


def load_vocabulary(run: SavedModel) -> vocabularies.Vocabulary:
  """Return the run's vocabulary; raise UserError if it is another's or damaged."""
  if run.published is not None:
    return run.published.vocabulary
  vocabulary = vocabularies.load(vocabulary_directory(run.workdir, run.identity))
  check_saved_model(run, vocabulary)
  return vocabulary


def feature_shapes(identity: dict[str, Any]) -> dict[str, Sequence[int]]:
  """Return the shapes of a trained model's features, from its data or else its recipe.

  Raises:
    UserError: imported weights without data, and a task that declares no features.
  """
  if identity["features"]:
    return identity["features"]
  declared = task_features.declare(identity["task"])
  return {name: list(feature.shape) for name, feature in declared.items()}
