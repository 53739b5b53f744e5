"""Resolve a recipe: check every slot against its function or class, and fill in defaults.

`resolve` opens no data and no weights. It reads at most the `config.json` of a run that the recipe
names, and the vocabulary that sizes the token table.
"""

from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like import slots, trust, vocabularies
from t5x_like.abstract_model import build_tuning, resolve_model
from t5x_like.data import open_values
from t5x_like.data.task import TASKS
from t5x_like.errors import UserError
from t5x_like.evals import EVALUATORS
from t5x_like.files import file_names
from t5x_like.files.paths import as_path
from t5x_like.objectives import OBJECTIVES
from t5x_like.slots import Slot
from t5x_like.store.reader import missing_store_message
from t5x_like.training.guard import GUARDS
from t5x_like.training.optimizer import OPTIMIZERS
from t5x_like.training.schedule import SCHEDULES
from t5x_like.training.workdir import read_imported
from t5x_like.tunings import TUNINGS

# The schedules that end with the run by default.
_TO_TOTAL = [name for name, f in SCHEDULES.items() if "total_steps" in slots.argument_names(f)]
# The slots of a recipe, except the model, the task, evaluators and trackers.
SLOTS = {
  "objective": OBJECTIVES,
  "optimizer": OPTIMIZERS._replace(records=(config_lib.OptimizerMemory,)),
  "schedule": Slot(SCHEDULES),
  "guard": Slot(GUARDS),
  "tuning": TUNINGS,
}
TRACKERS = Slot("t5x_like.report.trackers", "Tracker")


def resolve(
  config: ConfigDict, platform: str | None = None, workdir: str | None = None
) -> ConfigDict:
  """Return a recipe's config with checked slots and all defaults.

  `auto`, or no value, becomes bfloat16 on accelerators and float32 on CPU for `model.dtype`, and
  scan and loop for `model.layers`. A `model.vocab_size` of None becomes the published size, and
  `auto` the size of the task's vocabulary, rounded up to a multiple of 128.

  Args:
    config: the config of a recipe.
    platform: the platform to train on; None is this process's.
    workdir: the directory of the run; imported weights in it fix the model.
  Raises:
    UserError: a key or a value is wrong.
  """
  if workdir is not None:
    config = adopt_imported_model(config, workdir)
  if config.init:
    from t5x_like.training import warm_start

    config = warm_start.inherit_model(config)
  else:
    config = ConfigDict(config.to_dict())
  config = open_values.with_steps(config)
  resolved = ConfigDict(config.to_dict())
  if config.model.get("vocab_size") == "auto":
    with config.model.ignore_type():
      config.model.vocab_size = padded_vocab_size(load_task_vocabulary(config))
  resolved.model = resolve_model("model", config.model, platform)
  if config.schedule.get("name") in _TO_TOTAL:
    config.schedule = ConfigDict({"total_steps": config.total_steps} | config.schedule.to_dict())
  for name, slot in SLOTS.items():
    resolved[name] = ConfigDict(slots.to_json(slot.complete(f"config.{name}", config[name])))
  computed = {key: resolved.model[key] for key in ("dtype", "layers") if key in resolved.model}
  objective = OBJECTIVES.find("config.objective.name", resolved.objective.name)
  if objective.teacher:
    from t5x_like.training import warm_start

    resolved.teacher = warm_start.resolve_teacher(config, computed, platform)
  elif config.teacher:
    raise UserError(
      f"config.teacher: the objective {config.objective.name!r} has none; set "
      "--config.objective.name=distillation"
    )
  resolved.checkpoint = ConfigDict(
    slots.fill("config.checkpoint", config.checkpoint, config_lib.Checkpoint)
  )
  if values := resolved.checkpoint.emergency:
    from t5x_like.checkpoints import emergency

    resolved.checkpoint.emergency = emergency.check_options(values)
  if config.export:
    from t5x_like.training import export

    resolved.export = export.check_options(config, resolved.checkpoint.every)
  if config.selection:
    resolved.selection = ConfigDict(
      slots.fill("config.selection", config.selection, config_lib.Selection)
    )
  for key, slot in (("evals", EVALUATORS), ("trackers", TRACKERS)):
    entries = {
      name: slot.complete(f"config.{key}.{name}", entry, name)
      for name, entry in config[key].items()
    }
    resolved[key] = ConfigDict(slots.to_json(entries))
  return build_tuning(resolved.tuning).resolve(resolved)


def adopt_imported_model(config: ConfigDict, workdir: str) -> ConfigDict:
  """Return the config with the model of the imported weights in a workdir, if there are any."""
  imported = read_imported(workdir)
  if imported is None:
    return config
  from t5x_like.training import warm_start

  return warm_start.with_model_keys(config, imported["model"], workdir)


def load_task_vocabulary(config: ConfigDict) -> vocabularies.Vocabulary:
  """Return the vocabulary that `config.task` names, itself or through its store.

  Raises:
    UserError: the vocabulary cannot be read, or the task names none.
  """
  values = config.task.to_dict()
  while "parts" in values:  # a mixture, of one vocabulary
    shared_name, shared = slots.name_and_arguments("config.task.shared", values.get("shared") or {})
    parts = list(slots.name_and_arguments("config.task.parts", values["parts"])[1].values())
    name, part_values = slots.name_and_arguments("config.task.parts", parts[0] if parts else {})
    values = shared | part_values | {"name": name or shared_name}
  task = TASKS.find("config.task.name", values.get("name"))
  values = slots.defaults(task) | values
  store = values.get("store")
  vocabulary = values.get("vocabulary")
  if vocabulary is not None and (store is None or values.get("source") is not None):
    return vocabularies.load(vocabulary)
  if store is None:
    raise UserError(
      "config.model.vocab_size: found 'auto', but config.task names neither a vocabulary nor a "
      "store; name one, or give the size"
    )
  if store == "builtin":
    return vocabularies.load("bytes")
  trust.check_location("config.task.store", store)
  file_names.check_name("config.train_split", config.train_split, "choose another split")
  directory = f"{store}/{config.train_split}"
  # A web server has files, but no directories, so first look for a file.
  manifest = as_path(f"{directory}/vocabulary/{vocabularies.MANIFEST}")
  if not (manifest.is_file() or manifest.parent.is_dir()):
    if not as_path(directory).is_dir():
      raise UserError(missing_store_message(directory))
    raise UserError(
      f"{directory}: no token store (no vocabulary in it): make one with python -m "
      f"tools.prepare_data --source=... --vocabulary=... --output={store}"
    )
  return vocabularies.load(f"{directory}/vocabulary")


def padded_vocab_size(vocabulary: vocabularies.Vocabulary) -> int:
  """Return the number of rows of a token table: the vocabulary's size, rounded up to 128s."""
  return -(-vocabulary.size // 128) * 128
