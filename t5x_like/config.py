"""Define the keys of a run's config, and apply `--config.…` flags to them.

The top-level keys are the fields of `Recipe`. A *slot* (`model`, `task`, `optimizer`, …) is a dict
whose `name` picks an object and whose other keys are its arguments; see `t5x_like.slots`.
`t5x_like.recipes` loads configs from files in `configs/`.
"""

import dataclasses
import json
import sys
import typing
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Literal

from ml_collections import ConfigDict

from t5x_like import slots
from t5x_like.errors import UserError, did_you_mean, one_line


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The source of a task's token store, for recipes that name no `store`.

  Any task on running text takes these arguments.

  Attributes:
    source: the origin of the documents, `FORMAT:REST`; see `corpora/sources/__init__.py`.
    vocabulary: a vocabulary's directory, a SentencePiece model, a `tokenizer.json`, or `bytes`.
    text_field: the field that holds a document's text.
    data_dir: the directory of prepared TensorFlow datasets, which may still be empty.
    clean: comma-separated cleaning steps; see `tools.prepare_data`.
    validation_fraction: the share of documents left out of train if the source has no validation
      split.
    cache: the directory for the new store; None is `data.cache_directory()`.
  """

  source: str
  vocabulary: str
  text_field: str = "text"
  data_dir: str | None = None
  clean: str = ""
  validation_fraction: float = 0.01
  cache: str | None = None


_CORPUS_KEYS = tuple(field.name for field in dataclasses.fields(Corpus))


def change_task(task: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
  """Return a task's arguments with changes; a new `source` replaces a `store`, and vice versa."""
  arguments = dict(task)
  if changes.get("source") is not None:
    arguments.pop("store", None)
  elif changes.get("store") is not None and arguments.pop("source", None) is not None:
    arguments = {key: value for key, value in arguments.items() if key not in _CORPUS_KEYS}
  return arguments | dict(changes)


def split_corpus(
  where: str, arguments: Mapping[str, Any], task: Callable
) -> tuple[dict[str, Any], Corpus | None]:
  """Separate the arguments that describe a store's source from a task's other arguments.

  Returns:
    (the other arguments; the corpus if they name a source and the task takes a store, else None)

  Raises:
    UserError: both a source and a store are given, or an argument has the wrong type.
  """
  task_arguments = dict(arguments)
  parameters = slots.argument_names(task)
  if "store" not in parameters or "source" in parameters:
    return task_arguments, None
  if task_arguments.get("source") is None:
    return {key: value for key, value in task_arguments.items() if key != "source"}, None
  if task_arguments.pop("store", None) is not None:
    raise UserError(
      f"{where}: found both a store and a source, {task_arguments['source']!r}, expected one of "
      "the two"
    )
  corpus_arguments = {}
  for key in _CORPUS_KEYS:
    if key in task_arguments and key not in parameters:
      corpus_arguments[key] = task_arguments.pop(key)
  return task_arguments, Corpus(**slots.fill(where, corpus_arguments, Corpus))


def _slot(**values: Any) -> Any:
  return dataclasses.field(default_factory=lambda: dict(values))


