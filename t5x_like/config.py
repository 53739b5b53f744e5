"""The config of a run: its keys, and how `--config.…` flags change them.

Top-level keys are those of `defaults()` and no others. A *slot* (`model`, `task`, `optimizer`, …) is a dict whose
`name` picks an object and whose other keys are its arguments; see `t5x_like.slots`. `t5x_like.recipes` loads configs
from files in `configs/`.
"""

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from t5x_like import slots
from t5x_like.errors import UserError, did_you_mean, one_line


@dataclasses.dataclass(frozen=True)
class Corpus:
  """What a task's token store is made from, where the recipe names no `store`: arguments of any task on running text.

  Attributes:
    source: where documents come from, `FORMAT:REST`; see `data/sources/__init__.py`.
    vocabulary: a vocabulary's directory, a SentencePiece model, a `tokenizer.json`, or `bytes`.
    text_field: the field that holds a document's text.
    data_dir: where TensorFlow datasets are or will be prepared.
    clean: steps of cleaning with commas, see `tools.prepare_data`.
    validation_fraction: of the documents, held out of train where the source has no validation split.
    cache: where the store is made; None is what `data/cache.py` says.
  """

  source: str
  vocabulary: str
  text_field: str = "text"
  data_dir: str | None = None
  clean: str = ""
  validation_fraction: float = 0.01
  cache: str | None = None


_CORPUS = tuple(field.name for field in dataclasses.fields(Corpus))


