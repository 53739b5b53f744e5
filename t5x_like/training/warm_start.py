"""Take from elsewhere the start of a run: the model of imported weights or of other runs, weights
and vocabulary.

Found by name where a workdir holds imported weights, or a recipe names another run. Imported
weights fix the model and the vocabulary; the recipe decides the rest.

`config.init` and `config.teacher` name the workdir of a run, a Hugging Face directory or a name of
the Hub. The run of `init` may have another task and another head. It gives the architecture, the
vocabulary and every parameter that both models have; the recipe keeps its head, dropout and ways of
computing. Only heads and adapters are new, and the other run's adapters are merged. With
`init.layers`, only the first layers of each stack are loaded. A longer table of positions repeats
the other's (Beltagy et al. 2020, section 5), a shorter one is its beginning; one for images is
interpolated. A detector that starts from an image encoder takes it for its backbone, and keeps its
own architecture behind it.

A teacher may be of any family. Its parameters stand in the state beside the trained ones, as DPO's
reference does: split over the same mesh, saved, restored and never changed. A resumed run takes
them from its own checkpoint.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

import t5x_like.models
from t5x_like import config as config_lib
from t5x_like import slots, vocabularies
from t5x_like.architectures.conv_encoder import ConvEncoder
from t5x_like.architectures.detector import Detector
from t5x_like.architectures.image_encoder import ImageEncoder
from t5x_like.data import tasks
from t5x_like.errors import UserError, one_line
from t5x_like.nn import params
from t5x_like.nn.linear import ADAPTERS
from t5x_like.runtime import process
from t5x_like.training import saved_model
from t5x_like.training import workdir as workdirs
from t5x_like.training.build import REFERENCE, Parts, build_model
from t5x_like.training.resolve_model import resolve_model
from t5x_like.training.state import TrainState

RANDOM = "random"  # a teacher without a run
_INIT = "config.init.workdir"
_TEACHER = "config.teacher.workdir"
# Keys of config.model fixed by imported weights, and cells of its design that are not.
IMPORTED_KEYS = ("name", "variant", "vocab_size", "tokens", "head", "labels", "queries")
_TRAINING = """
  core quantization init_stddev kernel_scales residual_init embed_init mlp_dropout shared_dropout no_dropout
  attention_dropout
""".split()
_NEW = ("head/", "scores/", "classes/", "value/")
_BACKBONE = "backbone/"
_LENT = "backbone/encoder/"  # another run's image encoder
_OFF = ("dropout", "drop_path")  # of a teacher
# Keys of config.model that a run with `init` keeps; the others come from the run it starts from.
_KEPT = """
  head scores labels dropout drop_path drop_path_rates resolution window pretrained_windows dtype layers remat
