"""Start a run from imported weights or other runs: take their model, weights and vocabulary.

Imported weights in the workdir fix the model and the vocabulary; the recipe decides the rest.

`config.init` and `config.teacher` name the workdir of a run, a Hugging Face directory or a model on
the Hub. The run of `init` may have another task and another head. It provides the architecture, the
vocabulary and every parameter that both models have. The recipe decides the head, dropout, dtype,
remat and similar settings (`_RECIPE_KEYS`). Only heads and adapters are new; adapters of the other
run are merged into its weights. With `init.layers`, only the first layers of each stack are loaded.

A longer table of text positions repeats the other run's (Beltagy et al. 2020, section 5), a shorter
one takes its first rows; tables of image positions are interpolated. A detector that starts from an
image encoder uses it as its backbone and keeps its own architecture otherwise.

A teacher may be of any family. Its parameters are part of the state, like DPO's reference: sharded
over the same mesh, saved, restored and never changed. A resumed run reads them from its own
checkpoint.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

import t5x_like.models
from t5x_like import config as config_lib
from t5x_like import slots, vocabularies
from t5x_like.abstract_model import resolve_model, variant_fields
from t5x_like.architectures.conv_encoder import ConvEncoder
from t5x_like.architectures.image_encoder import ImageEncoder
from t5x_like.data.task import TASKS
from t5x_like.errors import UserError, one_line
from t5x_like.nn import params
from t5x_like.nn.linear import ADAPTERS
from t5x_like.runtime import process
from t5x_like.saved_model import SavedModel, find_saved_model, open_saved_model
from t5x_like.saved_model.model import merge_for_export
from t5x_like.training import workdir as workdirs
from t5x_like.training.state import REFERENCE, TrainState
from t5x_like.vocabularies import Vocabulary

RANDOM = "random"  # `config.teacher.workdir` of a teacher with random weights
_INIT = "config.init.workdir"
_TEACHER = "config.teacher.workdir"
# Keys of config.model that imported weights fix.
IMPORTED_KEYS = ("name", "variant", "vocab_size", "tokens", "head", "labels", "queries")
# Keys of config.model.design that the recipe decides, even with imported weights.
_RECIPE_DESIGN_KEYS = """
  core quantization init_stddev kernel_scales residual_init embed_init mlp_dropout shared_dropout
  no_dropout attention_dropout
""".split()
# Prefixes of parameters that the other run may lack, or have in another shape.
_NEW_PREFIXES = ("head/", "scores/", "classes/", "value/")
_BACKBONE = "backbone/"
_BACKBONE_ENCODER = "backbone/encoder/"  # another run's image encoder
_DROPOUT_KEYS = ("dropout", "drop_path")  # set to 0 in a teacher
# Keys of config.model that a run with `init` keeps; the others come from the run it starts from.
_RECIPE_KEYS = """
  head scores labels dropout drop_path drop_path_rates resolution window pretrained_windows dtype
  layers remat
