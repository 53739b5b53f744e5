"""Load the weights of other runs into a new run's state: `config.init` and `config.teacher`.

Either is the workdir of a run, ours or made by `tools.convert_hf`. The run of `init` may have another task and another
head. It gives the architecture, the vocabulary and every parameter that both models have; the recipe keeps its head,
dropout and ways of computing. Only heads and adapters are new, and the other run's adapters are merged. A longer table
of positions repeats the other's (Beltagy et al. 2020, section 5), a shorter one is its beginning; one for images is
interpolated.

A teacher may be of any family. Its parameters stand in the state beside the trained ones, as DPO's reference does:
split over the same mesh, saved, restored and never changed. A resumed run takes them from its own checkpoint.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from t5x_like.errors import UserError, one_line
from t5x_like.nn import params
from t5x_like.nn.linear import ADAPTERS
from t5x_like.runtime import process
from t5x_like.training import trained
from t5x_like.training import workdir as workdirs
from t5x_like.training.build import REFERENCE, Parts
from t5x_like.training.resolve import RANDOM
from t5x_like.training.state import TrainState

_NEW = ("head/", "scores/")


def load(config: ConfigDict, parts: Parts, state: TrainState) -> tuple[TrainState, dict[str, Any] | None]:
  """Return a new run's state with the weights that the config asks for, and the content of `init.json`, if any.

  Args:
    config: resolved.
    parts: the parts of this run.
    state: fresh.
  Raises:
    UserError: no such checkpoint; a tensor outside the head is missing or has another shape; the teacher's model is not
      `config.teacher.model`.
  """
  report = None
  if config.init.get("weights"):
    state, report = _started(config, parts, state)
  return _taught(config, parts, state) if config.teacher else state, report


def _started(config: ConfigDict, parts: Parts, state: TrainState) -> tuple[TrainState, dict[str, Any]]:
  directory = config.init.workdir
  step, arrays, their_model = _of_run(directory, config.init.step, parts)
  made, loaded, resized, initialised, ignored = dict(state.params), [], {}, [], sorted({*arrays} - {*state.params})
  for name, fresh in state.params.items():
    if config.teacher and name.startswith(REFERENCE):
      continue  # the teacher's, loaded next
    old = arrays.get(name.removeprefix(REFERENCE))
    new = name.startswith(_NEW) or name.endswith(ADAPTERS)
    if old is None or (new and old.shape != fresh.shape):
      if not new:
        raise UserError(f"config.init.workdir: {directory} has no tensor {name}; only heads may be new")
      initialised.append(name)
      ignored += [name] if old is not None else []
      continue
    loaded.append(name)
    if old.shape != fresh.shape:
      rows = next((sizes for sizes in zip(old.shape, fresh.shape) if sizes[0] != sizes[1]), (0, 0))
      resized[name] = f"{rows[0]} to {rows[1]} rows"
      old = _resized(name.removeprefix(REFERENCE), old, fresh, (parts.model, their_model), directory)
    copies = name.startswith(REFERENCE)  # the step gives back the memory of each array of its state once
    made[name] = jax.device_put(jnp.copy(old) if copies else old, fresh.sharding)
  process.say(f"weights of {directory}, step {step}: {len(loaded)} of {len(loaded) + len(initialised)} tensors loaded")
  lists = {"resized": [f"{n} ({how})" for n, how in resized.items()], "initialised": initialised, "ignored": ignored}
  for word, names in lists.items():
    process.say(f"  {word + ':':12} {', '.join(names) or 'none'}")
  report = {"workdir": directory, "step": step, "loaded": loaded, "resized": resized}
  return dataclasses.replace(state, params=made), report | {"initialised": initialised, "ignored": ignored}


def _taught(config: ConfigDict, parts: Parts, state: TrainState) -> TrainState:
  directory = config.teacher.workdir
  if directory == RANDOM:
    process.say("teacher: random weights, from which nothing can be learned; set --config.teacher.workdir")
    return state
  if directory is None or workdirs.read(directory) is None:
    raise UserError(f"config.teacher.workdir: found {directory!r}, which holds no run; give the workdir of the teacher")
  step, arrays, _ = _of_run(directory, config.teacher.step, parts)
  made = dict(state.params)
  for name in [name for name in made if name.startswith(REFERENCE)]:
    found, fresh = arrays.get(name.removeprefix(REFERENCE)), made[name]
    if found is None or found.shape != fresh.shape:
      shape = "none" if found is None else list(found.shape)
      raise UserError(f"config.teacher.model: {name} has shape {list(fresh.shape)}, found {shape} in {directory}")
    made[name] = jax.device_put(found, fresh.sharding)
  process.say(f"teacher: weights of {directory}, step {step}")
  return dataclasses.replace(state, params=made)


def _of_run(directory: str, step: int | None, parts: Parts) -> tuple[int, dict[str, jax.Array], Any]:
  """Return (step, parameters by name, abstract model) of another run, its adapters merged, on the mesh of this one."""
  run = trained.open_saved(directory, parts.rules)
  found, arrays = run.restore(step)
  return found, params.arrays(trained.finished(params.with_arrays(run.model, arrays))), run.model


def _resized(name: str, old: jax.Array, fresh: jax.Array, models: tuple[Any, Any], directory: str) -> jax.Array:
  """Return a table of positions for this model, the first of `models`, made from the other's."""
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