@dataclasses.dataclass(frozen=True)
class Recipe:
  """The top-level keys of a recipe, with their types and defaults.

  Keys may be added, with defaults that leave existing recipes unchanged.
  """

  model: dict = _slot()  # name: a module of models/; other keys are arguments of its Model
  task: dict = _slot()  # name: a module of data/tasks/; other keys are fields of its Arguments
  # by name, a `Phase`: earlier steps on another length, batch size or corpus
  phases: dict = _slot()
  init: dict = _slot()  # an `Init`: another run to start from
  teacher: dict = _slot()  # a `Teacher`, for distillation
  tuning: dict = _slot(name="all")  # the parameters to train; a module of tunings/
  selection: dict = _slot()  # a `Selection`: the metric that stops training and picks a checkpoint
  train_split: str = "train"
  eval_split: str = "validation"
  objective: dict = _slot(name="encoder_decoder")  # name: a module of objectives/
  # examples per step, over all devices and all accumulation steps
  batch_size: slots.PositiveInt = 128
  accumulation_steps: slots.PositiveInt = 1
  total_steps: slots.PositiveInt | None = 1000  # None for `epochs` of the training examples
  # passes over the training examples, if `total_steps` is None
  epochs: slots.PositiveFloat = 3.0
  seed: int = 0
  # name: a module of training/optimizers; also `OptimizerMemory`
  optimizer: dict = _slot(name="adafactor")
  schedule: dict = _slot(name="rsqrt")  # name: a key of training/schedule.SCHEDULES
  clip_norm: slots.NonNegativeFloat = 0.0  # global gradient norm; 0 for no clipping
  # the response to NaN and spikes: stop, skip, rollback; see training/guard.py
  guard: dict = _slot(name="stop")
  mesh: dict = _slot(data=-1)  # length of each mesh axis; -1 for the remaining devices
  rules: dict = _slot()  # changes to parallel.rules.DEFAULT
  # by name, an `Instance` and its evaluator's arguments; see training/evaluation.py
  evals: dict = _slot(loss={})
  eval_every: slots.PositiveInt | None = 1000  # None for a tenth of the run
  log_every: slots.PositiveInt = 1
  trackers: dict = _slot(tensorboard={})  # by name, a tracker's arguments; see report/trackers/
  # a process without progress for this long exits; 0 for no limit
  step_timeout_seconds: slots.Seconds = 1800.0
  # every so many steps, compute one twice to detect faulty devices; 0 for never
  recompute_every: slots.NonNegativeInt = 0
  checkpoint: dict = _slot(every=1000, keep_last=3)  # a `Checkpoint`
  export: dict = _slot()  # an `Export`: models for other programs, written during the run
  peak_flops: slots.NonNegativeFloat = 0.0  # per device, for the MFU; 0 to look it up by device


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """`config.checkpoint`: when steps are saved, and which are kept.

  A step is saved every `every` steps, `minutes` after the last save, and at the end of the run.

  Attributes:
    every: None in a recipe is a tenth of the run.
    minutes: None never saves by the clock.
    keep_last: how many of the newest multiples of `every` are kept.
    keep_every: multiples of this are kept permanently; None keeps none of them.
    fresh_optimizer: take only parameters and step from a checkpoint with another optimizer's state.
    emergency: additional copies of the state near each host: the `EmergencyOptions` of
      `checkpoints/emergency.py`; {} for none.
  """

  every: slots.PositiveInt
  minutes: slots.PositiveFloat | None = 15
  keep_last: slots.PositiveInt = 3
  keep_every: slots.PositiveInt | None = None
  save_timeout_seconds: slots.PositiveInt = 1200
  fresh_optimizer: bool = False
  emergency: dict = _slot()


@dataclasses.dataclass(frozen=True)
class Export:
  """`config.export`: models for other programs, written during the run; {} for none.

  A step is exported when it is saved, in the background; see `training/export.py`.

  Attributes:
    every: a multiple of `checkpoint.every`; the last step is exported too. None is each of them.
    format: a module of `saved_model/exports`: `hf` is a Hugging Face directory, `gguf` a file for
      llama.cpp.
    dtype: the type of the tensors; None is float32 for `hf`, float16 for `gguf`, which also has
      `q8_0`.
    directory: a local directory; None is `exports` in the workdir. An export's name is its step.
  """

  every: slots.PositiveInt | None = None
  format: str = "hf"
  dtype: str | None = None
  directory: str | None = None


@dataclasses.dataclass(frozen=True)
class OptimizerMemory:
  """The keys of `config.optimizer` that every optimizer has, about its state and averages."""

  offload: bool = False  # keeps the optimizer's arrays in the hosts' memory
  ema: slots.Rate = 0.0  # decay of a moving average of the weights; 0 for none
  ema_warmup: bool = False  # shortens the average early in a run, as timm does
  # b1 of schedule-free learning, whose average replaces a decay; 0 for none
  schedule_free: slots.Rate = 0.0
  use_ema: bool = True  # evaluations, predictions, exports and other runs take the average