def changed(task: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
  """A task's arguments with some changed; a `source` takes the place of a `store`, and a store that of a source."""
  kept = dict(task)
  if changes.get("source") is not None:
    kept.pop("store", None)
  elif changes.get("store") is not None and kept.pop("source", None) is not None:
    kept = {key: value for key, value in kept.items() if key not in _CORPUS}
  return kept | dict(changes)


_LATER = (
  "guard",
  "step_timeout_seconds",
  "recompute_every",
  "init",
  "teacher",
  "tuning",
  "selection",
)  # keys that the configs of older runs lack


def store_from(where: str, arguments: Mapping[str, Any], task: Callable) -> tuple[dict[str, Any], dict[str, Any]]:
  """Takes what a store is made from out of a task's arguments.

  Returns:
    (the other arguments; {"store": a `Corpus`} where they name a source and the task takes a store, else {})

  Raises:
    UserError: a source and a store, or an argument of the wrong type.
  """
  rest, takes = dict(arguments), inspect.signature(task).parameters
  if "store" not in takes or "source" in takes:
    return rest, {}
  if rest.get("source") is None:
    return {key: value for key, value in rest.items() if key != "source"}, {}
  if rest.pop("store", None) is not None:
    raise UserError(f"{where}: found both a store and a source, {rest['source']!r}, expected one of the two")
  asked = {key: rest.pop(key) for key in _CORPUS if key in rest and key not in takes}
  return rest, {"store": Corpus(**slots.fill(where, asked, Corpus))}


def defaults() -> ConfigDict:
  """Every key of a recipe, with its default value."""
  config = ConfigDict()
  config.model = {}  # name: a module of models/; the rest are arguments of its Model
  config.task = {}  # name: a module of data/tasks/; the rest are arguments of its task()
  config.phases = {}  # other arguments of the task or batch sizes up to a step; see training/phases.py
  config.init = {}  # another run to start from, {"workdir": …}; see training/init_from.py
  config.teacher = {}  # the run that a distilled one learns from, {"workdir": …}; see training/teacher.py
  config.tuning = {"name": "all"}  # which parameters are trained; see training/tuning.py
  config.selection = {}  # the metric that stops training and picks a checkpoint; see training/selection.py
  config.train_split = "train"
  config.eval_split = "validation"
  config.objective = {"name": "encoder_decoder"}
  config.batch_size = 128  # examples in one step, over all devices and all accumulation steps
  config.accumulation_steps = 1
  config.total_steps = 1000
  config.seed = 0
  config.optimizer = {"name": "adafactor"}
  config.schedule = {"name": "rsqrt"}
  config.clip_norm = 0.0  # global gradient norm; 0 for no clipping
  config.guard = {"name": "stop"}  # what to do about NaN and spikes: stop, skip, rollback; see training/guard.py
  config.mesh = {"data": -1}  # length of each mesh axis; -1 for the remaining devices
  config.rules = {}  # changes to parallel.rules.DEFAULT
  config.evals = {"loss": {}}  # evaluators by name, {"valid": {"name": "loss", …}}; see training/evaluation.py
  config.eval_every = 1000
  config.log_every = 1
  config.step_timeout_seconds = 1800.0  # a process in which nothing ends for so long ends itself; 0 for no limit
  config.recompute_every = 0  # steps between two that are computed twice, to find faulty devices; 0 for none
  config.checkpoint = {"every": 1000, "keep_last": 3}
  config.peak_flops = 0.0  # per device, for the MFU; 0 to look it up by device
  return config


KINDS = {  # of the keys that are no slots, beyond the type of their default
  "batch_size": slots.Positive,
  "accumulation_steps": slots.Positive,
  "total_steps": slots.Positive,
  "eval_every": slots.Positive,
  "log_every": slots.Positive,
  "recompute_every": slots.Count,
  "clip_norm": slots.NotNegative,
  "step_timeout_seconds": slots.Seconds,
  "peak_flops": slots.NotNegative,
}


def check_values(config: ConfigDict) -> None:
  """Refuse values of the wrong type, and names of evaluators, phases and parts that no file or metric can have.

  Raises:
    UserError: naming the key, what was found and what was expected.
  """
  for key, default in defaults().items():
    kind = dict if isinstance(default, ConfigDict) else KINDS.get(key, type(default))
    slots.typed(f"config.{key}", config[key], kind)
  for key in ("evals", "phases"):
    for name in config[key]:
      slots.check_name(f"config.{key}", name)


def restored(saved: dict[str, Any], overrides: Sequence[str], origin) -> ConfigDict:
  """The config a run saved, with overrides applied; unknown keys are dropped.

  Raises:
    UserError: a key is missing, or as `override`.
  """
  known = defaults()
  saved = {key: known.to_dict()[key] for key in _LATER} | saved
  missing = [key for key in known if key not in saved]
  if missing:
    raise UserError(f"{origin}: key {missing[0]!r} is missing; it was written by another version or is damaged")
  return override(ConfigDict({key: saved[key] for key in known}), overrides, origin)


def check_keys(config: Any, origin) -> None:
  """Refuses a config without exactly the keys of `defaults()`.

  Raises:
    UserError: naming the key.
  """
  known = defaults()
  if not isinstance(config, ConfigDict) or not set(known) <= set(config):
    raise UserError(f"{origin}: get_config gives a {type(config).__name__}, expected all of config.defaults(), changed")
  for key in config:
    if key not in known:
      raise UserError(f"{origin}: unknown key {key!r}{did_you_mean(key, known)}")


def override(config: ConfigDict, overrides: Sequence[str], origin) -> ConfigDict:
  """The config with `KEY=VALUE` overrides applied, names of slots first, otherwise left to right.

  Raises:
    UserError: an unknown key, or a value of the wrong type.
  """
  check_keys(config, origin)
  for text in sorted(overrides, key=lambda text: not text.partition("=")[0].endswith(".name")):
    _override(config, text)
  check_values(config)
  return config


def _override(config: ConfigDict, text: str) -> None:
  key, equals, word = text.partition("=")
  if not equals:
    raise UserError(f"--config.{key}: found no value, expected --config.{key}=VALUE")
  node, last = place(config, key, f"--config.{key}")
  old, value = node.get(last), _value(word)
  if isinstance(old, ConfigDict) and not isinstance(value, dict):
    raise UserError(f"--config.{key}: found {slots.shown(word)}, expected one of its keys, --config.{key}.KEY=VALUE")
  if isinstance(old, str) and old != "auto" and not isinstance(value, (dict, list)):
    value = word  # a number or Boolean that replaces a string is a string
  with node.unlocked(), node.ignore_type():
    if last == "name" and key.count(".") == 1 and value != old:  # the old name's arguments do not apply
      for argument in [k for k in node if k != "name"]:
        del node[argument]
    try:
      node[last] = float(value) if isinstance(old, float) and type(value) is int else value
    except (ValueError, OverflowError) as error:  # a key with a dot; a whole number beyond any float
      raise UserError(f"--config.{key}: found {slots.shown(word)}, which is no value: {one_line(error)}") from None
    if last in ("source", "store") and key.split(".")[0] in ("task", "phases", "evals"):
      kept = changed({name: node[name] for name in node if name != last}, {last: value})
      for name in [name for name in node if name not in kept]:
        del node[name]


def place(config: ConfigDict, key: str, says: str) -> tuple[ConfigDict, str]:
  """The dict and last part of a dotted key: `model.design.windows` -> (`config.model.design`, "windows").

  Missing dicts inside a slot are created, because unknown arguments are refused when the slot is filled.

  Raises:
    UserError: no such key; the message begins with `says`.
  """
  *path, last = key.split(".")
  node, where = config, "config"
  for part in path:
    if isinstance(node, ConfigDict) and node is not config and part not in node:
      with node.unlocked():
        node[part] = {}
    if not isinstance(node, ConfigDict) or part not in node:
      raise UserError(f"{says}: {where} has no key {part!r}{_near(part, node)}")
    node, where = node[part], f"{where}.{part}"
  if not isinstance(node, ConfigDict):
    raise UserError(f"{says}: {where} is {node!r}, which has no keys")
  if last not in node and node is config:
    raise UserError(f"{says}: {where} has no key {last!r}{_near(last, node)}")
  return node, last


def _near(word: str, node) -> str:
  return did_you_mean(word, node.keys()) if isinstance(node, ConfigDict) else ""


def _value(text: str) -> Any:
  words = {"True": True, "False": False, "None": None}
  if text in words:
    return words[text]
  try:
    return json.loads(text)
  except (ValueError, RecursionError):
    return text


def to_json(config: ConfigDict) -> str:
  return json.dumps(config.to_dict(), indent=2, sort_keys=True)


def digest(config: ConfigDict) -> str:
  """A hash of the whole config: 16 hexadecimal digits."""
  return hashlib.sha256(to_json(config).encode()).hexdigest()[:16]


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
  """`{"model": {"name": "t5"}}` -> `{"model.name": "t5"}`."""
  out = {}
  for key, value in tree.items():
    if isinstance(value, dict):
      out.update(flat(value, f"{prefix}{key}."))
    else:
      out[f"{prefix}{key}"] = value
  return out
