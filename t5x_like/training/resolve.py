"""Resolve a recipe: check every slot against what it names, and fill in every default.

`resolve` opens no data and no weights. It reads at most the `config.json` of a run that the recipe names, and the
vocabulary that sizes the token table.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

import t5x_like.models
import t5x_like.objectives
from t5x_like import config as config_lib
from t5x_like import evals, slots, vocabularies
from t5x_like.architectures.build import variant_of
from t5x_like.data import tasks
from t5x_like.errors import UserError
from t5x_like.files import file_names
from t5x_like.files.places import place
from t5x_like.training import phases
from t5x_like.training import workdir as workdirs
from t5x_like.training.guard import GUARDS
from t5x_like.training.optimizer import OPTIMIZERS
from t5x_like.training.schedule import SCHEDULES
from t5x_like.training.tuning import TUNINGS
from t5x_like.vocabularies import storage

RANDOM = "random"  # a teacher without a run
_TO_TOTAL = ("linear", "cosine")  # schedules that end with the run by default
_OFF = ("dropout", "drop_path")  # of a teacher
# Keys of config.model that a run with `init` keeps; the others are those of the run it starts from.
_OWN = "head scores dropout drop_path resolution window pretrained_windows dtype layers remat".split()


def resolve(config: ConfigDict, platform: str | None = None) -> ConfigDict:
  """Return the recipe's config, checked, with all defaults for a platform; None is the platform of this process.

  `auto`, or no value, becomes bfloat16 on accelerators and float32 on CPU for `model.dtype`, and scan and loop for
  `model.layers`. A `model.vocab_size` of None becomes the published size, and `auto` the size of the task's vocabulary,
  rounded up to a multiple of 128.

  Raises:
    UserError: naming the key, the value and the expectation.
  """
  config_lib.check_values(config)
  config = _inherited(config)
  resolved = ConfigDict(config.to_dict())
  if config.model.get("vocab_size") == "auto":
    with config.model.ignore_type():
      config.model.vocab_size = table_size(task_vocabulary(config))
  resolved.model = _model("model", config.model, platform)
  objective = slots.find("config.objective.name", config.objective.get("name"), t5x_like.objectives, "Objective")
  computed = {key: resolved.model[key] for key in ("dtype", "layers") if key in resolved.model}
  resolved.teacher = _teacher(config, getattr(objective, "teacher", False), computed, platform)
  resolved.objective = _filled("objective", config.objective, objective)
  optimizer = slots.find("config.optimizer.name", config.optimizer.get("name"), OPTIMIZERS)
  more = dict(given=("schedule",), also=(config_lib.OptimizerMemory,))
  resolved.optimizer = _filled("optimizer", config.optimizer, optimizer, **more)
  schedule = slots.find("config.schedule.name", config.schedule.get("name"), SCHEDULES)
  whole = {"total_steps": config.total_steps} if config.schedule.name in _TO_TOTAL else {}
  resolved.schedule = _filled("schedule", ConfigDict(whole | config.schedule.to_dict()), schedule)
  resolved.guard = _filled("guard", config.guard, slots.find("config.guard.name", config.guard.get("name"), GUARDS))
  tune = slots.find("config.tuning.name", config.tuning.get("name"), TUNINGS)
  resolved.tuning = _as_saved(_filled("tuning", config.tuning, tune))
  if config.selection:
    resolved.selection = _filled("selection", config.selection, config_lib.Selection)
  resolved.checkpoint = _filled("checkpoint", config.checkpoint, config_lib.Checkpoint)
  resolved.evals = {name: _evaluator(name, values) for name, values in config.evals.items()}
  phases.in_order(config)  # refuses phases that cannot be
  return resolved


def _filled(
  slot: str, values: ConfigDict, function: Callable, given: Sequence[str] = (), also: Sequence[Callable] = ()
) -> ConfigDict:
  """Return a slot with all its arguments, and its name if it has one."""
  name, arguments = slots.split(f"config.{slot}", values)
  return ConfigDict(({"name": name} if name else {}) | slots.fill(f"config.{slot}", arguments, function, given, also))


def _as_saved(values: ConfigDict | dict[str, Any]) -> ConfigDict:
  """Return values as a saved config has them: lists, no tuples."""
  return ConfigDict(json.loads(json.dumps(slots.plain(values))))


def _model(slot: str, values: ConfigDict, platform: str | None) -> ConfigDict:
  """Return a `config.model`, checked, with all defaults."""
  model_class = slots.find(f"config.{slot}.name", values.get("name"), t5x_like.models, "Model")
  resolved = _filled(slot, values, model_class, given=("rngs",))
  with resolved.ignore_type():
    if "variant" in resolved:
      resolved.variant = values.variant  # as given: all of its fields may be
      variant = variant_of(model_class, values)
      if "design" in resolved:
        slots.change("config.model.design", variant.design, resolved.design)
        resolved.design = _as_saved(resolved.design)
      if "vocab_size" in resolved and resolved.vocab_size is None:
        resolved.vocab_size = variant.vocab_size
  on_cpu = (platform or jax.default_backend()) == "cpu"
  suited = {"dtype": "float32", "layers": "loop"} if on_cpu else {"dtype": "bfloat16", "layers": "scan"}
  for key, value in suited.items():
    if key in resolved and values.get(key, "auto") == "auto":
      resolved[key] = value
  return resolved


def task_vocabulary(config: ConfigDict) -> vocabularies.Vocabulary:
  """Return the vocabulary that `config.task` names, itself or through its store.

  Raises:
    UserError: the vocabulary cannot be read, or the task names none.
  """
  values = config.task.to_dict()
  while "parts" in values:  # a mixture, of one vocabulary
    usual, shared = slots.split("config.task.shared", values.get("shared") or {})
    parts = list(slots.split("config.task.parts", values["parts"])[1].values())
    name, own = slots.split("config.task.parts", parts[0] if parts else {})
    values = shared | own | {"name": name or usual}
  task = slots.find("config.task.name", values.get("name"), tasks, "task")
  values = slots.defaults(task) | values
  store, named = values.get("store"), values.get("vocabulary")
  if named is not None and (store is None or values.get("source") is not None):
    return vocabularies.load(named)
  if store is None:
    raise UserError(
      "config.model.vocab_size: found 'auto', but config.task names neither a vocabulary nor a store; name one, or give"
      " the size"
    )
  if store == "builtin":
    return vocabularies.load("bytes")
  directory = f"{store}/{config.train_split}"
  manifest = place(f"{directory}/vocabulary/{storage.MANIFEST}")  # web servers have files, but no directories
  if not (manifest.is_file() or manifest.parent.is_dir()):
    found = "no vocabulary in it" if place(directory).is_dir() else "no such directory"
    raise UserError(
      f"{directory}: no token store ({found}): make one with python -m tools.prepare_data --source=... --vocabulary=..."
      f" --output={store}"
    )
  return vocabularies.load(f"{directory}/vocabulary")


def table_size(vocabulary: vocabularies.Vocabulary) -> int:
  """Return the rows of a token table for a vocabulary: its size, rounded up to a multiple of 128."""
  return -(-vocabulary.size // 128) * 128


def _inherited(config: ConfigDict) -> ConfigDict:
  """Return a copy of a config with the architecture and vocabulary of the run that `config.init` names, if any.

  Raises:
    UserError: there is no such run, or the config names another vocabulary.
  """
  found = ConfigDict(config.to_dict())
  if not config.init:
    return found
  values = slots.fill("config.init", config.init, config_lib.Init)
  if not values["inherit"]:
    return found
  directory = values["workdir"]
  saved = workdirs.read(directory)
  if saved is None:
    raise UserError(
      f"config.init.workdir: {directory} holds no run ({workdirs.FILE} is not there); give the workdir of a run, or"
      " make one of a Hugging Face directory with python -m tools.convert_hf"
    )
  with found.unlocked(), found.ignore_type():
    own = {key: value for key, value in config.model.to_dict().items() if key in _OWN}
    theirs = {key: value for key, value in saved["model"].items() if key not in _OWN}
    if theirs["name"] == "electra" and own.get("head") not in (None, "discriminator"):
      theirs.pop("generator_size", None)
      theirs["name"] = "t5x_like.models.electra:Discriminator"
    changes = config.model.to_dict().get("design") or {}
    theirs["design"] = dict(theirs.get("design") or {}) | changes
    found.model = ConfigDict(theirs | own)
    _lengthen(found)
    found.init = ConfigDict(values | {"inherit": False})
    if found.task.get("store") is not None or "vocab_size" not in found.model:
      return found  # the store has its own, see `assembly`; images may have other classes
    if found.task.get("vocabulary") is None:
      found.task.vocabulary = f"{directory.rstrip('/')}/vocabulary"
    else:
      workdirs.check_vocabulary(directory, saved, vocabularies.load(found.task.vocabulary), found.task.vocabulary)
  return found


def _lengthen(config: ConfigDict) -> None:
  """Give a model with learned positions as many as the task's rows are long."""
  if "resolution" in config.model:
    return
  model_class = slots.find("config.model.name", config.model.name, t5x_like.models, "Model")
  position = config.model.design.to_dict().get("position", variant_of(model_class, config.model).design.position)
  longest = max(config.task.get(key) or 0 for key in ("length", "inputs_length", "targets_length"))
  if isinstance(position, dict) and position["name"] == "learned" and longest > position.get("length", 512):
    config.model.design.position = position | {"length": longest}