@dataclasses.dataclass(frozen=True)
class Init:
  """`config.init`: the run to start from; see `training/warm_start.py`.

  Attributes:
    step: its checkpoint; None is the newest.
    weights: whether to load its parameters; otherwise only its architecture and vocabulary are
      taken.
    inherit: whether to take the architecture and the vocabulary; False in a resolved config, which
      states them.
    layers: the number of a stack's first layers to load (Radford et al. 2018, figure 2); None loads
      all.
  """

  workdir: str
  step: int | None = None
  weights: bool = True
  inherit: bool = True
  layers: slots.NonNegativeInt | None = None


@dataclasses.dataclass(frozen=True)
class Teacher:
  """`config.teacher`: the run to distil; see `training/warm_start.py`.

  Attributes:
    workdir: the directory of the run; `random` is a teacher with random weights, for two steps of
      `:debug`.
    step: its checkpoint; None is the newest.
    model: its `config.model`, so that a recipe can be planned before there is a teacher.
    inherit: whether to take the model from the run; False in a resolved config, which states it.
  """

  workdir: str | None = None
  step: int | None = None
  model: dict = _slot()
  inherit: bool = True


@dataclasses.dataclass(frozen=True)
class Selection:
  """`config.selection`: the metric that stops training early and picks the best checkpoint.

  Attributes:
    metric: its name in `metrics.jsonl`.
    goal: whether higher or lower values are better.
    patience: training stops after this many evaluations without a better value; None never stops
      it.
  """

  metric: str
  goal: Literal["max", "min"] = "max"
  patience: slots.PositiveInt | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
  """An entry of `config.phases`.

  Attributes:
    until: the step before which it ends.
    task: changes to `config.task`.
    batch_size: examples per step; None is the run's.
  """

  until: slots.PositiveInt
  task: dict = _slot()
  batch_size: slots.PositiveInt | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instance:
  """The keys of an entry of `config.evals` that are no arguments of its evaluator.

  Attributes:
    name: the evaluator.
    task: changes to `config.task`.
    split: the split to evaluate on; None is `config.eval_split`.
  """

  name: str
  task: dict = _slot()
  split: str | None = None


def defaults() -> ConfigDict:
  """Return every key of a recipe, with its default value."""
  return ConfigDict(dataclasses.asdict(Recipe()))


def check_values(config: ConfigDict) -> None:
  """Check the types of all values, the names of evaluators, phases and trackers, and the phases.

  Raises:
    UserError: a value or name is invalid; names the key, the value and the expectation.
  """
  phases_in_order(config)
  for key, declared_type in typing.get_type_hints(Recipe, include_extras=True).items():
    slots.coerce(f"config.{key}", config[key], declared_type)
  for key in ("evals", "phases", "trackers"):
    for name in config[key]:
      slots.check_name(f"config.{key}", name)


def phases_in_order(config: ConfigDict) -> list[tuple[str, int, dict[str, Any], int]]:
  """Return (name, until, changes to the task, batch size) of every phase; the last is `main`.

  Raises:
    UserError: a phase is invalid, or ends where another does; names the key.
  """
  phases_by_end = {}
  for name, values in (slots.to_plain(config.phases) or {}).items():
    phase = Phase(**slots.fill(f"config.phases.{name}", values, Phase))
    if phase.until in phases_by_end:
      raise UserError(
        f"config.phases.{name}.until: found {phase.until} twice, expected a different step for "
        "every phase"
      )
    if "name" in phase.task:
      raise UserError(
        f"config.phases.{name}.task.name: a phase changes arguments of config.task, "
        "not which task it is"
      )
    batch_size = phase.batch_size or config.batch_size
    phases_by_end[phase.until] = (name, phase.until, phase.task, batch_size)
  phases = [phases_by_end[until] for until in sorted(phases_by_end)]
  return [*phases, ("main", sys.maxsize, {}, config.batch_size)]