""".split()


def with_model_keys(config: ConfigDict, model: dict[str, Any], where: str) -> ConfigDict:
  """Return a recipe's config with the `IMPORTED_KEYS` of the model of imported weights.

  Args:
    model: the `config.model` of the weights.
    where: the path of the weights, for error messages.
  Raises:
    UserError: the recipe is for another family.
  """
  completed = ConfigDict(config.to_dict())
  imported = {key: value for key, value in model.items() if key in IMPORTED_KEYS}
  recipe_name = completed.model.get("name")
  if imported.get("name", recipe_name) != recipe_name:
    raise UserError(
      f"config.model.name: found {recipe_name!r}, but {where} holds {imported['name']!r}; use a "
      f"recipe of the family {imported['name']!r}"
    )
  design = completed.model.to_dict().get("design", {})
  design = {key: value for key, value in design.items() if key in _RECIPE_DESIGN_KEYS}
  with completed.model.unlocked(), completed.model.ignore_type():
    completed.model = ConfigDict(completed.model.to_dict() | imported | {"design": design})
  return completed


def inherit_model(config: ConfigDict) -> ConfigDict:
  """Return a copy of a config with the architecture and vocabulary of the run of `config.init`.

  Raises:
    UserError: there is no such run, or the config names another vocabulary.
  """
  inherited = ConfigDict(config.to_dict())
  values = slots.fill("config.init", config.init, config_lib.Init)
  if not values["inherit"]:
    return inherited
  saved = open_saved_model(values["workdir"], flag=_INIT)
  saved_config = saved.identity["model"]
  with inherited.unlocked(), inherited.ignore_type():
    inherited.init = ConfigDict(values | {"inherit": False})
    if _becomes_backbone(saved_config, config.model):
      inherited.model.backbone = ConfigDict(_make_backbone_spec(saved, config))
      return inherited
    inherited.model = ConfigDict(_merge_models(saved_config, config.model.to_dict()))
    _lengthen_positions(inherited)
    if inherited.task.get("store") is not None or "vocab_size" not in inherited.model:
      # A store brings its own vocabulary, which `checks` compares; image classes may differ.
      return inherited
    for task in _tasks_without_store(inherited):
      if task.get("vocabulary") is None:
        task["vocabulary"] = saved.vocabulary_directory
      else:
        vocabulary = vocabularies.load(task["vocabulary"])
        _check_vocabulary(saved, vocabulary, task["vocabulary"])
  return inherited


def _check_vocabulary(saved: SavedModel, vocabulary: Vocabulary, name: str) -> None:
  """Refuse a vocabulary that differs from a saved model's.

  Args:
    name: the vocabulary's name for error messages.
  """
  if vocabulary.fingerprint != saved.vocabulary_fingerprint:
    raise UserError(
      f"config.task.vocabulary: {name} is not the vocabulary that {saved.path} was trained with; "
      f"leave the key out, and {saved.vocabulary_directory} is used"
    )


def _merge_models(saved: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
  """Return the `config.model` of a run that starts from another.

  Args:
    saved: the other run's `config.model`.
    recipe: this run's `config.model`; its `_RECIPE_KEYS` and changes to the design are kept.
  """
  recipe_keys = {key: value for key, value in recipe.items() if key in _RECIPE_KEYS}
  model = {key: value for key, value in saved.items() if key not in _RECIPE_KEYS}
  model_class = slots.find("config.model.name", model["name"], t5x_like.models, "Model")
  has_other_head = recipe_keys.get("head") not in (None, "discriminator")
  if hasattr(model_class, "FINE_TUNING_FAMILY") and has_other_head:
    model = {key: value for key, value in model.items() if not key.startswith("generator_")}
    model["name"] = model_class.FINE_TUNING_FAMILY
  elif recipe_keys.get("head") and hasattr(slots.module(model["name"], t5x_like.models), "Reader"):
    model["name"] = f"t5x_like.models.{model['name']}:Reader"
  model["design"] = dict(model.get("design") or {}) | (recipe.get("design") or {})
  return model | recipe_keys


def _becomes_backbone(saved: Mapping[str, Any], recipe: Mapping[str, Any]) -> bool:
  """Return whether a model of another family becomes the backbone of the recipe's model."""
  model_class = slots.find("config.model.name", recipe.get("name"), t5x_like.models, "Model")
  return saved["name"] != recipe["name"] and _takes_backbone(model_class)


def _takes_backbone(model: Any) -> bool:
  """Return whether a model, or class, may start from an image encoder as its backbone."""
  return getattr(model, "TAKES_BACKBONE", False)


def _make_backbone_spec(saved: SavedModel, config: ConfigDict) -> dict[str, Any]:
  """Return `config.model.backbone` for another run's model, with the recipe's changes.

  Raises:
    UserError: the other model is not an image encoder.
  """
  model = saved.model
  variant = getattr(model, "variant", None)
  if isinstance(model, ConvEncoder):
    spec = variant.backbone
    if not isinstance(spec, dict):
      spec = {"name": spec}
  elif isinstance(model, ImageEncoder):
    spec = {
      "name": "encoder",
      "model": saved.identity["model"]["name"],
      "variant": variant_fields(variant),
      "resolution": config.task.get("resolution"),
    }
  else:
    raise UserError(
      f"{_INIT}: {saved.path} holds {saved.identity['model']['name']!r}, which cannot be a "
      f"backbone of {config.model.name!r}; give a run of an image encoder: vit, dinov2, swin, "
      "resnet or convnext"
    )
  recipe_backbone = config.model.get("backbone")
  if not recipe_backbone:
    return spec
  name, changes = slots.name_and_arguments("config.model.backbone", recipe_backbone)
  return spec | changes if name in (None, spec["name"]) else spec


def _tasks_without_store(config: ConfigDict) -> list[ConfigDict]:
  """Return the configs of tasks that use the vocabulary of the run of `config.init`.

  These are the run's own task (of a mixture, the keys that its parts share) and the tasks of
  evaluators that name no store.
  """
  if "parts" in config.task and "shared" not in config.task:
    config.task.shared = {}
  task_configs = [config.task.get("shared", config.task)]
  for evaluator in config.evals.values():
    task = evaluator.get("task") or {}
    if "name" in task and "store" not in task:
      task_configs.append(task)
  return task_configs


