"""Build the tasks, parts and evaluators of a run from its resolved config.

Nothing is allocated, and no workdir is touched.
"""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import optax
from flax import nnx
from ml_collections import ConfigDict

import t5x_like.models
from t5x_like import config as config_lib
from t5x_like import slots, tunings, vocabularies
from t5x_like.abstract_model import (
  build_model,
  build_objective,
  build_tuning,
  model_constructor,
)
from t5x_like.errors import UserError
from t5x_like.nn import params, remat
from t5x_like.parallel.rules import Rules
from t5x_like.runtime import process
from t5x_like.training import checks, phases, selection
from t5x_like.training import workdir as workdirs
from t5x_like.training.class_count import fill_class_count
from t5x_like.training.ema import with_average
from t5x_like.training.evaluation import Evaluation
from t5x_like.training.guard import GUARDS, Guard, skip_refused_updates
from t5x_like.training.optimizer import (
  build_optimizer,
  update_layerwise,
  with_sign_steps,
  with_upper_bounds,
)
from t5x_like.training.resolve import TRACKERS, resolve
from t5x_like.training.schedule import SCHEDULES, Schedule
from t5x_like.training.state import REFERENCE, TrainState, abstract_state


@dataclasses.dataclass(frozen=True)
class Parts:
  """The parts of a train step.

  Attributes:
    model: the abstract model.
    make_model: `key -> model`; makes a model with arrays.
    objective: `(model, batch, key) -> (loss sum, sums)`.
    optimizer: the optimizer of the trained parameters.
    schedule: the learning rate by step.
    rules: the mesh and the sharding rules.
    state: the abstract state, with shardings.
    guard: the policy for updates with NaN or a spike.
    trained: names of the trained parameters; None if all are trained.
  """

  model: nnx.Module
  make_model: Callable[[jax.Array], nnx.Module]
  objective: Callable
  optimizer: optax.GradientTransformation
  schedule: Schedule
  rules: Rules
  state: TrainState
  guard: Guard
  trained: frozenset[str] | None = None