def batch_key(phase: str) -> str:
  """Return the key of a phase's batch size, without `config.`."""
  return "batch_size" if phase == "main" else f"phases.{phase}.batch_size"


def restore(saved: dict[str, Any], overrides: Sequence[str], origin) -> ConfigDict:
  """Return a run's saved config with overrides applied.

  Unknown keys are dropped, and keys that were added since have their defaults.

  Raises:
    UserError: the model or the task is missing, or `apply_overrides` refuses.
  """
  default_config = defaults()
  added = {key: value for key, value in default_config.to_dict().items() if key not in saved}
  for key in ("model", "task"):
    if key in added:
      raise UserError(
        f"{origin}: key {key!r} is missing; the file is damaged, restore it from a backup"
      )
  if added:
    print(
      f"{origin}: written before these keys were added: {json.dumps(added)}; their defaults change "
      "nothing",
      flush=True,
    )
  try:
    config = ConfigDict(added | {key: saved[key] for key in default_config if key in saved})
  except (AttributeError, ValueError) as error:  # a key `__class__`, or with a dot
    raise UserError(
      f"{origin}: found a key that no config has ({one_line(error)}); restore it from a backup"
    ) from None
  return apply_overrides(config, overrides, origin)


def check_keys(config: Any, origin) -> None:
  """Raise UserError unless a config has exactly the keys of `defaults()`."""
  default_config = defaults()
  if not isinstance(config, ConfigDict) or not set(default_config) <= set(config):
    raise UserError(
      f"{origin}: get_config returns a {type(config).__name__}, expected the ConfigDict of "
      "config.defaults() with changes"
    )
  _check_tree(config, origin, "config", ())
  for key in config:
    if key not in default_config:
      raise UserError(f"{origin}: unknown key {key!r}{did_you_mean(key, default_config)}")


def _check_tree(value: Any, origin, name: str, ancestors: tuple[int, ...]) -> None:
  """Raise UserError if a value holds itself."""
  if id(value) in ancestors:
    raise UserError(f"{origin}: {name} contains itself, expected values without cycles")
  if isinstance(value, ConfigDict | dict):
    for key in value:
      _check_tree(value[key], origin, f"{name}.{key}", (*ancestors, id(value)))
  elif isinstance(value, list | tuple):
    for element in value:
      _check_tree(element, origin, name, (*ancestors, id(value)))


def apply_overrides(config: ConfigDict, overrides: Sequence[str], origin) -> ConfigDict:
  """Apply `KEY=VALUE` overrides to the config and return it.

  Names of slots are applied first, and the other keys from left to right.

  Raises:
    UserError: an unknown key, or a value of the wrong type.
  """
  check_keys(config, origin)
  for text in sorted(overrides, key=lambda text: not text.partition("=")[0].endswith(".name")):
    _override(config, text)
  check_values(config)
  return config


# Setting a key raises one of these if the key has a dot or is an attribute of dicts, such as
# `__class__`, or if a whole number is too large for a float.
_SETTING_ERRORS = (
  ValueError,
  OverflowError,
  AttributeError,
  KeyError,
  TypeError,
  RecursionError,
)


