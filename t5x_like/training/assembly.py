"""From a recipe to the objects of a run. Everything that can be checked is checked here, before any work."""

import dataclasses
import json
from collections.abc import Callable, Sequence

import jax
import optax
from flax import nnx
from ml_collections import ConfigDict

import t5x_like.models
import t5x_like.objectives
from t5x_like import config as config_lib
from t5x_like import slots
from t5x_like.architectures.build import variant_of
from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError
from t5x_like.nn import params, remat
from t5x_like.nn.cores import cores_used, in_words
from t5x_like.nn.linear import has_adapters
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.runtime import process
from t5x_like.slots import AboveZero, Positive
from t5x_like.training import evaluation, init_from, offload, phases, selection, teacher, tuning
from t5x_like.training.guard import GUARDS, Guard, skipping
from t5x_like.training.optimizer import OPTIMIZERS, bounded, layerwise
from t5x_like.training.schedule import SCHEDULES, Schedule
from t5x_like.training.state import TrainState, abstract_state
from t5x_like.training.tuning import TUNINGS

REFERENCE = "reference/"  # of the names of its parameters
_CLASSES = {"label": "head.labels", "box_labels": "labels"}  # what is predicted -> the model's key of its classes
_ADAPTERS = 1  # folded into the key of the model's parameters