@dataclasses.dataclass(frozen=True)
class Assembly:
  """The parts of a run, without its state and its workdir.

  Attributes:
    config: the resolved config, with the special ids and the number of classes of the data.
    phases: the phases with their tasks, in order.
    parts: the parts of a step.
    cores: the model's attention cores by log name.
    evaluation: the evaluators of `config.evals`.
    trackers: the console and the trackers of `config.trackers`, not yet open.
  """

  config: ConfigDict
  phases: list[phases.Phase]
  parts: Parts
  cores: dict[str, str]
  evaluation: Evaluation
  trackers: list

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
    config: the config of a recipe, not yet resolved.
    workdir: the directory or address of the run, whose imported weights, if any, fix model and
      vocabulary.
  Raises:
    UserError: a value is wrong, or parts do not fit.
  """
  config = resolve(config, workdir=workdir)
  trackers = [
    TRACKERS.make(f"config.trackers.{name}", values)
    for name, values in {"console": "console", **config.trackers}.items()
  ]
  run_phases = build_phases(config, process.build_task)
  main_task = run_phases[-1].task
  vocabulary = main_task.vocabulary
  if config.init or config.teacher or workdirs.read_imported(workdir):
    from t5x_like.training import warm_start

    warm_start.check_sources(config, vocabulary, workdir)
  config = fill_class_count(with_tokens(config, vocabulary), len(main_task.classes))
  parts = build_parts(config)
  checks.check_vocabulary(config, vocabulary)
  for phase in run_phases:
    cores = checks.check_task(phase.config, parts, phase.task)
  checks.check_sizes(config, parts, run_phases)
  evaluation = Evaluation(config, parts.model, parts.objective, parts.rules)
  if config.selection:
    selection.check_selection(config, evaluation.metrics())
  return Assembly(config, run_phases, parts, cores, evaluation, trackers)


def build_phases(config: ConfigDict, build_task: Callable) -> list[phases.Phase]:
  """Return the phases in order; the run's own task is last and has no end.

  Args:
    build_task: builds a task as `data.task.build_at` does.
  Raises:
    UserError: naming an invalid argument in `config.task`, or in the phase that changes it.
  """

  def build(slot: str, changes: dict[str, Any]):
    arguments = config_lib.change_task(config.task.to_dict(), changes)
    return build_task(slot, arguments.pop("name", None), config.train_split, arguments)

  # Built first, so that an error in `config.task` does not name a phase.
  main_task = build("task", {})
  run_phases = []
  start = 0
  for name, until, changes, batch_size in config_lib.phases_in_order(config):
    phase_config = copy.deepcopy(config)
    phase_config.batch_size = batch_size
    task = main_task
    if changes:
      task = build(f"phases.{name}.task", changes)
    run_phases.append(phases.Phase(name, start, until, task, phase_config))
    start = until
  return run_phases


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
  config = ConfigDict(config.to_dict())
  config.model.tokens = ConfigDict(changed_ids)
  return config


def build_parts(config: ConfigDict, devices: list[jax.Device] | None = None) -> Parts:
  """Build all parts but the data, without allocating anything.

  Args:
    config: the resolved config.
    devices: the devices of the mesh; None takes all.
  Raises:
    UserError: the mesh does not fit the devices, or a parameter or a phase's batch does not divide
      over it.
  """
  rules = Rules.from_config(config, devices)
  for name, _, _, batch_size in config_lib.phases_in_order(config):
    rules.check_batch(batch_size, config.accumulation_steps, config_lib.batch_key(name))
  model = build_model(config)
  named = params.named_params(model)
  if remat.build_remat(config.model.get("remat", "none")).offload:
    from t5x_like.training import offload

    offload.check_host_memory("config.model.remat", rules.mesh)
  schedule = slots.make("config.schedule", config.schedule, SCHEDULES)
  optimizer, trained = _optimizer(config, schedule, named)
  objective = build_objective(config)
  if objective.uses_batch_negatives and config.accumulation_steps > 1:
    raise UserError(
      f"config.accumulation_steps: found {config.accumulation_steps}, but {config.objective.name} "
      "compares all rows of a batch with one another; set it to 1 and "
      f"--config.objective.chunks={config.accumulation_steps}"
    )
  guard = slots.make("config.guard", config.guard, GUARDS)
  _check_guard_reach(config, guard)
  state = abstract_state(model, optimizer, rules)
  if guard.skips:
    optimizer = skip_refused_updates(optimizer)
  if config.optimizer.get("offload", False):
    from t5x_like.training import offload

    optimizer, state = offload.offload_optimizer_state(optimizer, state, rules.mesh)
  make_model = model_constructor(config)
  return Parts(model, make_model, objective, optimizer, schedule, rules, state, guard, trained)


def _optimizer(config: ConfigDict, schedule: Schedule, named: dict):
  """Return (the optimizer of the trained parameters, their names or None for all).

  Args:
    named: the model's parameters by name.
  """
  arguments = {
    key: value
    for key, value in config.optimizer.to_dict().items()
    if not hasattr(config_lib.OptimizerMemory, key)
  }
  optimizer = build_optimizer(schedule=schedule, **arguments)
  optimizer = update_layerwise(optimizer, {name: p.axes for name, p in named.items()})
  if config.clip_norm:
    optimizer = optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)
  tuning = build_tuning(config.tuning)
  upper_bounds = {name: p.most for name, p in named.items() if hasattr(p, "most")}
  optimizer = with_upper_bounds(tuning.scale_rates(optimizer, named), upper_bounds)
  fixed_steps = {name: p.step for name, p in named.items() if hasattr(p, "step")}
  if fixed_steps:
    optimizer = with_sign_steps(optimizer, fixed_steps)
  optimizer = with_average(optimizer, schedule, config.optimizer)
  trained = []
  for name in tuning.trained_names(named):
    if not name.startswith(REFERENCE) and not hasattr(named[name], "fixed"):
      trained.append(name)
  if len(trained) == len(named):
    return optimizer, None
  return tunings.freeze_others(optimizer, trained), frozenset(trained)


def _check_guard_reach(config: ConfigDict, guard: Guard) -> None:
  """Refuse a guard that goes further back than the oldest checkpoint that is kept."""
  max_steps_back = (config.checkpoint.keep_last - 1) * config.checkpoint.every
  if guard.steps > max_steps_back:
    raise UserError(
      f"config.guard.steps: found {guard.steps}, expected at most {max_steps_back}, "
      "(checkpoint.keep_last - 1) * checkpoint.every, the oldest step that is kept; raise "
      "--config.checkpoint.keep_last"
    )
