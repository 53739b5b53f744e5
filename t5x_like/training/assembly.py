"""Assemble a run: its tasks, parts and evaluators, checked against each other, the data and this
machine.

All of it follows from the config alone, and comes before a workdir is touched, a step is compiled
or weights are read.
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
  """All of a run but its state and its workdir.

  Attributes:
    config: resolved, with the special ids of the data's vocabulary and the number of its classes.
    phases: with their tasks, in order.
    cores: the model's attention cores by place.
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
  """Make the objects of a run, and check that they fit.

  Args:
    config: resolved.
    workdir: the directory or address of the run, whose imported weights, if any, fix the
      vocabulary.
  Raises:
    UserError: naming the key, the value and the expectation.
  """
  phase_list = phases.build_phases(
    config, lambda given: process.build_task("task", given.pop("name"), config.train_split, given)
  )
  vocabulary = phase_list[-1].task.vocabulary
  if config.init or config.teacher or workdirs.read_imported(workdir):
    from t5x_like.training import warm_start

    warm_start.check_sources(config, vocabulary, workdir)
  config = fill_class_count(with_tokens(config, vocabulary), len(phase_list[-1].task.classes))
  parts = build_parts(config)
  check_vocabulary(config, vocabulary)
  for phase in phase_list:
    cores = check_task(phase.config, parts, phase.task)
  check_sizes(config, parts, phase_list)
  evaluation = Evaluation(config, parts.model, parts.objective, parts.rules)
  if config.selection:
    selection.check_selection(config, evaluation.metrics())
  return Assembly(config, phase_list, parts, cores, evaluation)


def check_task(config: ConfigDict, parts: Parts, task) -> dict[str, str]:
  """Check that a task, the objective and the model fit each other, before anything is compiled.

  Args:
    task: a `data.task.Task`, or a stand-in with its name and features.
  Returns:
    The model's attention cores by place, see `cores.describe_cores`; none for models without attention.
  Raises:
    UserError: naming the missing feature or output, and a choice that fits.
  """
  objective = parts.objective
  name = config.objective.name
  model = config.model.name
  makes = f"which task {config.task.name} does not make (it makes {', '.join(task.features)})"
  several = any(
    len(x.shape) == 2 for feature, x in task.features.items() if feature.endswith("_input_tokens")
  )
  fitting = [
    other
    for other in slots.names(t5x_like.objectives)
    if not (
      found := slots.find("config.objective", other, t5x_like.objectives, "Objective")
    ).missing_features(task.features)
    and parts.model.REQUIRED_FEATURES[-1] in found.model_inputs
    and found.multi_row == several
  ]
  choose = (
    f"choose another task or the objective {' or '.join(fitting)}"
    if fitting
    else ("choose another task")
  )
  if lacking := objective.missing_features(task.features):
    advice = objective.advice or choose
    raise UserError(f"config.objective: {name} needs the feature {lacking[0]!r}, {makes}; {advice}")
  if objective.multi_row != several:
    rows = ("one row", "several rows")
    raise UserError(
      f"config.objective: {name} needs examples of {rows[objective.multi_row]}, but task "
      f"{config.task.name} makes {rows[several]} for each; {choose}"
    )
  for feature in parts.model.REQUIRED_FEATURES:
    if feature not in task.features:
      raise UserError(
        f"config.model: {model} needs the feature {feature!r}, {makes}; choose "
        "another model or task"
      )
  if parts.model.REQUIRED_FEATURES[-1] not in objective.model_inputs:
    raise UserError(
      f"config.objective: {name} needs a model with outputs for {' or '.join(objective.model_inputs)}, "
      f"but {model}'s are for {parts.model.REQUIRED_FEATURES[-1]}; {choose}"
    )
  objective.check(parts.model, task.features)
  with record_cores() as used, parts.rules.activate():
    outputs = jax.eval_shape(
      lambda m, b: m(objective.model_rows(b)),
      parts.model,
      abstract_batch(config, parts.rules, task),
    )
  for output, axes in objective.outputs.items():
    found = f"{outputs[output].ndim} axes" if output in outputs else "none"
    if found != f"{axes} axes":
      raise UserError(
        f"config.objective: {name} needs the output {output!r} with {axes} axes, found {found} "
        f"with model {model}; choose another --config.model.head, model or objective"
      )
  check_class_count(config, objective, outputs, task)
  return describe_cores(used)