@dataclasses.dataclass(frozen=True)
class Parts:
  """What a step is made of.

  Attributes:
    model: the abstract model; `make_model(key)` makes a concrete one.
    state: the abstract state, with shardings.
    trained: names of the parameters that are trained, None if all are.
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


def checkpoints(
  every: Positive,
  minutes: AboveZero | None = 15,
  keep_last: Positive = 3,
  keep_every: Positive | None = None,
  save_timeout_seconds: Positive = 1200,
  fresh_optimizer: bool = False,
):
  """The keys of `config.checkpoint`; a step is saved every `every` steps, `minutes` after the last save (None: never
  by the clock) and at the end.

  With `fresh_optimizer`, a checkpoint whose optimizer state is not this optimizer's gives its parameters and step only.
  """


def optimizer_memory(offload: bool = False):
  """The keys of `config.optimizer` beside the optimizer's: `offload` keeps its arrays in the hosts' memory."""


def resolve(config: ConfigDict, platform: str | None = None) -> ConfigDict:
  """Checks every slot against what it names and fills in all defaults, for a platform; None is this process's.

  `auto`, or no value, becomes bfloat16 on accelerators and float32 on CPU for `model.dtype`, and scan and loop for
  `model.layers`. A `model.vocab_size` of None becomes the published one, and `auto` that of the data, rounded up to a
  multiple of 128.

  Raises:
    UserError: naming the key, what was found and what was expected.
  """
  config_lib.check_values(config)
  config = init_from.inherited(config)
  resolved = ConfigDict(config.to_dict())
  values = ConfigDict(config.model.to_dict())
  if values.get("vocab_size") == "auto":
    with values.ignore_type():
      values.vocab_size = _table_size(config)
  resolved.model = _resolved_model("model", values, platform)
  objective = slots.find("config.objective.name", config.objective.get("name"), t5x_like.objectives, "Objective")
  computed = {key: resolved.model[key] for key in ("dtype", "layers") if key in resolved.model}
  fill = lambda model: _resolved_model("teacher.model", ConfigDict(model | computed), platform)  # noqa: E731
  resolved.teacher = ConfigDict(teacher.resolved(config, getattr(objective, "teacher", False), fill))
  resolved.objective = _filled("objective", config.objective, objective)
  optimizer = slots.find("config.optimizer.name", config.optimizer.get("name"), OPTIMIZERS)
  resolved.optimizer = _filled("optimizer", config.optimizer, optimizer, given=("schedule",), also=(optimizer_memory,))
  schedule = slots.find("config.schedule.name", config.schedule.get("name"), SCHEDULES)
  values = ConfigDict(config.schedule.to_dict())
  if schedule in (SCHEDULES["linear"], SCHEDULES["cosine"]) and "total_steps" not in values:
    values.total_steps = config.total_steps
  resolved.schedule = _filled("schedule", values, schedule)
  guard = slots.find("config.guard.name", config.guard.get("name"), GUARDS)
  resolved.guard = _filled("guard", config.guard, guard)
  tune = slots.find("config.tuning.name", config.tuning.get("name"), TUNINGS)
  resolved.tuning = ConfigDict(json.loads(json.dumps(_filled("tuning", config.tuning, tune).to_dict())))
  resolved.selection = ConfigDict(selection.filled(config))
  resolved.checkpoint = _filled("checkpoint", config.checkpoint, checkpoints)
  resolved.evals = evaluation.resolve(config)
  phases.check(config)
  return resolved


def _resolved_model(slot: str, values: ConfigDict, platform: str | None) -> ConfigDict:
  """A `config.model`, checked, with all of its defaults."""
  model_class = slots.find(f"config.{slot}.name", values.get("name"), t5x_like.models, "Model")
  resolved = _filled(slot, values, model_class, given=("rngs",))
  if "variant" in resolved:
    with resolved.ignore_type():
      resolved.variant = values.variant  # as given: all of its fields may be
    _resolve_design(resolved, variant_of(model_class, values))
  on_cpu = (platform or jax.default_backend()) == "cpu"
  suited = {"dtype": "float32", "layers": "loop"} if on_cpu else {"dtype": "bfloat16", "layers": "scan"}
  for key, value in suited.items():
    if key in resolved and values.get(key, "auto") == "auto":
      resolved[key] = value
  return resolved


def build(config: ConfigDict, devices: list[jax.Device] | None = None) -> Parts:
  """Builds everything but data from a resolved config, without allocating.

  Raises:
    UserError: the mesh does not fit the devices, or a parameter or the batch does not divide over it.
  """
  rules = Rules.make(make_mesh(config.mesh.to_dict(), devices), config.rules.to_dict())
  check_batch(config, rules)
  model, make_model = _model(config)
  named = params.named_params(model)
  schedule = slots.make("config.schedule", config.schedule, SCHEDULES)
  arguments = config.optimizer.to_dict()
  offloaded = arguments.pop("offload", False)
  inner = slots.make("config.optimizer", arguments, OPTIMIZERS, schedule=schedule)
  optimizer = layerwise(inner, {name: p.axes for name, p in named.items()})
  if config.clip_norm:
    optimizer = optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)
  tune = slots.make("config.tuning", config.tuning, TUNINGS)
  optimizer = bounded(tune.rates(optimizer, named), {n: p.most for n, p in named.items() if hasattr(p, "most")})
  trained = [name for name in tune.trained(named) if not name.startswith(REFERENCE)]
  if len(trained) < len(named):
    optimizer = tuning.only(optimizer, trained)
  objective = slots.make("config.objective", config.objective, t5x_like.objectives, "Objective")
  if getattr(objective, "among_rows", False) and config.accumulation_steps > 1:
    raise UserError(
      f"config.accumulation_steps: found {config.accumulation_steps}, but {config.objective.name} compares all rows of"
      f" a batch with one another; set it to 1 and --config.objective.chunks={config.accumulation_steps}"
    )
  state = abstract_state(model, optimizer, rules)
  guard = slots.make("config.guard", config.guard, GUARDS)
  _check_kept(config, guard)
  if guard.skips:
    optimizer = skipping(optimizer)
  if offloaded:
    offload.check_memory("config.optimizer.offload", rules.mesh)
    optimizer, state = offload.optimizer_state(optimizer, state)
  if remat.make(config.model.get("remat", "none")).offload:
    offload.check_memory("config.model.remat", rules.mesh)
  learned = frozenset(trained) if len(trained) < len(named) else None
  return Parts(model, make_model, objective, optimizer, schedule, rules, state, guard, learned)


def _check_kept(config: ConfigDict, guard: Guard) -> None:
  """Checks that a step to go back to is always kept."""
  kept = None if config.checkpoint.keep_last is None else (config.checkpoint.keep_last - 1) * config.checkpoint.every
  if kept is not None and guard.steps > kept:
    raise UserError(
      f"config.guard.steps: found {guard.steps}, expected at most {kept}, (checkpoint.keep_last - 1) *"
      " checkpoint.every, as a step that far back must still be there; raise --config.checkpoint.keep_last"
    )


def check_task(config: ConfigDict, parts: Parts, task) -> dict[str, str]:
  """Checks that a task, the objective and the model fit each other, before anything is compiled.

  Args:
    task: a `data.task.Task`.
  Returns:
    The model's attention cores by place, see `cores.in_words`; none for models without attention.
  Raises:
    UserError: naming the missing feature or output, and what to choose instead.
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
    outputs = jax.eval_shape(rows, parts.model, abstract_batch(config, parts, task))
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


