"""Build and call the evaluators of `config.evals`, during and after a run.

  config.evals = {
    "loss": {},  # the evaluator of that name, on the run's own task and split
    "french": {"name": "loss", "task": {"store": "data/fr"}, "max_examples": 4096},
    "trained_on": {"name": "loss", "split": "train", "max_examples": 4096},
  }

An instance's `name` is a module of `t5x_like/evals/`, by default the instance's key. `task` holds
changes to `config.task` or, with a `name`, another task; `split` is by default `config.eval_split`.
All other keys are the evaluator's arguments; an evaluator may have none with the name of one of
these three.

Metrics are named `eval/<group>/<metric>`. The group is the task's name if the instance has its
evaluator's name and the run's task and split (`eval/c4_span_corruption/loss`), otherwise the
instance's name (`eval/french/loss`).
"""

import collections
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like.errors import UserError, did_you_mean
from t5x_like.evals import EVALUATORS, BaseEvaluator, EvalContext
from t5x_like.parallel.rules import local_rows
from t5x_like.runtime import process


class _StopEvaluation(Exception):
  """A request to leave an evaluator between two batches; raised and caught only in this file."""


@dataclasses.dataclass
class GroupResults:
  """The results for one task and split.

  Attributes:
    task, split: names.
    seconds: the time that evaluation took.
    metrics, samples, predictions: see `evals.EvalResult`.
    parts: (name and arguments of the evaluator, name and arguments of its task, predictions), of
      each evaluator with predictions.
  """

  task: str
  split: str
  seconds: float = 0.0
  metrics: dict[str, float] = dataclasses.field(default_factory=dict)
  samples: list[dict[str, str]] = dataclasses.field(default_factory=list)
  predictions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  parts: list[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]] = dataclasses.field(
    default_factory=list
  )


@dataclasses.dataclass(frozen=True)
class _Instance:
  """An instance of `config.evals`.

  Attributes:
    group: the part of its metrics' names after `eval/`.
    task, split: names.
    values: the name and arguments of the evaluator.
    task_values: the name and arguments of its task.
    evaluator: the evaluator that was built from them.
  """

  group: str
  task: str
  split: str
  values: dict[str, Any]
  task_values: dict[str, Any]
  evaluator: BaseEvaluator