def check_vocabulary(config: ConfigDict, vocabulary) -> None:
  """Check that the model's table has every id of a vocabulary; raise UserError."""
  if vocabulary.size > config.model.get("vocab_size", vocabulary.size):
    raise UserError(
      f"config.model.vocab_size: found {config.model.vocab_size}, but the vocabulary of the data "
      f"has {vocabulary.size}"
      f" ids; set --config.model.vocab_size={padded_vocab_size(vocabulary)}"
    )


def with_tokens(config: ConfigDict, vocabulary) -> ConfigDict:
  """Return the config with the special ids of the data's vocabulary, where they differ from the
  variant's.

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
  recipe_tokens = config.model.tokens.to_dict()
  slots.replace_fields("config.model.tokens", variant_tokens, recipe_tokens)
  required = ("pad",) if len(sides) == 1 else tuple(vocabulary_ids)
  for key in required:
    if key in recipe_tokens and recipe_tokens[key] != vocabulary_ids[key]:
      raise UserError(
        f"config.model.tokens.{key}: found {recipe_tokens[key]}, but the vocabulary of the data has "
        f"{vocabulary_ids[key]}; leave it out: special ids come from the vocabulary"
      )
  ids = {
    key: i for key, i in vocabulary_ids.items() if key in required or i is not None
  } | recipe_tokens
  changed = ConfigDict(config.to_dict())
  changed.model.tokens = ConfigDict(
    {key: i for key, i in ids.items() if i != getattr(variant_tokens, key)}
  )
  return changed


def check_sizes(config: ConfigDict, parts: Parts, run_phases: Sequence[phases.Phase]) -> None:
  """Refuse a state or a batch that no memory here holds; one that barely fits may still run out in
  a step.

  Raises:
    UserError: naming the object, its size, and the memory.
  """
  leaves = jax.tree.leaves((parts.state.params, parts.state.opt_state))
  device = parts.rules.mesh.devices.flat[0]
  memory = _device_memory(device)
  need = sum(_bytes(x.sharding.shard_shape(x.shape), x.dtype) for x in leaves)
  if device.platform == "cpu":
    need *= jax.local_device_count()
  if need > memory:
    raise UserError(
      f"config.model: its parameters and their optimizer take {format_gib(need)}, and there are "
      f"{format_gib(memory)} of memory; choose a smaller --config.model.variant or sizes, or more "
      "devices"
    )
  host = _host_memory()
  for phase in run_phases:
    rows = phase.config.batch_size
    features = phase.task.features.values()
    need = rows * sum(_bytes(x.shape, x.dtype) for x in features) // jax.process_count()
    if need > host:
      raise UserError(
        f"config.{config_lib.batch_key(phase.name)}: found {rows}, but such a batch takes "
        f"{format_gib(need)} of the {format_gib(host)} of this machine; choose a smaller batch or shorter "
        "rows"
      )


def _device_memory(device) -> int:
  """Return the bytes of a device, or of the host if it does not tell."""
  stats = (device.memory_stats() or {}) if device.platform != "cpu" else {}
  return stats.get("bytes_limit") or _host_memory()


def _host_memory() -> int:
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _bytes(shape: tuple[int, ...], dtype) -> int:
  return math.prod(map(int, shape)) * jax.numpy.dtype(dtype).itemsize


def format_gib(size: int) -> str:
  return f"{size / 2**30:,.1f} GiB"
