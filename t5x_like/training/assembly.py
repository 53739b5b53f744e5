"""Assemble the tasks, parts and evaluators of a run, and check that they fit each other.

Everything follows from the config alone, before a workdir is touched, a step is compiled or weights
are read.
"""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

import t5x_like.models
import t5x_like.objectives
from t5x_like import config as config_lib
from t5x_like import slots, vocabularies
from t5x_like.data.features import Features
from t5x_like.errors import UserError
from t5x_like.nn.cores import describe_cores, record_cores
from t5x_like.runtime import process
from t5x_like.training import phases, selection
from t5x_like.training import workdir as workdirs
from t5x_like.training.build import Parts, abstract_batch, build_parts
from t5x_like.training.class_count import check_class_count, fill_class_count
from t5x_like.training.evaluation import Evaluation
from t5x_like.training.resolve import padded_vocab_size


@dataclasses.dataclass(frozen=True)
class Assembly:
  """The parts of a run, without its state and its workdir.

  Attributes:
    config: the resolved config, with the special ids and the number of classes of the data.
    phases: the phases with their tasks, in order.
    parts: the parts of a step.
    cores: the model's attention cores by place.
    evaluation: the evaluators of `config.evals`.
  """

  config: ConfigDict
  phases: list[phases.Phase]
  parts: Parts
  cores: dict[str, str]
  evaluation: Evaluation

  @property
  def task(self):
    """The task that the run ends on."""
    return self.phases[-1].task

  @property
  def identity(self) -> dict[str, Any]:
    """The content of `config.json`."""
    *early, main = self.phases
    return workdirs.build_identity(
      self.config, main.task, {phase.name: phase.task for phase in early}
    )


def assemble(config: ConfigDict, workdir: str) -> Assembly:
  """Build the objects of a run, and check that they fit.

  Args:
    config: resolved.
    workdir: the directory or address of the run, whose imported weights, if any, fix the
      vocabulary.
  Raises:
    UserError: naming the key, the value and the expectation.
  """

  def build_task(arguments: dict[str, Any]):
    return process.build_task("task", arguments.pop("name"), config.train_split, arguments)

  run_phases = phases.build_phases(config, build_task)
  main_task = run_phases[-1].task
  vocabulary = main_task.vocabulary
  if config.init or config.teacher or workdirs.read_imported(workdir):
    from t5x_like.training import warm_start

    warm_start.check_sources(config, vocabulary, workdir)
  config = fill_class_count(with_tokens(config, vocabulary), len(main_task.classes))
  parts = build_parts(config)
  check_vocabulary(config, vocabulary)
  for phase in run_phases:
    cores = check_task(phase.config, parts, phase.task)
  check_sizes(config, parts, run_phases)
  evaluation = Evaluation(config, parts.model, parts.objective, parts.rules)
  if config.selection:
    selection.check_selection(config, evaluation.metrics())
  return Assembly(config, run_phases, parts, cores, evaluation)


def check_task(config: ConfigDict, parts: Parts, task) -> dict[str, str]:
  """Check that a task, the objective and the model fit each other, before anything is compiled.

  Args:
    task: a `data.task.Task`, or a stand-in with its name and features.
  Returns:
    The model's attention cores by place, see `cores.describe_cores`; empty for models without
    attention.
  Raises:
    UserError: naming the missing feature or output, and a choice that fits.
  """
  _check_features(config, parts, task)
  objective = parts.objective
  objective.check(parts.model, task.features)
  batch = abstract_batch(config, parts.rules, task)
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


def _check_features(config: ConfigDict, parts: Parts, task) -> None:
  """Check that a task has the features that the objective and the model need; raise UserError."""
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
  """Return whether an example has several rows of input tokens, as of the options of a question."""
  for name, feature in features.items():
    if name.endswith("_input_tokens") and len(feature.shape) == 2:
      return True
  return False


def _fitting_objectives(features: Features, model_output: str, has_rows: bool) -> list[str]:
  """Return the names of the objectives that accept these features and a model's output."""
  names = []
  for name in slots.names(t5x_like.objectives):
    objective = slots.find("config.objective", name, t5x_like.objectives, "Objective")
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


def with_tokens(config: ConfigDict, vocabulary) -> ConfigDict:
  """Return the config with the special ids of the vocabulary that differ from the variant's.

  Raises:
    UserError: the config has ids by which the model would read the data wrongly.
  """
  if "tokens" not in config.model:
    return config
  model_class = slots.find("config.model.name", config.model.name, t5x_like.models, "Model")
  sides = [feature.partition("_")[0] for feature in model_class.REQUIRED_FEATURES]
  vocabulary_ids = {
    "pad": vocabulary.pad_id,
    "start": vocabulary.decoder_start_id,
    "eos": vocabulary.eos_id,
  }
  if sides == ["decoder"]:
    vocabulary_ids["start"] = vocabularies.start_id(vocabulary)
  elif sides == ["encoder"]:
    vocabulary_ids |= {"start": vocabulary.cls_id, "eos": vocabulary.sep_id}
  variant_tokens = slots.resolve_variant(model_class, config.model).tokens
  recipe_ids = config.model.tokens.to_dict()
  slots.replace_fields("config.model.tokens", variant_tokens, recipe_ids)
  required = ("pad",) if len(sides) == 1 else tuple(vocabulary_ids)
  for key in required:
    if key in recipe_ids and recipe_ids[key] != vocabulary_ids[key]:
      raise UserError(
        f"config.model.tokens.{key}: found {recipe_ids[key]}, but the vocabulary of the data has "
        f"{vocabulary_ids[key]}; leave it out: special ids come from the vocabulary"
      )
  ids = {}
  for key, token_id in vocabulary_ids.items():
    if key in required or token_id is not None:
      ids[key] = token_id
  ids |= recipe_ids
  changed_ids = {key: i for key, i in ids.items() if i != getattr(variant_tokens, key)}
  completed = ConfigDict(config.to_dict())
  completed.model.tokens = ConfigDict(changed_ids)
  return completed


def check_sizes(config: ConfigDict, parts: Parts, run_phases: Sequence[phases.Phase]) -> None:
  """Refuse a state or a batch that no memory here holds.

  A state that barely fits may still run out of memory in a step.

  Raises:
    UserError: naming the object, its size, and the memory.
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