def abstract_batch(config: ConfigDict, parts: Parts, task) -> dict[str, jax.ShapeDtypeStruct]:
  """The global batch of a task: shapes, dtypes and sharding."""
  return {
    name: jax.ShapeDtypeStruct((config.batch_size, *feature.shape), feature.dtype, sharding=parts.rules.batch())
    for name, feature in task.features.items()
  }


def check_vocabulary(config: ConfigDict, vocabulary) -> None:
  """Checks that the model's table has every id of a vocabulary."""
  if vocabulary.size > config.model.get("vocab_size", vocabulary.size):
    raise UserError(
      f"config.model.vocab_size: found {config.model.vocab_size}, but the vocabulary of the data has {vocabulary.size}"
      f" ids; set --config.model.vocab_size={_table(vocabulary)}"
    )


def _table(vocabulary) -> int:
  return -(-vocabulary.size // 128) * 128


def _table_size(config: ConfigDict) -> int:
  """Rows that the token table needs for every id of the data."""
  name, arguments = slots.split("config.task", config.task)
  return _table(process.build_task("task", name, config.train_split, arguments).vocabulary)


def with_tokens(config: ConfigDict, vocabulary) -> ConfigDict:
  """The config with the model's special ids as the vocabulary of its data has them, where the variant has others.

  Raises:
    UserError: the config has ids by which the model would read the data wrongly.
  """
  from t5x_like.vocabularies import start_id  # the step is built without the data system

  if "tokens" not in config.model:
    return config
  model_class = slots.find("config.model.name", config.model.name, t5x_like.models, "Model")
  sides = [feature.partition("_")[0] for feature in model_class.NEEDS]
  found = {"pad": vocabulary.pad_id, "start": vocabulary.decoder_start_id, "eos": vocabulary.eos_id}
  if sides == ["decoder"]:
    found["start"] = start_id(vocabulary)
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


def _resolve_design(model: ConfigDict, variant: Variant) -> None:
  """Checks changes to the family's design, and fills in the published vocabulary size."""
  if "design" in model:
    changes = model.design.to_dict()
    slots.change("config.model.design", variant.design, changes)
    with model.ignore_type():
      model.design = ConfigDict(json.loads(json.dumps(changes)))  # as a saved config has it: lists, no tuples
  if "vocab_size" in model and model.vocab_size is None:
    model.vocab_size = variant.vocab_size


def _model(config: ConfigDict):
  tune = slots.make("config.tuning", config.tuning, TUNINGS)
  objective = slots.find("config.objective.name", config.objective.name, t5x_like.objectives, "Objective")

  def bare(key, slot="model", values=config.model):
    return slots.make(f"config.{slot}", values, t5x_like.models, "Model", rngs=nnx.Rngs(params=key))

  def make_model(key):
    model = tune.adapt(bare(key), jax.random.fold_in(key, _ADAPTERS))
    if getattr(objective, "teacher", False):
      model.reference = bare(key, "teacher.model", config.teacher.model)
    elif getattr(objective, "reference", False) and not has_adapters(model):  # else it is the model without them
      model.reference = bare(key)
    return model

  return jax.eval_shape(make_model, jax.random.key(0)), make_model


def _filled(
  slot: str, values: ConfigDict, function: Callable, given: Sequence[str] = (), also: Sequence[Callable] = ()
) -> ConfigDict:
  """A slot with all its arguments filled in, and its name if it has one."""
  name, arguments = slots.split(f"config.{slot}", values)
  return ConfigDict(({"name": name} if name else {}) | slots.fill(f"config.{slot}", arguments, function, given, also))


def check_batch(config: ConfigDict, rules: Rules, key: str = "batch_size") -> None:
  """Checks that a batch divides over the mesh; `key` is the config key of its size, for messages."""
  ways, parts = rules.split("batch"), config.accumulation_steps
  if config.batch_size % (ways * parts):
    axes = "x".join(f"{a}={rules.mesh.shape[a]}" for a in rules.table["batch"] if rules.mesh.shape[a] > 1) or "1 device"
    raise UserError(
      f"config.{key}: found {config.batch_size}, expected a multiple of {ways * parts}: it is split over {axes}"
      f" ({ways} ways) and into {parts} accumulation steps"
    )