class Evaluation:
  """The evaluators of a resolved config; call it with the parameters of any step.

  Args:
    config: a resolved config.
    model: the abstract model.
    objective, rules: see `evals.EvalContext`.
    only: names of the instances to build; None builds all.

  Attributes:
    task: the run's task, on `config.eval_split`.

  Raises:
    UserError: no such instance or split, or a task that cannot be built or has another vocabulary.
  """

  def __init__(
    self, config: ConfigDict, model, objective, rules, only: Sequence[str] | None = None
  ):
    self._config = config
    self._model = model
    self._objective = objective
    self._rules = rules
    self._run_task = {"name": None} | config.task.to_dict()
    self._contexts: dict[str, EvalContext] = {}
    self._stop_requested: Callable[[], bool] = lambda: False
    self.task = self._context("task", self._run_task, config.eval_split).task
    self._instances: dict[str, _Instance] = {}
    for name in _select_instances(config.evals.to_dict(), only):
      self._instances[name] = self._build_instance(name)
    self._check_names()

  def _context(self, slot: str, values: dict[str, Any], split: str) -> EvalContext:
    """Return the context of evaluators on a task and split, built once.

    Args:
      slot: the key of the task, for messages.
      values: the task's name and arguments.
    """
    from t5x_like.data import loader  # imports TensorFlow

    key = json.dumps([values, split], sort_keys=True)
    if key in self._contexts:
      return self._contexts[key]
    arguments = dict(values)
    task = process.build_task(slot, arguments.pop("name"), split, arguments)
    if task.num_examples < 1:
      raise UserError(
        f"config.{slot}: task {task.name} has no examples in split {split!r}; use another split"
      )
    batch_size = self._config.batch_size
    rows = local_rows(self._rules.batch(), batch_size)

    def batches(max_examples: int | None) -> Iterator:
      return loader.eval_batches(task, batch_size=batch_size, rows=rows, max_examples=max_examples)

    def on_split(other_split: str) -> EvalContext:
      return self._context(slot, values, other_split)

    vocabulary = task.vocabulary if slot == "task" else self.task.vocabulary
    self._contexts[key] = EvalContext(
      self._model,
      self._objective,
      task,
      batches,
      batch_size,
      self._rules,
      on_split,
      vocabulary,
      self._raise_if_stopped,
      split,
    )
    return self._contexts[key]

  def _build_instance(self, name: str) -> _Instance:
    """Build an instance of `config.evals`."""
    where = f"config.evals.{name}"
    values = self._config.evals[name].to_dict()
    if name == self.task.name:
      raise UserError(
        f"{where}: the run's own task has this name, and eval/{name}/… are its metrics; use "
        "another name"
      )
    task_values = values.pop("task")
    if "name" not in task_values:
      task_values = config_lib.change_task(self._run_task, task_values)
    split = values.pop("split") or self._config.eval_split
    context = self._context(f"evals.{name}.task", task_values, split)
    task = context.task
    # In zero-shot classification, the vocabulary of the task has the names of classes.
    are_labels = "image" in task.features and task.classes and not self.task.classes
    if task.vocabulary.fingerprint != self.task.vocabulary.fingerprint and not are_labels:
      raise UserError(
        f"{where}.task: its vocabulary differs from config.task's; prepare its data with that one"
      )
    evaluator = EVALUATORS.make(where, values, context=context)
    is_default = name == values["name"] and task is self.task
    group = self.task.name if is_default else name
    return _Instance(group, task.name, split, values, task_values, evaluator)

  def metrics(self) -> list[str]:
    """Return the names of all metrics that may be written."""
    names = []
    for instance in self._instances.values():
      for metric in (*instance.evaluator.metric_names(), "seconds"):
        names.append(f"eval/{instance.group}/{metric}")
    return names

  def _check_names(self) -> None:
    """Refuse two evaluators that would write the same metric, before either of them runs."""
    group_sizes = collections.Counter(instance.group for instance in self._instances.values())
    writers: dict[tuple[str, str], str] = {}
    for name, instance in self._instances.items():
      group = instance.group
      if group_sizes[group] == 1:
        continue
      for metric in instance.evaluator.metric_names():
        first_writer = writers.setdefault((group, metric), name)
        if first_writer != name:
          raise UserError(
            f"config.evals.{name}: eval/{group}/{metric} is also written by {first_writer}; give "
            "this instance another name"
          )

  def __call__(
    self, arrays: dict[str, jax.Array], stop_requested: Callable[[], bool] = lambda: False
  ) -> dict[str, GroupResults] | None:
    """Return the results of all evaluators for these parameters, by group; None if stopped.

    Args:
      stop_requested: called before every batch; the evaluation ends once it returns true.
    Raises:
      UserError: two evaluators write the same metric.
    """
    groups: dict[str, GroupResults] = {}
    self._stop_requested = stop_requested
    for name, instance in self._instances.items():
      since = time.perf_counter()
      try:
        result = instance.evaluator(arrays)
      except _StopEvaluation:
        return None
      group = groups.setdefault(instance.group, GroupResults(instance.task, instance.split))
      for metric in result.metrics:
        if metric in group.metrics:
          raise UserError(
            f"config.evals.{name}: eval/{instance.group}/{metric} is also written by another "
            "instance; give this one another name"
          )
      group.metrics |= result.metrics
      group.samples += result.samples
      group.predictions += result.predictions
      if result.predictions:
        group.parts.append((instance.values, instance.task_values, result.predictions))
      group.seconds += time.perf_counter() - since
    return groups

  def _raise_if_stopped(self) -> None:
    if self._stop_requested():
      raise _StopEvaluation


def _select_instances(instances: dict[str, Any], only: Sequence[str] | None) -> list[str]:
  for name in only or ():
    if name not in instances:
      raise UserError(
        f"--evals={','.join(only)}: the config has no evaluator "
        f"{name!r}{did_you_mean(name, instances)}; it has {', '.join(instances) or 'none'}"
      )
  return list(instances if only is None else dict.fromkeys(only))