def _lengthen_positions(config: ConfigDict) -> None:
  """Lengthen a table of learned positions to the task's longest sequence."""
  if "resolution" in config.model:
    return
  model_class = slots.find("config.model.name", config.model.name, t5x_like.models, "Model")
  position = slots.resolve_variant(model_class, config.model).design.position
  position = config.model.design.to_dict().get("position", position)
  longest = max(config.task.get(key) or 0 for key in ("length", "inputs_length", "targets_length"))
  is_learned = isinstance(position, dict) and position["name"] == "learned"
  if is_learned and longest > position.get("length", 512):
    config.model.design.position = position | {"length": longest}


def resolve_teacher(config: ConfigDict, shared: dict[str, Any], platform: str | None) -> ConfigDict:
  """Return `config.teacher` with the teacher's model in it.

  Args:
    shared: the dtype and layers of the student, which the teacher shares.
  Raises:
    UserError: there is no such run.
  """
  values = slots.fill("config.teacher", config.teacher, config_lib.Teacher)
  directory = values["workdir"]
  model = values["model"]
  saved = None
  if values["inherit"] and directory not in (None, RANDOM):
    if model:
      saved = find_saved_model(directory, flag=_TEACHER)
    else:
      saved = open_saved_model(directory, flag=_TEACHER)
  elif not model:
    raise UserError(
      f"{_TEACHER}: found {directory!r}, expected the workdir of a run; train the teacher first, "
      "or give a Hugging Face directory"
    )
  if saved is not None:
    model = saved.identity["model"]
  elif model.get("vocab_size") == "auto":
    shared = shared | {"vocab_size": config.model.vocab_size}
  model = resolve_model("teacher.model", ConfigDict(model | shared), platform)
  for key in _DROPOUT_KEYS:
    if key in model:
      model[key] = 0.0
  return ConfigDict(values | {"model": model.to_dict(), "inherit": False})


def check_sources(config: ConfigDict, vocabulary, workdir: str) -> None:
  """Refuse data that do not fit the imported weights or the other runs that a config names.

  Raises:
    UserError: the vocabulary, the classes or the normalisation of pixels differ.
  """
  imported = workdirs.read_imported(workdir)
  if imported is not None and imported["vocabulary"] != vocabulary.fingerprint:
    raise UserError(
      f"{workdir}: holds imported weights with their vocabulary, but the data were made with "
      f"another; prepare them with --vocabulary={workdir}/vocabulary"
    )
  _check_init_vocabulary(config, vocabulary)
  _check_teacher(config, vocabulary)


def _check_init_vocabulary(config: ConfigDict, vocabulary) -> None:
  """Refuse data of another vocabulary than the run of `config.init`; image classes may differ."""
  if config.init and "vocab_size" in config.model:
    saved = open_saved_model(config.init.workdir, flag=_INIT)
    if vocabulary.fingerprint != saved.vocabulary_fingerprint:
      raise UserError(
        f"config.task: the vocabulary of the data differs from {saved.path}'s; prepare the data "
        f"with --vocabulary={saved.vocabulary_directory}"
      )


def _check_teacher(config: ConfigDict, vocabulary) -> None:
  """Refuse a teacher whose classes, vocabulary or normalisation of pixels differ from the data's.

  A teacher that no longer exists passes, as a resumed run reads its parameters from the checkpoint.
  """
  directory = config.teacher.get("workdir")
  if directory in (None, RANDOM):
    return
  saved = find_saved_model(directory, flag=_TEACHER)
  if saved is None:
    return
  if saved.vocabulary_fingerprint != vocabulary.fingerprint:
    teacher = vocabularies.load(saved.vocabulary_directory)
    teacher_content = "another vocabulary"
    data_content = "the data's vocabulary"
    if getattr(teacher, "names", None) and getattr(vocabulary, "names", None):
      teacher_content = f"{len(teacher.names)} classes, {_first_names(teacher.names)}"
      data_content = f"the {vocabulary.size} of the data, {_first_names(vocabulary.names)}"
    raise UserError(
      f"config.teacher.workdir: {directory} was trained with {teacher_content}, expected "
      f"{data_content}"
    )
  if "resolution" not in config.model or not saved.identity["features"]:
    return
  teacher_pixels = _describe_normalisation(saved.identity["task"])
  data_pixels = _describe_normalisation(config.task)
  if teacher_pixels != data_pixels:
    raise UserError(
      f"config.task: found {data_pixels}, but the teacher in {directory} was trained with "
      f"{teacher_pixels}; set both to the same"
    )


