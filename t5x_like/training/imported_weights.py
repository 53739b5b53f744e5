"""Write a workdir with weights that were trained elsewhere, for a run that continues from them."""

from typing import Any

from flax import nnx
from ml_collections import ConfigDict

from t5x_like import data, slots
from t5x_like.abstract_model import model_name, variant_fields
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.runtime import process
from t5x_like.training import warm_start
from t5x_like.training import workdir as workdirs
from t5x_like.vocabularies import Vocabulary


def with_architecture(config: ConfigDict, model_class: type, variant, where: str) -> ConfigDict:
  """Return a recipe's config with the class and variant of a model.

  Args:
    where: the location of the model's weights, for error messages.
  Raises:
    UserError: the recipe is for another family.
  """
  fields = variant_fields(variant)
  accepted_keys = slots.argument_names(model_class)
  model_keys = {"name": model_name(model_class), "variant": fields}
  for key in ("head", "labels", "queries"):
    # A decoder's variant may have a head that its class does not accept.
    if key in fields and key in accepted_keys:
      model_keys[key] = fields[key]
  if hasattr(variant, "vocab_size"):
    # The variant's fields hold the special ids, so the recipe's changes to them are dropped.
    model_keys |= {"vocab_size": variant.vocab_size, "tokens": {}}
  return warm_start.with_model_keys(config, model_keys, where)


def load_task_vocabulary(config: ConfigDict) -> Vocabulary:
  """Return the vocabulary of a recipe's data, which must exist."""
  arguments = config.task.to_dict()
  return process.build_task(
    "task", arguments.pop("name", None), config.train_split, arguments
  ).vocabulary


def check_parameters(
  published_model: nnx.Module, recipe_model: nnx.Module, where: str, recipe: str
) -> None:
  """Refuse a recipe whose model has parameters of other shapes, such as another head."""
  published_shapes = _parameter_shapes(published_model)
  recipe_shapes = _parameter_shapes(recipe_model)
  for name in sorted({*published_shapes, *recipe_shapes}):
    if published_shapes.get(name) != recipe_shapes.get(name):
      raise UserError(
        f"{recipe}: parameter {name} has shape {recipe_shapes.get(name)}, expected "
        f"{published_shapes.get(name)} as in {where}"
      )


def _parameter_shapes(model: nnx.Module) -> dict[str, tuple[int, ...]]:
  return {name: parameter.shape for name, parameter in params.named_params(model).items()}


def write_imported_workdir(
  workdir: str, config: ConfigDict, vocabulary: Vocabulary, step: int, tree: dict[str, Any]
) -> None:
  """Write the workdir of a run that has not trained on any data yet.

  Args:
    config: the resolved config, with the special ids of the vocabulary.
    step: the number of steps for which the weights were trained.
    tree: the state as in a checkpoint; without tensors of the optimizer, its state is initialised.
  Raises:
    UserError: the workdir cannot be written.
  """
  fingerprints = {"data_edition": data.EDITION, "vocabulary": vocabulary.fingerprint}
  identity = config.to_dict() | {"fingerprints": fingerprints, "features": {}}
  model = {
    key: value for key, value in identity["model"].items() if key in warm_start.IMPORTED_KEYS
  }
  workdirs.write_json(
    workdir, workdirs.IMPORTED_FILE, {"model": model, "vocabulary": vocabulary.fingerprint}
  )
  vocabulary.save(f"{workdir}/vocabulary")
  with Checkpoints(f"{workdir}/checkpoints") as checkpoints:
    checkpoints.save(step, tree, identity)
    checkpoints.wait()
  workdirs.write_json(workdir, "environment.json", process.describe_environment())
  workdirs.write_identity(workdir, identity)
