"""Check that the tasks, the parts of a step and the vocabulary of a run fit each other.

Everything follows from the config alone, before a workdir is touched, a step is compiled or weights
are read. `parts` is a `training.build.Parts`.
"""

import math
import os
from collections.abc import Sequence

import jax
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like.data.features import Features
from t5x_like.errors import UserError
from t5x_like.nn.cores import describe_cores, record_cores
from t5x_like.objectives import OBJECTIVES
from t5x_like.training import phases
from t5x_like.training.class_count import check_class_count
from t5x_like.training.resolve import padded_vocab_size


def check_task(config: ConfigDict, parts, task) -> dict[str, str]:
  """Check that a task, the objective and the model fit each other, before anything is compiled.

  Args:
    task: a `data.task.Task`, or a stand-in with its name and features.
  Returns:
    The model's attention cores by log name, see `cores.describe_cores`; empty for models without
    attention.
  Raises:
    UserError: a feature or an output is missing; the message names choices that fit.
  """
  _check_features(config, parts, task)
  objective = parts.objective
  objective.check(parts.model, task.features)
  batch = parts.rules.abstract_batch(task.features, config.batch_size)
  with record_cores() as used_cores, parts.rules.activate():
    outputs = jax.eval_shape(
      lambda model, batch: model(objective.model_rows(batch)), parts.model, batch
    )
  for output, axes in objective.outputs.items():
    found_axes = f"{outputs[output].ndim} axes" if output in outputs else "none"
    if found_axes != f"{axes} axes":
      raise UserError(
        f"config.objective: {config.objective.name} needs the output {output!r} with {axes} axes, "
        f"found {found_axes} with model {config.model.name}; choose another --config.model.head, "
        "model or objective"
      )
  check_class_count(config, objective, outputs, task)
  return describe_cores(used_cores)


def _check_features(config: ConfigDict, parts, task) -> None:
  """Refuse a task without the features that the objective and the model need."""
  objective = parts.objective
  objective_name = config.objective.name
  model_name = config.model.name
  model_output = parts.model.REQUIRED_FEATURES[-1]
  task_makes = f"which task {config.task.name} does not make (it makes {', '.join(task.features)})"
  has_rows = _has_several_rows(task.features)
  fitting = _fitting_objectives(task.features, model_output, has_rows)
  choose = "choose another task"
  if fitting:
    choose += f" or the objective {' or '.join(fitting)}"
  missing = objective.missing_features(task.features)
  if missing:
    advice = objective.advice or choose
    raise UserError(
      f"config.objective: {objective_name} needs the feature {missing[0]!r}, {task_makes}; {advice}"
    )
  if objective.multi_row != has_rows:
    needed_rows = "several rows" if objective.multi_row else "one row"
    task_rows = "several rows" if has_rows else "one row"
    raise UserError(
      f"config.objective: {objective_name} needs examples of {needed_rows}, but task "
      f"{config.task.name} makes {task_rows} for each; {choose}"
    )
  for feature in parts.model.REQUIRED_FEATURES:
    if feature not in task.features:
      raise UserError(
        f"config.model: {model_name} needs the feature {feature!r}, {task_makes}; choose "
        "another model or task"
      )
  if model_output not in objective.model_inputs:
    raise UserError(
      f"config.objective: {objective_name} needs a model with outputs for "
      f"{' or '.join(objective.model_inputs)}, but {model_name}'s are for {model_output}; {choose}"
    )


def _has_several_rows(features: Features) -> bool:
  """Return whether an example has several rows of input tokens, such as a question's options."""
  for name, feature in features.items():
    if name.endswith("_input_tokens") and len(feature.shape) == 2:
      return True
  return False


def _fitting_objectives(features: Features, model_output: str, has_rows: bool) -> list[str]:
  """Return the names of the objectives that accept these features and a model's output."""
  names = []
  for name in OBJECTIVES.names():
    objective = OBJECTIVES.find("config.objective", name)
    accepts_model = model_output in objective.model_inputs and objective.multi_row == has_rows
    if accepts_model and not objective.missing_features(features):
      names.append(name)
  return names


def check_vocabulary(config: ConfigDict, vocabulary) -> None:
  """Check that the model's table has every id of a vocabulary; raise UserError."""
  if vocabulary.size > config.model.get("vocab_size", vocabulary.size):
    raise UserError(
      f"config.model.vocab_size: found {config.model.vocab_size}, but the vocabulary of the data "
      f"has {vocabulary.size}"
      f" ids; set --config.model.vocab_size={padded_vocab_size(vocabulary)}"
    )


def check_sizes(config: ConfigDict, parts, run_phases: Sequence[phases.Phase]) -> None:
  """Refuse a state or a batch that exceeds the memory of the devices or of this machine.

  A state that barely fits may still run out of memory in a step.

  Raises:
    UserError: the state or a batch is too large.
  """
  leaves = jax.tree.leaves((parts.state.params, parts.state.opt_state))
  device = parts.rules.mesh.devices.flat[0]
  memory = _device_memory(device)
  state_bytes = sum(_bytes(x.sharding.shard_shape(x.shape), x.dtype) for x in leaves)
  if device.platform == "cpu":
    state_bytes *= jax.local_device_count()
  if state_bytes > memory:
    raise UserError(
      f"config.model: its parameters and their optimizer take {_format_gib(state_bytes)}, and "
      f"there are {_format_gib(memory)} of memory; choose a smaller --config.model.variant or "
      "sizes, or more devices"
    )
  host_memory = _host_memory()
  for phase in run_phases:
    rows = phase.config.batch_size
    row_bytes = sum(_bytes(x.shape, x.dtype) for x in phase.task.features.values())
    batch_bytes = rows * row_bytes // jax.process_count()
    if batch_bytes > host_memory:
      raise UserError(
        f"config.{config_lib.batch_key(phase.name)}: found {rows}, but such a batch takes "
        f"{_format_gib(batch_bytes)} of the {_format_gib(host_memory)} of this machine; choose a "
        "smaller batch or shorter rows"
      )


def _device_memory(device) -> int:
  """Return the bytes of a device's memory, or of the host's if the device does not say."""
  stats = None
  if device.platform != "cpu":
    stats = device.memory_stats()
  return (stats or {}).get("bytes_limit") or _host_memory()


def _host_memory() -> int:
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _bytes(shape: tuple[int, ...], dtype) -> int:
  return math.prod(map(int, shape)) * jax.numpy.dtype(dtype).itemsize


def _format_gib(size: int) -> str:
  return f"{size / 2**30:,.1f} GiB"