def _describe_normalisation(task: Mapping[str, Any]) -> str:
  """Describe the mean and deviation of pixels, by one number each if all channels are equal."""
  defaults = slots.defaults(TASKS.find("config.task.name", task["name"]))
  descriptions = []
  for name in ("mean", "std"):
    channels = list(task.get(name, defaults.get(name, ())))
    if len(set(channels)) == 1:
      channels = channels[:1]
    descriptions.append(f"{name} {channels}")
  return ", ".join(descriptions)


def _first_names(names: Sequence[str]) -> str:
  """Join the first four names, with an ellipsis if there are more."""
  listed = ", ".join(names[:4])
  return f"{listed}, …" if len(names) > 4 else listed


def load_sources(
  config: ConfigDict, parts, state: TrainState
) -> tuple[TrainState, dict[str, Any] | None]:
  """Return a new run's state with the weights of other runs, and the content of `init.json`.

  Args:
    config: the resolved config of this run.
    parts: the parts of this run.
    state: the freshly initialised state of this run.
  Raises:
    UserError: a checkpoint does not exist; a tensor outside the head is missing or has another
      shape; the teacher's model is not `config.teacher.model`.
  """
  report = None
  if config.init.get("weights"):
    state, report = _InitialWeights(config, parts, state).load()
  if config.teacher:
    state = _load_teacher(config, parts, state)
  return state, report


class _InitialWeights:
  """A loader of the weights of the run of `config.init` into a fresh state.

  Args:
    config: the resolved config of this run.
    parts: the parts of this run.
    state: the freshly initialised state of this run.
  """

  def __init__(self, config: ConfigDict, parts, state: TrainState):
    self._config = config
    self._parts = parts
    self._state = state
    self._directory = config.init.workdir
    self._layers = config.init.get("layers")  # the number of layers to load; None loads all
    step, arrays, model = _restore_run(self._directory, config.init.step, parts, _INIT)
    self._step = step
    self._source_arrays = arrays
    self._source_model = model
    self._is_backbone = _takes_backbone(parts.model) and not _takes_backbone(model)
    self._axes = {name: p.axes for name, p in params.named_params(parts.model).items()}
    self._loaded: list[str] = []
    self._resized: dict[str, str] = {}
    self._initialised: list[str] = []
    self._ignored: list[str] = []

  def load(self) -> tuple[TrainState, dict[str, Any]]:
    """Return the state and the content of `init.json`; print what was loaded."""
    new_params = dict(self._state.params)
    source_names = {name: self._source_name(name) for name in new_params}
    used_names = set(source_names.values()) if self._is_backbone else set(new_params)
    self._ignored = sorted(set(self._source_arrays) - used_names)
    for name, fresh in self._state.params.items():
      if self._config.teacher and name.startswith(REFERENCE):
        continue  # a parameter of the teacher, see `_load_teacher`
      array = self._load_param(name, source_names[name], fresh)
      if array is not None:
        new_params[name] = array
    self._print()
    report = {
      "workdir": self._directory,
      "step": self._step,
      "loaded": self._loaded,
      "resized": self._resized,
      "initialised": self._initialised,
      "ignored": self._ignored,
    }
    return dataclasses.replace(self._state, params=new_params), report

  def _source_name(self, name: str) -> str:
    """Return the name in the other run; DPO's reference starts from the same parameters."""
    if self._is_backbone:
      return name.removeprefix(_BACKBONE_ENCODER)
    return name.rpartition(REFERENCE)[2]

  def _load_param(self, name: str, source_name: str, fresh: jax.Array) -> jax.Array | None:
    """Return the loaded array for a parameter; None if it keeps its fresh value."""
    is_beyond_backbone = self._is_backbone and not name.startswith(_BACKBONE)
    array = None if is_beyond_backbone else self._source_arrays.get(source_name)
    may_be_new = is_beyond_backbone or name.startswith(_NEW_PREFIXES) or name.endswith(ADAPTERS)
    if array is None and not may_be_new:
      raise UserError(
        f"config.init.workdir: {self._directory} has no tensor {name}; only heads may be new"
      )
    if array is None or (may_be_new and array.shape != fresh.shape):
      self._initialised.append(name)
      if array is not None:
        self._ignored.append(name)
      return None
    self._loaded.append(name)
    if self._layers is not None and self._axes[name][:1] == ("layers",):
      array = jnp.concatenate([array[: self._layers], fresh[self._layers :]])
    if array.shape != fresh.shape:
      array = self._resize(name, source_name, array, fresh)
    if name.startswith(REFERENCE):
      # The training step donates its state, so no two entries may share a buffer.
      array = jnp.copy(array)
    return jax.device_put(array, fresh.sharding)

  def _resize(self, name: str, source_name: str, array: jax.Array, fresh: jax.Array) -> jax.Array:
    """Resize a table of positions, and note its old and new number of rows."""
    for source_rows, rows in zip(array.shape, fresh.shape):
      if source_rows != rows:
        self._resized[name] = f"{source_rows} to {rows} rows"
        break
    model = self._parts.model
    if name.startswith(_BACKBONE_ENCODER):
      model = model.backbone.encoder
    models = (model, self._source_model)
    return _resize_positions(source_name, array, fresh, models, self._directory)

  def _print(self) -> None:
    """Print which parameters were loaded, resized, initialised or ignored."""
    total = len(self._loaded) + len(self._initialised)
    process.log(
      f"weights of {self._directory}, step {self._step}: {len(self._loaded)} of {total} tensors "
      "loaded"
    )
    if self._layers is not None:
      process.log(f"  layers: the first {self._layers} are loaded, the others are new")
    lists = {
      "resized": [f"{name} ({change})" for name, change in self._resized.items()],
      "initialised": self._initialised,
      "ignored": self._ignored,
    }
    for title, names in lists.items():
      process.log(f"  {title + ':':12} {', '.join(names) or 'none'}")


