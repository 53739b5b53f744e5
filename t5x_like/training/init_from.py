"""Starting a run from the weights of another: `config.init = {"workdir": "runs/bert"}`.

The other run may be of another task and another head, ours or made by `tools.convert_hf`. It gives the architecture,
the vocabulary and every parameter that both models have; the recipe keeps its head, dropout and ways of computing. Only
heads and adapters are new, and adapters of the other run are merged. A longer table of positions repeats the other's
(Beltagy et al. 2020, section 5), a shorter one is its beginning; one for images is interpolated for another resolution.
What was loaded, resized, initialised and ignored is printed, and written to `init.json` in the workdir.
"""

import dataclasses
import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

import t5x_like.models
from t5x_like import slots
from t5x_like.architectures.build import variant_of
from t5x_like.errors import UserError, one_line
from t5x_like.files.places import place
from t5x_like.nn import params
from t5x_like.nn.linear import ADAPTERS
from t5x_like.runtime import process
from t5x_like.training import workdir as workdirs
from t5x_like.training.state import TrainState

FILE = "init.json"
# Keys of config.model that the recipe keeps.
_OWN = (
  "head",
  "scores",
  "dropout",
  "drop_path",
  "resolution",
  "window",
  "pretrained_windows",
  "dtype",
  "layers",
  "remat",
)
_NEW = ("head/", "scores/")


def settings(*, workdir: str, step: int | None = None, weights: bool = True, inherit: bool = True):
  """The keys of `config.init`: the other run, its checkpoint (None is the newest), whether its weights are taken, and
  whether the architecture and the vocabulary still are to be; a resolved config states them, so `inherit` is False
  there."""


def inherited(config: ConfigDict) -> ConfigDict:
  """A config with the architecture and vocabulary of the run that it starts from.

  Raises:
    UserError: there is no such run, or the config names another vocabulary.
  """
  if not config.init:
    return config
  values = slots.fill("config.init", config.init, settings)
  if not values["inherit"]:
    return config
  directory = values["workdir"]
  saved = workdirs.read(directory)
  if saved is None:
    raise UserError(
      f"config.init.workdir: {directory} holds no run ({workdirs.FILE} is not there); give the workdir of a run, or"
      " make one of a Hugging Face directory with python -m tools.convert_hf"
    )
  found = ConfigDict(config.to_dict())
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
    vocabulary = str(place(directory) / "vocabulary")
    if found.task.get("store") is not None or "vocab_size" not in found.model:
      return found  # the store has its own, see `check_vocabulary`; images may have other classes
    if found.task.get("vocabulary") is None:
      found.task.vocabulary = vocabulary
    else:
      from t5x_like import vocabularies

      _same(vocabularies.load(found.task.vocabulary), found.task.vocabulary, directory)
  return found


def _lengthen(config: ConfigDict) -> None:
  """Gives a model with learned positions as many as the task's rows are long."""
  if "resolution" in config.model:
    return
  model_class = slots.find("config.model.name", config.model.name, t5x_like.models, "Model")
  position = config.model.design.to_dict().get("position", variant_of(model_class, config.model).design.position)
  longest = max(config.task.get(key) or 0 for key in ("length", "inputs_length", "targets_length"))
  if isinstance(position, dict) and position["name"] == "learned" and longest > position.get("length", 512):
    config.model.design.position = position | {"length": longest}


def check_vocabulary(config: ConfigDict, vocabulary) -> None:
  """Refuses data of another vocabulary than that of the run that this one starts from; classes of images may differ."""
  if config.init and ("resolution" not in config.model or "vocab_size" in config.model):
    _same(vocabulary, "that of the data", config.init.workdir)


def _same(vocabulary, ours: str, directory: str) -> None:
  from t5x_like import vocabularies

  theirs = str(place(directory) / "vocabulary")
  if vocabulary.fingerprint != vocabularies.load(theirs).fingerprint:
    raise UserError(
      f"config.task.vocabulary: {ours} is not the vocabulary that {directory} was trained with; leave the key out, and"
      f" {theirs} is used, or prepare the store with it"
    )


