"""What a run does before its first step: phases, checks of the workdir, restoring, records."""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.checkpoints.manifest import flatten
from t5x_like.errors import UserError
from t5x_like.parallel import distributed
from t5x_like.report.writer import read_metrics
from t5x_like.runtime import process
from t5x_like.runtime.environment import environment
from t5x_like.training import assembly, history, imported, init_from, phases, selection, sizes, teacher
from t5x_like.training import workdir as workdirs
from t5x_like.training.assembly import Parts
from t5x_like.training.evaluation import Evaluation
from t5x_like.training.meter import Goodput
from t5x_like.training.state import TrainState, from_tree, init_state, to_tree


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


@dataclasses.dataclass(frozen=True)
class Past:
  """What a workdir says about the run in it, the same in all processes.

  Attributes:
    identity: as `config.json` has it; None of a new run.
    went_back: the step that the last start was asked to go back to.
    began: when it was first started, in seconds since the epoch.
    trained: how it is known that a step was saved; None of a run that may never have saved one.
    intervals: how many steps apart lines of metrics were; several if that has changed.
  """

  identity: dict[str, Any] | None
  went_back: int | None
  began: float
  trained: str | None
  intervals: list[int]

  def last_line(self, step: int) -> int:
    """A step up to this one from which on there is a line of metrics, unless lines are gone; 0 if there may be none."""
    if not self.intervals:
      return 0
    longest = max(self.intervals)
    return step // longest * longest if len(self.intervals) == 1 else max(0, step + 1 - 2 * longest)


def past(workdir: pathlib.Path, address: str) -> Past:
  """Reads the workdir, at an address, in the first process; the workdir must be this run's by then.

  Raises:
    UserError: `config.json` is damaged, and history has no copy of it.
  """

  def read() -> list:
    rows = history.read(workdir, address)
    identity = workdirs.read(workdir, address)
    configs = [identity, *(row.get("config") for row in rows)]
    intervals = {_count(one, "log_every") for one in configs} - {None}
    trained = _trained(workdir, rows, identity)
    return [identity, history.went_back(rows), history.began(rows), trained, sorted(intervals)]

  return Past(*distributed.from_first(read))


def _trained(workdir: pathlib.Path, rows: history.Rows, identity: dict[str, Any] | None) -> str | None:
  step = history.saved(rows)
  if step is not None:
    return f"{history.FILE} says that step {step} was saved"
  if (workdir / imported.FILE).exists():
    return f"{imported.FILE} says that it holds imported weights"
  last = max((row["step"] for row in read_metrics(workdir)), default=0)
  every = _count(identity and identity.get("checkpoint"), "every")
  if every and last > 2 * every:  # a save begins once the one before it is committed
    return f"metrics.jsonl reaches step {last}, and a step was saved every {every}"
  return None


def _count(values: Any, key: str) -> int | None:
  found = values.get(key) if isinstance(values, dict) else None
  return found if type(found) is int and found > 0 else None


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


def check(past: Past, address: str, config: ConfigDict, identity: dict[str, Any]) -> list[str]:
  """Compares the run in a workdir with this config, in all processes alike. Returns the allowed changes.

  Raises:
    UserError: keys changed that may not, or processes have different configs, data or code.
  """
  changes = [] if past.identity is None else _changes(past.identity, identity, address, config)
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
  trained: str | None = None,
  step: int | None = None,
) -> Restored:
  """The state of a checkpoint, the newest by default, or of a new run if there is none.

  Args:
    trained: how it is known that the run has saved a step; then one must be there.
    step: which one; 0 without a checkpoint of it begins anew.
  Raises:
    UserError: the checkpoint is of another config, or there is none and `trained` says that there was; otherwise as
      `Checkpoints.restore`.
  """
  anew = step == 0 and 0 not in distributed.from_first(checkpoints.steps)
  fresh, abstract = config.checkpoint.fresh_optimizer, parts.state
  found = None if anew else checkpoints.restore(lambda saved: _wanted(saved, abstract, fresh), step)
  none = {"times": 0, "batches_passed": 0}
  if found is None:
    _check_lost(address, trained, anew)
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


def _check_lost(address: str, trained: str | None, anew: bool) -> None:
  """Refuses to begin a run whose checkpoints are gone, unless that is asked for, and weights are not the recipe's."""
  told = f"{address}/checkpoints: holds no checkpoint, but {trained}; restore or mount the directory"
  if trained and trained.startswith(imported.FILE):
    raise UserError(f"{told}, or convert the weights again into another workdir")
  if trained and not anew:
    raise UserError(
      f"{told}; to begin anew, use another --workdir, or --from_step=0, which keeps metrics.jsonl under another name"
    )


def goodput(workdir: pathlib.Path, began: float, step: int) -> Goodput:
  """That of a run that goes on from a step, by its first start and its metrics."""
  timed = [row["train/seconds_per_step"] for row in read_metrics(workdir) if "train/seconds_per_step" in row]
  return Goodput(began, sum(timed) / max(1, len(timed)) * step)


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
  history.add_start(workdir, step, identity, changes, found, from_step)
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