def _load_teacher(config: ConfigDict, parts, state: TrainState) -> TrainState:
  """Return the state with the parameters of the teacher.

  Raises:
    UserError: there is no such run, or a parameter is missing or has another shape.
  """
  directory = config.teacher.workdir
  if directory == RANDOM:
    process.log(
      "teacher: random weights, from which nothing can be learned; set --config.teacher.workdir"
    )
    return state
  if directory is None:
    raise UserError(f"{_TEACHER}: found None, expected the workdir of the teacher")
  step, arrays, _ = _restore_run(directory, config.teacher.step, parts, _TEACHER)
  new_params = dict(state.params)
  for name, fresh in state.params.items():
    if not name.startswith(REFERENCE):
      continue
    array = arrays.get(name.removeprefix(REFERENCE))
    if array is None or array.shape != fresh.shape:
      shape = "none" if array is None else list(array.shape)
      raise UserError(
        f"config.teacher.model: {name} has shape {list(fresh.shape)}, found {shape} in {directory}"
      )
    new_params[name] = jax.device_put(array, fresh.sharding)
  process.log(f"teacher: weights of {directory}, step {step}")
  return dataclasses.replace(state, params=new_params)


def _restore_run(
  directory: str, step: int | None, parts, flag: str
) -> tuple[int, dict[str, jax.Array], Any]:
  """Restore another run on the mesh of this one, with its adapters merged.

  If the other run trained a generator with a discriminator, as in ELECTRA, and this model is a
  single network, the discriminator's parameters are restored.

  Returns:
    (step, parameters by name, abstract model).
  """
  saved = open_saved_model(directory, parts.rules, flag)
  restored_step, arrays = saved.restore(step)
  model = merge_for_export(params.with_arrays(saved.model, arrays))
  if hasattr(model, "networks") and not hasattr(parts.model, "networks"):
    _, model = model.networks()
  return restored_step, params.arrays(model), saved.model


def _resize_positions(
  name: str, array: jax.Array, fresh: jax.Array, models: tuple[Any, Any], directory: str
) -> jax.Array:
  """Return another model's table of positions, resized for a model.

  Args:
    name: the name of the table in both models.
    array: the table of the other model.
    fresh: the initial value of the table in this model, with its shape.
    models: (this model, the other model).
    directory: the directory of the other run, for error messages.
  Raises:
    UserError: the table cannot be resized to the shape of `fresh`.
  """
  module, source_module = models
  for attribute in name.split("/")[:-1]:
    module = getattr(module, attribute)
    source_module = getattr(source_module, attribute)
  resized = array
  if hasattr(module, "resize") and array.shape[-1] == fresh.shape[-1]:
    try:
      resized = module.resize(array, source_module)
    except ValueError as error:
      raise UserError(
        f"config.init.workdir: tensor {name} of {directory} cannot be resized: {one_line(error)}"
      ) from error
  if resized.shape != fresh.shape:
    raise UserError(
      f"config.init.workdir: tensor {name} has shape {list(array.shape)} in {directory}, "
      f"{list(fresh.shape)} here"
    )
  return resized
