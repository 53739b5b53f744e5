"""What a run does before its first step: phases, checks of the workdir, restoring, records."""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like.parallel import distributed
from t5x_like.training import assembly, imported, init_from, phases, process, selection, sizes, teacher
from t5x_like.training import workdir as workdirs
from t5x_like.training.assembly import Parts
from t5x_like.training.checkpoint import Checkpoints
from t5x_like.training.checkpoint_manifest import flatten
from t5x_like.training.environment import environment
from t5x_like.training.evaluation import Evaluation
from t5x_like.training.meter import Goodput
from t5x_like.training.state import TrainState, from_tree, init_state, to_tree
from t5x_like.training.writer import read_metrics


@dataclasses.dataclass(frozen=True)
class Restored:
  """Where a run goes on.

  Attributes:
    rollbacks: how often the guard took it back, and how many batches were passed over by that.
    loaded: the report of a run that begins with the weights of another.
  """

  state: TrainState
  step: int
  rollbacks: dict[str, int]
  loaded: dict[str, Any] | None = None


def make_phases(config: ConfigDict) -> list[phases.Phase]:
  """The phases with their tasks."""
  return phases.build(config, lambda values: process.build_task("task", values.pop("name"), config.train_split, values))


def with_vocabulary(config: ConfigDict, vocabulary, address: str) -> ConfigDict:
  """The config with the special ids of the data's vocabulary, which has to be that of imported weights, if any."""
  imported.check_vocabulary(address, vocabulary)
  init_from.check_vocabulary(config, vocabulary)
  teacher.check(config, vocabulary)
  return assembly.with_tokens(config, vocabulary)


def check_phases(config: ConfigDict, parts: Parts, made: list[phases.Phase]) -> dict[str, str]:
  """Checks each phase against the model and the objective; returns the attention cores of the last."""
  assembly.check_vocabulary(config, made[-1].task.vocabulary)
  for phase in made:
    assembly.check_batch(phase.config, parts.rules, _batch_key(phase))
    cores = assembly.check_task(phase.config, parts, phase.task)
  return cores


@dataclasses.dataclass(frozen=True)
class Checked:
  """All of a run but its state: made of its config alone, without a step or a compilation."""

  config: ConfigDict
  phases: list[phases.Phase]
  parts: Parts
  cores: dict[str, str]
  evaluation: Evaluation


def checked(config: ConfigDict, address: str, beat: Callable[[], None] = lambda: None) -> Checked:
  """Make the objects of a run, and check them against each other, its data and this machine.

  Raises:
    UserError: naming the key, what was found and what was expected.
  """
  made = make_phases(config)
  config = with_vocabulary(config, made[-1].task.vocabulary, address)
  parts = assembly.build(config)
  cores = check_phases(config, parts, made)
  sizes.check(config, parts, [(_batch_key(one), one.config.batch_size, one.task.features) for one in made])
  evaluation = Evaluation(config, parts.model, parts.objective, parts.rules, beat=beat)
  selection.check(config, evaluation.metrics() if config.selection else None)
  return Checked(config, made, parts, cores, evaluation)


def _batch_key(phase: phases.Phase) -> str:
  return "batch_size" if phase.name == "main" else f"phases.{phase.name}.batch_size"


def check(workdir: pathlib.Path, address: str, config: ConfigDict, identity: dict[str, Any]) -> list[str]:
  """Compares the workdir, at an address, with this config, in all processes alike. Returns the allowed changes.

  Raises:
    UserError: keys changed that may not, or processes have different configs, data or code.
  """
  saved = distributed.from_first(lambda: workdirs.read(workdir))
  changes = [] if saved is None else _changes(saved, identity, address, config)
  distributed.agree(
    {
      "config": config_lib.digest(config),
      "data and vocabulary": json.dumps(identity["fingerprints"]),
      "code version": distributed.code_version(),
      "jax version": jax.__version__,
    }
  )
  return changes


def open_checkpoints(address: str, config: ConfigDict) -> Checkpoints:
  """The run's checkpoints, as `config.checkpoint` says."""
  options = config.checkpoint.to_dict()
  for name in ("fresh_optimizer", "minutes"):
    del options[name]
  return Checkpoints(f"{address}/checkpoints", **options)


def restore(
  address: str,
  checkpoints: Checkpoints,
  config: ConfigDict,
  parts: Parts,
  identity: dict[str, Any],
  step: int | None = None,
) -> Restored:
  """The state of a checkpoint, the newest by default, or of a new run if there is none.

  Raises:
    UserError: the checkpoint is of another config; otherwise as `Checkpoints.restore`.
  """
  fresh, abstract = config.checkpoint.fresh_optimizer, parts.state
  found = checkpoints.restore(lambda saved: _wanted(saved, abstract, fresh), step)
  none = {"times": 0, "batches_passed": 0}
  if found is None:
    process.say(f"new run in {address}")
    state = init_state(parts.make_model, parts.optimizer, abstract, config.seed)
    report = None
    if config.init.get("weights"):
      state, report = init_from.load(config, parts, state)
    if config.teacher:
      state = teacher.load(config, parts, state)
    return Restored(state, 0, none, report)
  step, tree, metadata = found
  rollbacks = none | metadata.pop("rollbacks", {})
  _changes(metadata, identity, f"{address}/checkpoints/{step}", config)
  if step:  # imported weights have no past
    phases.check_past(metadata, config, step + rollbacks["batches_passed"], address)
  if step < config.total_steps:
    process.say(f"resuming {address} from step {step} of {config.total_steps}")
  if not tree.keys() - {"step", "params"}:
    process.say(f"{config.optimizer.name} starts without a state at step {step}")
  return Restored(from_tree(tree, abstract, parts.optimizer), step, rollbacks)


def goodput(workdir: pathlib.Path, step: int) -> Goodput:
  """That of a run that goes on from a step, by its history and its metrics."""
  timed = [row["train/seconds_per_step"] for row in read_metrics(workdir) if "train/seconds_per_step" in row]
  return Goodput(workdirs.began(workdir), sum(timed) / max(1, len(timed)) * step)


def record(
  workdir: pathlib.Path,
  step: int,
  identity: dict[str, Any],
  changes: list[str],
  cores: dict[str, str],
  vocabulary,
  from_step: int | None,
) -> None:
  """Records a start in the workdir: the config, the environment with its cores, the vocabulary, a line of history."""
  found = environment() | cores
  workdirs.write(workdir, workdirs.FILE, identity)
  workdirs.write(workdir, "environment.json", found)
  workdirs.add_to_history(workdir, step, identity, changes, found, from_step)
  vocabulary.save(workdir / "vocabulary")


def _changes(saved: dict[str, Any], identity: dict[str, Any], where, config: ConfigDict) -> list[str]:
  return workdirs.check(saved, identity, where, other_optimizer=config.checkpoint.fresh_optimizer)


def _wanted(saved: dict[str, dict], abstract: TrainState, fresh_optimizer: bool) -> dict:
  """The tree to restore: the state, without the guard's or the optimizer's if there is none, or may be another's."""
  tree = to_tree(abstract)
  if not any(name.startswith("guard/") for name in saved):
    tree.pop("guard")
  own = {name: [list(x.shape), str(x.dtype)] for name, x in flatten(tree).items()}
  same = own == {name: [entry["shape"], entry["dtype"]] for name, entry in saved.items()}
  if same or not fresh_optimizer:
    return tree
  return {key: tree[key] for key in ("step", "params")}