def _override(config: ConfigDict, text: str) -> None:
  """Apply one `KEY=VALUE` to the config."""
  key, equals, text_value = text.partition("=")
  if not equals:
    raise UserError(f"--config.{key}: found no value, expected --config.{key}=VALUE")
  node, last = find_node(config, key, f"--config.{key}")
  old = node.get(last)
  value = _parse_value(text_value)
  if isinstance(old, ConfigDict) and not isinstance(value, dict):
    raise UserError(
      f"--config.{key}: found {slots.format_value(text_value)}, expected one of its keys, "
      f"--config.{key}.KEY=VALUE"
    )
  if isinstance(old, str) and old != "auto" and not isinstance(value, (dict, list)):
    value = text_value  # a number or Boolean that replaces a string is a string
  with node.unlocked(), node.ignore_type():
    if last == "name" and key.count(".") == 1 and value != old:
      _keep_keys(node, {"name"})  # the old name's arguments do not apply
    try:
      if isinstance(old, float) and type(value) is int:
        value = float(value)
      node[last] = value
    except _SETTING_ERRORS as error:
      raise UserError(
        f"--config.{key}: found {slots.format_value(text_value)}, which is no value: "
        f"{one_line(error)}"
      ) from None
    if last in ("source", "store") and key.split(".")[0] in ("task", "phases", "evals"):
      other_arguments = {name: node[name] for name in node if name != last}
      _keep_keys(node, change_task(other_arguments, {last: value}))
    if key == "epochs":
      config.total_steps = None  # the last flag decides whether steps or epochs apply


def _keep_keys(node: ConfigDict, keys: Container[str]) -> None:
  """Delete all other keys of a dict."""
  for key in list(node):
    if key not in keys:
      del node[key]


def find_node(config: ConfigDict, key: str, flag: str) -> tuple[ConfigDict, str]:
  """Return the dict and last part of a dotted key.

  `model.design.windows` is (`config.model.design`, "windows"). Missing dicts inside a slot are
  created; unknown arguments are refused later, when the slot is filled.

  Raises:
    UserError: there is no such key; the message begins with `flag`.
  """
  *path, last = key.split(".")
  for part in (*path, last):
    if part.startswith("__"):
      raise UserError(f"{flag}: found the name {part!r}, which Python reserves; choose another")
  node = config
  where = "config"
  for part in path:
    if isinstance(node, ConfigDict) and node is not config and part not in node:
      with node.unlocked():
        node[part] = {}
    if not isinstance(node, ConfigDict) or part not in node:
      suggestion = did_you_mean(part, node.keys()) if isinstance(node, ConfigDict) else ""
      raise UserError(f"{flag}: {where} has no key {part!r}{suggestion}")
    node = node[part]
    where = f"{where}.{part}"
  if not isinstance(node, ConfigDict):
    raise UserError(f"{flag}: {where} is {node!r}, which has no keys")
  if last not in node and node is config:
    raise UserError(f"{flag}: {where} has no key {last!r}{_suggest_key(last, config)}")
  return node, last


def _suggest_key(key: str, config: ConfigDict) -> str:
  """Return a suggestion for an unknown top-level key: keys of slots with this name, if any."""
  candidates = []
  for slot, values in config.items():
    if isinstance(values, ConfigDict) and key in values:
      candidates.append(repr(f"{slot}.{key}"))
  if key == "learning_rate":
    candidates = ["'schedule.learning_rate'"]  # a recipe may leave it to its default
  if candidates:
    return f" (did you mean {' or '.join(candidates)}?)"
  return did_you_mean(key, config.keys())


def _parse_value(text: str) -> Any:
  """Parse a flag's value as JSON or a Python constant; any other text stays a string."""
  constants = {"True": True, "False": False, "None": None}
  if text in constants:
    return constants[text]
  try:
    return json.loads(text)
  except (ValueError, RecursionError):
    return text


def flatten(tree: dict[str, Any], *, keep_empty: bool = False) -> dict[str, Any]:
  """Flatten nested dicts: `{"model": {"name": "t5"}}` -> `{"model.name": "t5"}`.

  Args:
    keep_empty: whether an empty dict is a value; otherwise it is left out.
  """
  leaves = {}
  for key, value in tree.items():
    if isinstance(value, dict) and (value or not keep_empty):
      for inner_key, leaf in flatten(value, keep_empty=keep_empty).items():
        leaves[f"{key}.{inner_key}"] = leaf
    else:
      leaves[f"{key}"] = value
  return leaves
