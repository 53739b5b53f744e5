"""Shrink a recipe to its laptop forms: `:tiny` learns within minutes, `:debug` runs two steps.

Both keep a recipe's objective, data format, optimizer and shape of schedule, and shrink its model,
lengths, batch and steps. Every recipe has both. A recipe that needs further changes lists them in a
table `LAPTOP`, keyed like flags:

  LAPTOP = {"schedule.learning_rate": 1e-3, "model.design.windows": [16]}
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

import t5x_like.models
from t5x_like import slots
from t5x_like.config import change_task, find_node
from t5x_like.data import tasks
from t5x_like.errors import UserError

# The design of a tiny encoder, which predicts one token in seven from its neighbours. Learned
# positions need thousands of steps before they identify neighbours; rotary positions identify them
# from the start. BERT's standard deviation of 0.02 suits its width of 768; a smaller width needs a
# larger one.
_ENCODER = {"init_stddev": 0.06, "position": "rope"}
_STEPS = 400
_WARMUP = 50
_LENGTH = 128
_RESOLUTION = 32
_DEBUG_LENGTH = 64


def shrink(config: ConfigDict, form: str, changes: Mapping[str, Any] = {}) -> None:
  """Change a full-size recipe to one of its laptop forms, in place.

  `:tiny` is 400 steps on rows of 128 tokens, or images of 32 x 32 pixels, from the recipe's corpus
  or `--config.task.store`; the loss should end well below `unigram_entropy`. `:debug` is two steps
  of 8 rows of 64 tokens, or 8 images, from a built-in corpus, one step in each phase.

  Args:
    config: the recipe at full size.
    form: one of `recipes.FORMS`.
    changes: the recipe's `LAPTOP`, which overrides everything but the corpus of `:debug`.
  Raises:
    UserError: a changed key does not exist, or the family has no tiny size.
  """
  debug = form == "debug"
  if "model.variant" not in changes:
    config.model.variant = tiny_variant(config.model.get("name"), config.model.get("variant"))
  _shrink_model(config, debug)
  _shorten(config.task, _DEBUG_LENGTH if debug else _LENGTH)
  if config.phases:
    until = 1 if debug else _STEPS * 9 // 10
    length = (_DEBUG_LENGTH if debug else _LENGTH) // 2
    config.phases = {"short": {"until": until, "task": {"length": length}}}
  _shrink_schedule(config.schedule, debug)
  config.batch_size = 8 if debug else 32
  config.accumulation_steps = 1
  config.total_steps = 2 if debug else _STEPS
  config.eval_every = 2 if debug else 100
  _shrink_evaluators(config, debug)
  config.checkpoint = {"every": 2 if debug else 100, "minutes": 0.2, "keep_last": 2}
  config.mesh = {"data": -1}
  if _task_member(config.task.name, "FEW_TARGETS"):
    with config.model.unlocked():
      config.model.design = dict(_ENCODER)
    config.batch_size = 8 if debug else 64  # only one token in seven is predicted
  for key, value in changes.items():
    node, last = find_node(config, key, f"LAPTOP[{key!r}]")
    with node.unlocked(), node.ignore_type():
      node[last] = value
  if debug:
    _use_built_in_data(config)


def drop_span_infilling(config: ConfigDict) -> None:
  """Remove evaluators of spans, in place, if the task of the flags has no sentinels."""
  task = config.task.get("shared", config.task)
  if _task_member(task.get("name"), "SENTINELS"):
    return
  for name, values in list(config.evals.items()):
    if values.get("name", name) == "span_infilling":
      del config.evals[name]


def _shrink_model(config: ConfigDict, debug: bool) -> None:
  """Change the model's arguments that depend on its size, in place, to suit a tiny variant."""
  has_images = "resolution" in config.task
  with config.model.unlocked(), config.model.ignore_type():
    config.model.remat = "none"
    if has_images:
      if not _task_member(config.task.name, "ANY_RESOLUTION"):
        config.model.resolution = _RESOLUTION
      for key in ("patch", "drop_path"):
        if key in config.model:
          del config.model[key]
    if not has_images or "vocabulary" in config.task:
      config.model.vocab_size = "auto"
    if debug:
      config.model.layers = "scan"  # compiles faster
    else:
      config.model.dropout = 0.0  # a few hundred steps do not overfit


def _shrink_schedule(schedule: ConfigDict, debug: bool) -> None:
  if schedule.name == "rsqrt":
    schedule.warmup_steps = 1_000
    return
  schedule.learning_rate = 2e-3
  if "warmup_steps" in schedule:
    schedule.warmup_steps = 1 if debug else _WARMUP