def _teacher(config: ConfigDict, wanted: bool, computed: dict[str, Any], platform: str | None) -> ConfigDict:
  """Return `config.teacher` with the teacher's model in it.

  Args:
    wanted: whether the objective has a teacher.
    computed: the student's dtype and layers, which the teacher shares.
  Raises:
    UserError: there is a teacher and the objective has none, or the other way round, or no such run.
  """
  if not wanted:
    if config.teacher:
      raise UserError(
        f"config.teacher: the objective {config.objective.name!r} has none; set --config.objective.name=distillation"
      )
    return ConfigDict()
  values = slots.fill("config.teacher", config.teacher, config_lib.Teacher)
  directory, model = values["workdir"], values["model"]
  saved = workdirs.read(directory) if values["inherit"] and directory not in (None, RANDOM) else None
  if saved is None and not model:
    raise UserError(
      f"config.teacher.workdir: found {directory!r}, expected the workdir of a run; train the teacher first, or make a"
      " workdir of a Hugging Face directory with python -m tools.convert_hf"
    )
  model = _model("teacher.model", ConfigDict((saved["model"] if saved else model) | computed), platform)
  for key in (key for key in _OFF if key in model):
    model[key] = 0.0
  return ConfigDict(values | {"model": model.to_dict(), "inherit": False})


def _evaluator(name: str, value: Any) -> ConfigDict:
  """Return an entry of `config.evals` with all its arguments."""
  where = f"config.evals.{name}"
  file_names.check("config.evals", name, "its results are in files of that name")
  evaluator, arguments = slots.split(where, value)
  evaluator = evaluator or name
  function = slots.find(f"{where}.name", evaluator, evals, "Evaluator")
  keys = {"name": evaluator} | arguments
  return _as_saved(slots.fill(where, keys, function, given=("setting",), also=(config_lib.Instance,)))