""".split()


def with_model_keys(config: ConfigDict, model: dict[str, Any], where: str) -> ConfigDict:
  """Return a recipe's config with the `FIXED` keys of another `config.model`; `where` holds its
  weights.

  Raises:
    UserError: the recipe is for another family.
  """
  made = ConfigDict(config.to_dict())
  own = {key: value for key, value in model.items() if key in IMPORTED_KEYS}
  if own.get("name", made.model.get("name")) != made.model.get("name"):
    raise UserError(
      f"config.model.name: found {made.model.get('name')!r}, but {where} holds {own['name']!r}; "
      "use a recipe of that family"
    )
  design = made.model.to_dict().get("design", {})
  design = {cell: value for cell, value in design.items() if cell in _TRAINING}
  with made.model.unlocked(), made.model.ignore_type():
    made.model = ConfigDict(made.model.to_dict() | own | {"design": design})
  return made


def inherit_model(config: ConfigDict) -> ConfigDict:
  """Return a copy of a config with the architecture and vocabulary of the run that `config.init`
  names.

  Raises:
    UserError: there is no such run, or the config names another vocabulary.
  """
  found = ConfigDict(config.to_dict())
  values = slots.fill("config.init", config.init, config_lib.Init)
  if not values["inherit"]:
    return found
  directory = values["workdir"]
  saved = saved_model.load_identity(directory, _INIT)
  if _lends(saved["model"], config.model):
    with found.unlocked(), found.ignore_type():
      found.model.backbone = ConfigDict(_backbone(directory, saved, config))
      found.init = ConfigDict(values | {"inherit": False})
    return found
  with found.unlocked(), found.ignore_type():
    own = {key: value for key, value in config.model.to_dict().items() if key in _KEPT}
    theirs = {key: value for key, value in saved["model"].items() if key not in _KEPT}
    model_class = slots.find("config.model.name", theirs["name"], t5x_like.models, "Model")
    if hasattr(model_class, "ALONE") and own.get("head") not in (None, "discriminator"):
      theirs = {key: value for key, value in theirs.items() if not key.startswith("generator_")}
      theirs["name"] = model_class.ALONE
    elif own.get("head") and hasattr(slots.module(theirs["name"], t5x_like.models), "Reader"):
      theirs["name"] = f"t5x_like.models.{theirs['name']}:Reader"
    changes = config.model.to_dict().get("design") or {}
    theirs["design"] = dict(theirs.get("design") or {}) | changes
    found.model = ConfigDict(theirs | own)
    _lengthen(found)
    found.init = ConfigDict(values | {"inherit": False})
    if found.task.get("store") is not None or "vocab_size" not in found.model:
      return found  # the store has its own, see `assembly`; images may have other classes
    for task in _of_texts(found):
      if task.get("vocabulary") is None:
        task["vocabulary"] = saved_model.vocabulary_directory(directory, saved)
      else:
        workdirs.check_vocabulary(
          directory, saved, vocabularies.load(task["vocabulary"]), task["vocabulary"]
        )
  return found


def _lends(theirs: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
  """Return whether the model of another run, of another family, becomes the backbone of a
  detector."""
  model_class = slots.find("config.model.name", own.get("name"), t5x_like.models, "Model")
  return theirs["name"] != own["name"] and issubclass(model_class, Detector)


def _backbone(directory: str, saved: dict[str, Any], config: ConfigDict) -> dict[str, Any]:
  """Return a detector's `backbone` that is another run's model, as the recipe changes it.

  Raises:
    UserError: the other model is no image encoder.
  """
  _, published = saved_model.identify_model(directory, _INIT)
  model = (
    published.model
    if published
    else build_model(config_lib.restore(saved, [], f"{directory}/{workdirs.IDENTITY_FILE}"))[0]
  )
  variant = getattr(model, "variant", None)
  own = config.model.get("backbone")
  if isinstance(model, ConvEncoder):
    spec = variant.backbone if isinstance(variant.backbone, dict) else {"name": variant.backbone}
  elif isinstance(model, ImageEncoder):
    plain = json.loads(json.dumps(dataclasses.asdict(variant)))
    side = config.task.get("resolution")
    spec = {
      "name": "encoder",
      "model": saved["model"]["name"],
      "variant": plain,
      "resolution": side,
    }
  else:
    raise UserError(
      f"{_INIT}: {directory} holds {saved['model']['name']!r}, which is no backbone of "
      f"{config.model.name!r}; give a run of an image encoder, as vit, dinov2, swin, resnet or "
      "convnext"
    )
  name, changes = slots.name_and_arguments("config.model.backbone", own) if own else (None, {})
  return spec | (changes if name in (None, spec["name"]) else {})


def _of_texts(config: ConfigDict) -> list[ConfigDict]:
  """Return the arguments that take the run's vocabulary: its task's, what a mixture's parts share,
  and those of evaluations with a task of their own that names no store."""
  if "parts" in config.task and "shared" not in config.task:
    config.task.shared = {}
  own = (values.get("task") or {} for values in config.evals.values())
  return [
    config.task.get("shared", config.task),
    *(task for task in own if "name" in task and "store" not in task),
  ]


def _lengthen(config: ConfigDict) -> None:
  """Give a model with learned positions as many as the task's rows are long."""
  if "resolution" in config.model:
    return
  model_class = slots.find("config.model.name", config.model.name, t5x_like.models, "Model")
  position = config.model.design.to_dict().get(
    "position", slots.resolve_variant(model_class, config.model).design.position
  )
  longest = max(config.task.get(key) or 0 for key in ("length", "inputs_length", "targets_length"))
  if (
    isinstance(position, dict)
    and position["name"] == "learned"
    and longest > position.get("length", 512)
  ):
    config.model.design.position = position | {"length": longest}


def resolve_teacher(
  config: ConfigDict, computed: dict[str, Any], platform: str | None
) -> ConfigDict:
  """Return `config.teacher` with the teacher's model in it.

  Args:
    computed: the student's dtype and layers, which the teacher shares.
  Raises:
    UserError: there is no such run.
  """
  values = slots.fill("config.teacher", config.teacher, config_lib.Teacher)
  directory = values["workdir"]
  model = values["model"]
  saved = None
  if values["inherit"] and directory not in (None, RANDOM):
    saved = (saved_model.find_identity if model else saved_model.load_identity)(directory, _TEACHER)
  elif not model:
    raise UserError(
      f"{_TEACHER}: found {directory!r}, expected the workdir of a run; train the teacher first, "
      "or give a Hugging Face directory"
    )
  if not saved and model.get("vocab_size") == "auto":
    computed = computed | {"vocab_size": config.model.vocab_size}
  model = resolve_model(
    "teacher.model", ConfigDict((saved["model"] if saved else model) | computed), platform
  )
  for key in (key for key in _OFF if key in model):
    model[key] = 0.0
  return ConfigDict(values | {"model": model.to_dict(), "inherit": False})