@dataclasses.dataclass
class Report:
  """What became of every tensor, by name."""

  workdir: str
  step: int
  loaded: list[str]
  resized: dict[str, str]
  initialised: list[str]
  ignored: list[str]

  def say(self) -> None:
    total = len(self.loaded) + len(self.initialised)
    lines = [f"weights of {self.workdir}, step {self.step}: {len(self.loaded)} of {total} tensors loaded"]
    resized = [f"{name} ({how})" for name, how in self.resized.items()]
    for word, names in (("resized", resized), ("initialised", self.initialised), ("ignored", self.ignored)):
      lines.append(f"  {word + ':':12} {', '.join(names) or 'none'}")
    process.say("\n".join(lines))


def load(config: ConfigDict, parts, state: TrainState) -> tuple[TrainState, dict[str, Any]]:
  """A fresh state with the parameters of the other run in it.

  Args:
    config: resolved, with `init`.
    parts: of this run (`assembly.Parts`).
  Returns:
    (state, the report as a dict)
  Raises:
    UserError: no such checkpoint, or a tensor outside of the head is missing there or has another shape.
  """
  from t5x_like.training import assembly

  directory = config.init.workdir
  step, arrays, their_model = weights(directory, config.init.step, config)
  made, report = dict(state.params), Report(directory, step, [], {}, [], sorted({*arrays} - {*state.params}))
  for name, fresh in state.params.items():
    if config.teacher and name.startswith(assembly.REFERENCE):
      continue  # it has its own
    old = arrays.get(name.removeprefix(assembly.REFERENCE))
    new = name.startswith(_NEW) or name.endswith(ADAPTERS)
    if old is None or (new and old.shape != fresh.shape):
      if not new:
        raise UserError(f"config.init.workdir: {directory} has no tensor {name}; only heads may be new")
      report.initialised.append(name)
      report.ignored += [name] if old is not None else []
      continue
    report.loaded.append(name)
    if old.shape != fresh.shape:
      rows = next((sizes for sizes in zip(old.shape, fresh.shape) if sizes[0] != sizes[1]), (0, 0))
      report.resized[name] = f"{rows[0]} to {rows[1]} rows"
      old = _resized(name.removeprefix(assembly.REFERENCE), old, fresh, (parts.model, their_model), directory)
    copies = name.startswith(assembly.REFERENCE)  # the step gives back the memory of each array of its state once
    made[name] = jax.device_put(jnp.copy(old) if copies else old, fresh.sharding)
  report.say()
  return dataclasses.replace(state, params=made), dataclasses.asdict(report)


def weights(directory: str, step: int | None, config: ConfigDict) -> tuple[int, dict[str, jax.Array], Any]:
  """The parameters of a finished run, its adapters merged, on the mesh of another run's config: (step, arrays by name,
  abstract model). `step` None is its newest checkpoint; UserError if there is none."""
  from t5x_like.training import assembly, trained

  overrides = [f"{key}={json.dumps(config[key].to_dict())}" for key in ("mesh", "rules")]
  overrides += [f"batch_size={config.batch_size}", "accumulation_steps=1", f"model.layers={config.model.layers}"]
  theirs, _ = trained.open_config(directory, None, overrides)
  parts = assembly.build(assembly.resolve(theirs))
  step, arrays = trained.restore_params(directory, parts, step)
  return step, params.arrays(trained.finished(params.with_arrays(parts.model, arrays))), parts.model


def _resized(name: str, old: jax.Array, fresh: jax.Array, models: tuple[Any, Any], directory: str) -> jax.Array:
  """A table of positions for this model, the first, from that of the other."""
  module, other = (functools.reduce(getattr, name.split("/")[:-1], model) for model in models)
  try:
    made = module.resized(old, other) if hasattr(module, "resized") and old.shape[-1] == fresh.shape[-1] else old
  except ValueError as error:
    raise UserError(
      f"config.init.workdir: tensor {name} of {directory} cannot be resized: {one_line(error)}"
    ) from error
  if made.shape != fresh.shape:
    raise UserError(
      f"config.init.workdir: tensor {name} has shape {list(old.shape)} in {directory}, {list(fresh.shape)} here"
    )
  return made
