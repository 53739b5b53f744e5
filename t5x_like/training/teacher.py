"""The teacher of a distilled run: `config.teacher = {"workdir": "runs/vit_l16"}`.

It is a finished run of any family, or a workdir that `tools.convert_hf` made of published weights. Its parameters stand
in the state beside those that are trained, as those of DPO's reference do: split over the same mesh, saved, restored,
and never changed. A resumed run takes them from its own checkpoint.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from t5x_like import slots
from t5x_like.data.images.pictures import MEAN, STD
from t5x_like.errors import UserError
from t5x_like.runtime import process
from t5x_like.training import workdir as workdirs
from t5x_like.training.state import TrainState

RANDOM = "random"
_OFF = ("dropout", "drop_path")


def settings(*, workdir: str | None = None, step: int | None = None, model: dict = {}, inherit: bool = True):  # noqa: B006
  """The keys of `config.teacher`: its run, the checkpoint (None is the newest), and its `config.model`, which is the
  run's; a recipe gives one so that it can be planned before there is a teacher. A resolved config states the model, so
  `inherit` is False there. The workdir `random` is none at all, for two steps of `:debug`."""


def resolved(config: ConfigDict, wanted: bool, fill: Callable[[dict[str, Any]], ConfigDict]) -> dict[str, Any]:
  """`config.teacher` with the teacher's model in it.

  Args:
    wanted: whether the objective has a teacher.
    fill: checks a `config.model` and fills in its defaults.
  Raises:
    UserError: there is a teacher and the objective has none, or the other way round, or no such run.
  """
  if not wanted:
    if config.teacher:
      raise UserError(
        f"config.teacher: the objective {config.objective.name!r} has none; set --config.objective.name=distillation"
      )
    return {}
  values = slots.fill("config.teacher", config.teacher, settings)
  directory, model = values["workdir"], values["model"]
  saved = workdirs.read(directory) if values["inherit"] and directory not in (None, RANDOM) else None
  if saved is None and not model:
    raise UserError(
      f"config.teacher.workdir: found {directory!r}, expected the workdir of a run; train the teacher first, or make a"
      " workdir of a Hugging Face directory with python -m tools.convert_hf"
    )
  model = fill(saved["model"] if saved else model)
  for key in (key for key in _OFF if key in model):
    model[key] = 0.0
  return values | {"model": model.to_dict(), "inherit": False}


def check(config: ConfigDict, vocabulary) -> None:
  """Refuses a teacher of other classes, another vocabulary or other normalised pixels than the data's. A run that goes
  on needs none."""
  directory = config.teacher.get("workdir")
  saved = workdirs.read(directory) if directory not in (None, RANDOM) else None
  if saved is None:
    return
  from t5x_like import vocabularies

  theirs = vocabularies.load(f"{directory}/vocabulary")
  if theirs.fingerprint != vocabulary.fingerprint:
    names = getattr(theirs, "names", None) and getattr(vocabulary, "names", None)
    told = f"{len(theirs.names)} classes, {_short(theirs.names)}" if names else "another vocabulary"
    ours = f"the {vocabulary.size} of the data, {_short(vocabulary.names)}" if names else "that of the data"
    raise UserError(f"config.teacher.workdir: {directory} was trained with {told}, expected {ours}")
  if "resolution" not in config.model or not saved["features"]:
    return
  pixels, ours = _normalisation(saved["task"]), _normalisation(config.task)
  if pixels != ours:
    raise UserError(
      f"config.task: found {ours}, but the teacher in {directory} was trained with {pixels}; set them alike"
    )


def _normalisation(task: Mapping[str, Any]) -> str:
  """The mean and the deviation of pixels; one number where all channels have the same."""
  given = ((name, task.get(name, usual)) for name, usual in (("mean", MEAN), ("std", STD)))
  return ", ".join(f"{name} {list(dict.fromkeys(x)) if len(set(x)) == 1 else list(x)}" for name, x in given)


def _short(names) -> str:
  return ", ".join(names[:4]) + ", …" * (len(names) > 4)


def load(config: ConfigDict, parts, state: TrainState) -> TrainState:
  """A fresh state with the teacher's parameters in it.

  Args:
    config: resolved.
    parts: of this run (`assembly.Parts`).
  Raises:
    UserError: no such checkpoint, or its model is not `config.teacher.model`.
  """
  from t5x_like.training import assembly, init_from

  directory = config.teacher.workdir
  if directory == RANDOM:
    process.say("teacher: random weights, from which nothing can be learned; set --config.teacher.workdir")
    return state
  if directory is None or workdirs.read(directory) is None:
    raise UserError(f"config.teacher.workdir: found {directory!r}, which holds no run; give the workdir of the teacher")
  step, arrays, _ = init_from.weights(directory, config.teacher.step, config)
  made = dict(state.params)
  for name in [name for name in made if name.startswith(assembly.REFERENCE)]:
    found, fresh = arrays.get(name.removeprefix(assembly.REFERENCE)), made[name]
    if found is None or found.shape != fresh.shape:
      shape = "none" if found is None else list(found.shape)
      raise UserError(f"config.teacher.model: {name} has shape {list(fresh.shape)}, found {shape} in {directory}")
    made[name] = jax.device_put(found, fresh.sharding)
  process.say(f"teacher: weights of {directory}, step {step}")
  return dataclasses.replace(state, params=made)