def check_sources(config: ConfigDict, vocabulary, workdir: str) -> None:
  """Refuse data that do not fit the workdir's imported weights or the runs that the config names;
  raise UserError."""
  found = workdirs.read_imported(workdir)
  if found is not None and found["vocabulary"] != vocabulary.fingerprint:
    raise UserError(
      f"{workdir}: holds imported weights with their vocabulary, but the data were made with "
      f"another; prepare them with --vocabulary={workdir}/vocabulary"
    )
  _check_start(config, vocabulary)
  _check_teacher(config, vocabulary)


def _check_start(config: ConfigDict, vocabulary) -> None:
  """Refuse data of another vocabulary than the run of `config.init` has; classes of images may
  differ."""
  if config.init and "vocab_size" in config.model:
    saved = saved_model.load_identity(config.init.workdir, _INIT)  # its vocabulary is needed
    workdirs.check_vocabulary(config.init.workdir, saved, vocabulary, "the data's")


def _check_teacher(config: ConfigDict, vocabulary) -> None:
  """Refuse a teacher of other classes, another vocabulary or other normalised pixels than the
  data's.

  A teacher that is gone is not missed here: a resumed run has its parameters.
  """
  directory = config.teacher.get("workdir")
  saved = (
    saved_model.find_identity(directory, _TEACHER) if directory not in (None, RANDOM) else None
  )
  if saved is None:
    return
  if workdirs.vocabulary_fingerprint(saved) != vocabulary.fingerprint:
    theirs = vocabularies.load(saved_model.vocabulary_directory(directory, saved))
    names = getattr(theirs, "names", None) and getattr(vocabulary, "names", None)
    told = f"{len(theirs.names)} classes, {_short(theirs.names)}" if names else "another vocabulary"
    ours = (
      f"the {vocabulary.size} of the data, {_short(vocabulary.names)}"
      if names
      else ("the data's vocabulary")
    )
    raise UserError(f"config.teacher.workdir: {directory} was trained with {told}, expected {ours}")
  if "resolution" not in config.model or not saved["features"]:
    return
  pixels = _normalisation(saved["task"])
  ours = _normalisation(config.task)
  if pixels != ours:
    raise UserError(
      f"config.task: found {ours}, but the teacher in {directory} was trained with {pixels}; set "
      "them alike"
    )


def _normalisation(task: Mapping[str, Any]) -> str:
  """Describe the mean and the deviation of pixels, by one number where all channels have the
  same."""
  usual = slots.defaults(slots.find("config.task.name", task["name"], tasks, "task"))
  given = ((name, task.get(name, usual.get(name, ()))) for name in ("mean", "std"))
  return ", ".join(
    f"{name} {list(dict.fromkeys(x)) if len(set(x)) == 1 else list(x)}" for name, x in given
  )


def _short(names) -> str:
  return ", ".join(names[:4]) + ", …" * (len(names) > 4)


def load_sources(
  config: ConfigDict, parts: Parts, state: TrainState
) -> tuple[TrainState, dict[str, Any] | None]:
  """Return a new run's state with the weights that the config asks for, and the content of
  `init.json`, if any.

  Args:
    config: resolved.
    parts: the parts of this run.
    state: fresh.
  Raises:
    UserError: no such checkpoint; a tensor outside the head is missing or has another shape; the
      teacher's model is not `config.teacher.model`.
  """
  report = None
  if config.init.get("weights"):
    state, report = _started(config, parts, state)
  return _taught(config, parts, state) if config.teacher else state, report