def _shrink_evaluators(config: ConfigDict, debug: bool) -> None:
  """Limit the examples of each evaluator, and let it use the run's corpus in all phases."""
  has_built_in_data = bool(_task_member(config.task.name, "BUILT_IN"))
  for name, values in config.evals.items():
    is_loss = values.get("name", name) == "loss"
    if debug:
      values.max_examples = 16 if is_loss else 8
    elif not has_built_in_data:
      values.max_examples = 512 if is_loss else 32
    if "task" in values:
      del values.task


def tiny_variant(family: str, variant: str) -> str:
  """Return the tiny size of a family, such as `t5-v1_1-tiny` for `mt5-base`.

  Of the variants with "tiny" in their name, it is the one whose design has the most fields in
  common with the design of `variant`.

  Raises:
    UserError: there is no such family or variant, or the family has no tiny size.
  """
  variants = slots.find("config.model.name", family, t5x_like.models, "Model").VARIANTS
  full_design = _design_fields(slots.find("config.model.variant", variant, variants))
  tiny_names = [name for name in variants if "tiny" in name.split("-")]
  if not tiny_names:
    raise UserError(
      f"config.model.name: {family!r} has no tiny size; give one in the recipe, "
      "LAPTOP['model.variant']"
    )

  def equal_fields(name: str) -> int:
    design = _design_fields(variants[name])
    return sum(full_design[field] == value for field, value in design.items())

  return max(tiny_names, key=equal_fields)


def _design_fields(variant) -> dict[str, Any]:
  fields = dataclasses.fields(variant.design)
  return {field.name: getattr(variant.design, field.name) for field in fields}


def _task_member(task: str | None, member: str) -> Any:
  """Return a member of a task's module that describes its laptop form; None without such a member.

  The members are `tiny`, `BUILT_IN`, `FEW_TARGETS`, `SENTINELS` and `ANY_RESOLUTION`.
  """
  if task not in slots.names(tasks):
    return None
  return getattr(slots.module(task, tasks), member, None)


def _shorten(task: ConfigDict, length: int) -> None:
  """Shrink the images or the rows of a task."""
  if "resolution" in task:
    task.resolution = _RESOLUTION
    return
  arguments = task.get("shared", task)
  tiny = _task_member(task.name, "tiny")
  if tiny:
    arguments.update(tiny(length))
  elif "inputs_length" in arguments:
    arguments.inputs_length = length
    if "targets_length" in arguments:
      del arguments.targets_length  # follows from the inputs
  else:
    arguments.length = length


def _use_built_in_data(config: ConfigDict) -> None:
  """Switch to the built-in corpus, which needs no data, and to a random teacher.

  Evaluators of labels use the built-in labels and their own defaults.
  """
  task = config.task
  if "parts" in task and _task_member(task.get("shared", {}).get("name"), "BUILT_IN"):
    task.parts = {label: {} for label in list(task.parts)[:2]}
    task = task.shared
    _shorten(task, _DEBUG_LENGTH)  # again: the parts' task has other keys than the mixture
  if config.teacher:
    config.teacher = _random_teacher(config)
  built_in = _task_member(task.name, "BUILT_IN")
  if built_in:
    _use_built_in_examples(config, task, built_in)
  else:
    store = task.get("shared", task)
    arguments = change_task(store.to_dict(), {"store": "builtin"})
    for key in list(store):
      if key not in arguments:
        del store[key]
    store.store = "builtin"


def _random_teacher(config: ConfigDict) -> dict[str, Any]:
  """Return a `config.teacher` of tiny size with random weights, for the student's inputs."""
  model = (config.teacher.get("model") or config.model).to_dict()
  model["variant"] = tiny_variant(model["name"], model["variant"])
  for key in ("resolution", "channels", "vocab_size"):
    if key in config.model:
      model[key] = config.model[key]
  return {"workdir": "random", "model": model}


def _use_built_in_examples(
  config: ConfigDict, task: ConfigDict, built_in: Mapping[str, Any]
) -> None:
  """Switch a task to its built-in examples, and the model and evaluators to their two labels."""
  has_images = "resolution" in task
  for key in ("pair", "label_field", "placeholder", "answers", "both_orders", "data_dir"):
    if key in task:
      del task[key]
  with task.unlocked():
    task.update(built_in)
  if config.model.get("scores", 0) and task.name == "classification":
    config.model.scores = 2
  head = config.model.get("head") or {}
  if not isinstance(head, str):
    head = head.get("head", head)  # a head may wrap another
  if not has_images:
    for key in ("labels", "choices"):
      if key in head:
        head[key] = 2
  for name, values in config.evals.items():
    arguments = {key: values[key] for key in ("name", "max_examples") if key in values}
    if values.get("name", name) == "generation":
      arguments["max_new_tokens"] = 16
    config.evals[name] = arguments | {"split": "validation"}
  config.train_split = "train"
  config.eval_split = "validation"
  config.selection = {}
