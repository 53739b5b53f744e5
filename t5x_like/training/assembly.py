"""Assemble a run: its tasks, parts and evaluators, checked against each other, the data and this machine.

All of it follows from the config alone, and comes before a workdir is touched, a step is compiled or weights are read.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

import t5x_like.models
import t5x_like.objectives
from t5x_like import slots, training, vocabularies
from t5x_like.architectures.build import variant_of
from t5x_like.data import tasks
from t5x_like.errors import UserError
from t5x_like.nn.cores import cores_used, in_words
from t5x_like.runtime import process
from t5x_like.training import imported, phases, sizes
from t5x_like.training import workdir as workdirs
from t5x_like.training.build import Parts, abstract_batch, build, check_batch
from t5x_like.training.evaluation import Evaluation
from t5x_like.training.resolve import RANDOM, table_size

_CLASSES = {"label": "head.labels", "box_labels": "labels"}  # a target -> the model's key of its classes


@dataclasses.dataclass(frozen=True)
class Assembly:
  """All of a run but its state and its workdir.

  Attributes:
    config: resolved, with the special ids of the data's vocabulary.
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
    return workdirs.identity(self.config, main.task, {phase.name: phase.task for phase in early})


def assemble(config: ConfigDict, workdir: str) -> Assembly:
  """Make the objects of a run, and check that they fit.

  Args:
    config: resolved.
    workdir: the directory or address of the run, whose imported weights, if any, fix the vocabulary.
  Raises:
    UserError: naming the key, the value and the expectation.
  """
  split = config.train_split
  made = phases.build(config, lambda values: process.build_task("task", values.pop("name"), split, values))
  vocabulary = made[-1].task.vocabulary
  imported.check_vocabulary(workdir, vocabulary)
  _check_start(config, vocabulary)
  _check_teacher(config, vocabulary)
  config = with_tokens(config, vocabulary)
  parts = build(config)
  check_vocabulary(config, vocabulary)
  for phase in made:
    check_batch(phase.config, parts.rules, phase.batch_key)
    cores = check_task(phase.config, parts, phase.task)
  sizes.check(config, parts, made)
  evaluation = Evaluation(config, parts.model, parts.objective, parts.rules)
  if config.selection:
    slots.module("selection", training).check(config, evaluation.metrics())
  return Assembly(config, made, parts, cores, evaluation)


def check_task(config: ConfigDict, parts: Parts, task) -> dict[str, str]:
  """Check that a task, the objective and the model fit each other, before anything is compiled.

  Args:
    task: a `data.task.Task`, or a stand-in with its name and features.
  Returns:
    The model's attention cores by place, see `cores.in_words`; none for models without attention.
  Raises:
    UserError: naming the missing feature or output, and a choice that fits.
  """
  objective, name, model = parts.objective, config.objective.name, config.model.name
  makes = f"which task {config.task.name} does not make (it makes {', '.join(task.features)})"
  several = any(len(x.shape) == 2 for feature, x in task.features.items() if feature.endswith("_input_tokens"))
  fitting = [
    other
    for other in slots.names(t5x_like.objectives)
    if not (found := slots.find("config.objective", other, t5x_like.objectives, "Objective")).missing(task.features)
    and parts.model.NEEDS[-1] in found.beside
    and found.several == several
  ]
  choose = f"choose another task or the objective {' or '.join(fitting)}" if fitting else "choose another task"
  if lacking := objective.missing(task.features):
    advice = objective.advice or choose
    raise UserError(f"config.objective: {name} needs the feature {lacking[0]!r}, {makes}; {advice}")
  if objective.several != several:
    rows = ("one row", "several rows")
    raise UserError(
      f"config.objective: {name} is for examples of {rows[objective.several]}, those of task {config.task.name} have"
      f" {rows[several]}; {choose}"
    )
  for feature in parts.model.NEEDS:
    if feature not in task.features:
      raise UserError(f"config.model: {model} needs the feature {feature!r}, {makes}; choose another model or task")
  if parts.model.NEEDS[-1] not in objective.beside:
    raise UserError(
      f"config.objective: {name} is for models with outputs for {' or '.join(objective.beside)}, those of {model} are"
      f" for {parts.model.NEEDS[-1]}; {choose}"
    )
  objective.check(parts.model, task.features)
  rows = lambda model, batch: model(objective.rows(batch))  # noqa: E731
  with cores_used() as used, parts.rules.activate():
    outputs = jax.eval_shape(rows, parts.model, abstract_batch(config, parts.rules, task))
  for output, axes in objective.outputs.items():
    found = f"{outputs[output].ndim} axes" if output in outputs else "none"
    if found != f"{axes} axes":
      raise UserError(
        f"config.objective: {name} needs the output {output!r} with {axes} axes, found {found} with model {model};"
        " choose another --config.model.head, model or objective"
      )
  if objective.targets in _CLASSES and (classes := getattr(task, "classes", ())):
    labels, key = outputs["logits"].shape[-1] - objective.spare_classes, _CLASSES[objective.targets]
    if labels < len(classes):
      raise UserError(
        f"config.model.{key}: found {labels}, but task {config.task.name} has {len(classes)} classes"
        f" ({', '.join(classes[:8])}{', …' * (len(classes) > 8)}); set --config.model.{key}={len(classes)}"
      )
  return in_words(used)