def _started(
  config: ConfigDict, parts: Parts, state: TrainState
) -> tuple[TrainState, dict[str, Any]]:
  directory = config.init.workdir
  step, arrays, their_model = _of_run(directory, config.init.step, parts, _INIT)
  lent = isinstance(parts.model, Detector) and not isinstance(their_model, Detector)
  theirs = {n: n.removeprefix(_LENT) if lent else n.rpartition(REFERENCE)[2] for n in state.params}
  made = dict(state.params)
  loaded = []
  resized = {}
  initialised = []
  ignored = sorted({*arrays} - ({*theirs.values()} if lent else {*state.params}))
  axes = {name: p.axes for name, p in params.named_params(parts.model).items()}
  for name, fresh in state.params.items():
    if config.teacher and name.startswith(REFERENCE):
      continue  # the teacher's, loaded next
    own = lent and not name.startswith(_BACKBONE)  # the detector's
    old = None if own else arrays.get(theirs[name])
    new = own or name.startswith(_NEW) or name.endswith(ADAPTERS)
    if old is None or (new and old.shape != fresh.shape):
      if not new:
        raise UserError(
          f"config.init.workdir: {directory} has no tensor {name}; only heads may be new"
        )
      initialised.append(name)
      ignored += [name] if old is not None else []
      continue
    loaded.append(name)
    if config.init.get("layers") is not None and axes[name][:1] == ("layers",):
      old = jnp.concatenate([old[: config.init.layers], fresh[config.init.layers :]])
    if old.shape != fresh.shape:
      rows = next((sizes for sizes in zip(old.shape, fresh.shape) if sizes[0] != sizes[1]), (0, 0))
      resized[name] = f"{rows[0]} to {rows[1]} rows"
      models = parts.model.backbone.encoder if name.startswith(_LENT) else parts.model, their_model
      old = _resized(theirs[name], old, fresh, models, directory)
    # the step gives back the memory of each array of its state once
    copies = name.startswith(REFERENCE)
    made[name] = jax.device_put(jnp.copy(old) if copies else old, fresh.sharding)
  process.log(
    f"weights of {directory}, step {step}: {len(loaded)} of "
    f"{len(loaded) + len(initialised)} tensors loaded"
  )
  if config.init.get("layers") is not None:
    process.log(f"  layers: the first {config.init.layers} alone, the others are new")
  lists = {
    "resized": [f"{n} ({how})" for n, how in resized.items()],
    "initialised": initialised,
    "ignored": ignored,
  }
  for word, names in lists.items():
    process.log(f"  {word + ':':12} {', '.join(names) or 'none'}")
  report = {"workdir": directory, "step": step, "loaded": loaded, "resized": resized}
  return dataclasses.replace(state, params=made), report | {
    "initialised": initialised,
    "ignored": ignored,
  }


def _taught(config: ConfigDict, parts: Parts, state: TrainState) -> TrainState:
  directory = config.teacher.workdir
  if directory == RANDOM:
    process.log(
      "teacher: random weights, from which nothing can be learned; set --config.teacher.workdir"
    )
    return state
  if directory is None:
    raise UserError(f"{_TEACHER}: found None, expected the workdir of the teacher")
  step, arrays, _ = _of_run(directory, config.teacher.step, parts, _TEACHER)
  made = dict(state.params)
  for name in [name for name in made if name.startswith(REFERENCE)]:
    found = arrays.get(name.removeprefix(REFERENCE))
    fresh = made[name]
    if found is None or found.shape != fresh.shape:
      shape = "none" if found is None else list(found.shape)
      raise UserError(
        f"config.teacher.model: {name} has shape {list(fresh.shape)}, found {shape} in {directory}"
      )
    made[name] = jax.device_put(found, fresh.sharding)
  process.log(f"teacher: weights of {directory}, step {step}")
  return dataclasses.replace(state, params=made)


def _of_run(
  directory: str, step: int | None, parts: Parts, flag: str
) -> tuple[int, dict[str, jax.Array], Any]:
  """Return (step, parameters by name, abstract model) of another run, its adapters merged, on the
  mesh of this one.

  Of a generator and a discriminator, a model that is not both takes the discriminator.
  """
  run = saved_model.open_saved_model(directory, parts.rules, flag)
  found, arrays = run.restore(step)
  model = saved_model.merge_for_export(params.with_arrays(run.model, arrays))
  if hasattr(model, "networks") and not hasattr(parts.model, "networks"):
    _, model = model.networks()
  return found, params.arrays(model), run.model


def _resized(
  name: str, old: jax.Array, fresh: jax.Array, models: tuple[Any, Any], directory: str
) -> jax.Array:
  """Return a table of positions for this model, the first of `models`, made from the other's."""
  module, other = (functools.reduce(getattr, name.split("/")[:-1], model) for model in models)
  try:
    made = (
      module.resize(old, other)
      if hasattr(module, "resize") and old.shape[-1] == fresh.shape[-1]
      else old
    )
  except ValueError as error:
    raise UserError(
      f"config.init.workdir: tensor {name} of {directory} cannot be resized: {one_line(error)}"
    ) from error
  if made.shape != fresh.shape:
    raise UserError(
      f"config.init.workdir: tensor {name} has shape {list(old.shape)} in {directory}, "
      f"{list(fresh.shape)} here"
    )
  return made