def check_vocabulary(config: ConfigDict, vocabulary) -> None:
  """Check that the model's table has every id of a vocabulary; raise UserError."""
  if vocabulary.size > config.model.get("vocab_size", vocabulary.size):
    raise UserError(
      f"config.model.vocab_size: found {config.model.vocab_size}, but the vocabulary of the data has {vocabulary.size}"
      f" ids; set --config.model.vocab_size={table_size(vocabulary)}"
    )


def with_tokens(config: ConfigDict, vocabulary) -> ConfigDict:
  """Return the config with the special ids of the data's vocabulary, where they differ from the variant's.

  Raises:
    UserError: the config has ids by which the model would read the data wrongly.
  """
  if "tokens" not in config.model:
    return config
  model_class = slots.find("config.model.name", config.model.name, t5x_like.models, "Model")
  sides = [feature.partition("_")[0] for feature in model_class.NEEDS]
  found = {"pad": vocabulary.pad_id, "start": vocabulary.decoder_start_id, "eos": vocabulary.eos_id}
  if sides == ["decoder"]:
    found["start"] = vocabularies.start_id(vocabulary)
  elif sides == ["encoder"]:
    found |= {"start": vocabulary.cls_id, "eos": vocabulary.sep_id}
  usual, given = variant_of(model_class, config.model).tokens, config.model.tokens.to_dict()
  slots.change("config.model.tokens", usual, given)
  fixed = ("pad",) if len(sides) == 1 else tuple(found)
  for key in fixed:
    if key in given and given[key] != found[key]:
      raise UserError(
        f"config.model.tokens.{key}: found {given[key]}, but the vocabulary of the data has {found[key]}; leave it "
        "out: special ids come from the vocabulary"
      )
  ids = {key: i for key, i in found.items() if key in fixed or i is not None} | given
  made = ConfigDict(config.to_dict())
  made.model.tokens = ConfigDict({key: i for key, i in ids.items() if i != getattr(usual, key)})
  return made


def _check_start(config: ConfigDict, vocabulary) -> None:
  """Refuse data of another vocabulary than the run of `config.init` has; classes of images may differ."""
  if config.init and ("resolution" not in config.model or "vocab_size" in config.model):
    saved = workdirs.read(config.init.workdir)
    if saved is None:
      raise UserError(f"config.init.workdir: {config.init.workdir} holds no run; restore it, its vocabulary is needed")
    workdirs.check_vocabulary(config.init.workdir, saved, vocabulary, "that of the data")


def _check_teacher(config: ConfigDict, vocabulary) -> None:
  """Refuse a teacher of other classes, another vocabulary or other normalised pixels than the data's.

  A teacher that is gone is not missed here: a resumed run has its parameters.
  """
  directory = config.teacher.get("workdir")
  saved = workdirs.read(directory) if directory not in (None, RANDOM) else None
  if saved is None:
    return
  if workdirs.vocabulary_print(saved) != vocabulary.fingerprint:
    theirs = vocabularies.load(f"{directory}/vocabulary")
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
  """Describe the mean and the deviation of pixels, by one number where all channels have the same."""
  usual = slots.defaults(slots.find("config.task.name", task["name"], tasks, "task"))
  given = ((name, task.get(name, usual.get(name, ()))) for name in ("mean", "std"))
  return ", ".join(f"{name} {list(dict.fromkeys(x)) if len(set(x)) == 1 else list(x)}" for name, x in given)


def _short(names) -> str:
  return ", ".join(names[:4]) + ", …" * (len(names) > 4)
