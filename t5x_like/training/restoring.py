"""Restore the state of a run from its checkpoint, or initialise a new one."""

import dataclasses
from typing import Any

from t5x_like.checkpoints.manifest import describe_tensors, digest_tensors, flatten
from t5x_like.checkpoints.tensors import fingerprints
from t5x_like.errors import UserError
from t5x_like.parallel import distributed
from t5x_like.runtime import process
from t5x_like.saved_model.averaged_weights import EMA_COUNT
from t5x_like.training import phases, workdir
from t5x_like.training.build import Assembly
from t5x_like.training.session import Session
from t5x_like.training.state import TrainState, from_tree, init_state, to_tree

# The key of the weights' moving average in the tree of a checkpoint.
_MEAN = EMA_COUNT.partition("/")[0]
_NO_ROLLBACKS = {"times": 0, "batches_passed": 0}


@dataclasses.dataclass(frozen=True)
class RestoredState:
  """The state that a run continues from.

  Attributes:
    state: the restored or initialised state.
    step: the number of finished steps.
    digest: the digest of the state; see `checkpoints.manifest.digest_tensors`.
    rollbacks: how often the guard returned the run to an earlier checkpoint (`times`), and the
      number of batches that were skipped by this (`batches_passed`).
    loaded: the content of `init.json`, for a run that starts with the weights of another run.
  """

  state: TrainState
  step: int
  digest: str
  rollbacks: dict[str, int]
  loaded: dict[str, Any] | None = None


def restore(assembly: Assembly, session: Session, step: int | None = None) -> RestoredState:
  """Return the state of a checkpoint, or of a new run if there is none.

  Args:
    step: the step to restore, None for the newest intact one. If it is 0 and has no checkpoint, the
      run begins anew.
  Raises:
    UserError: the checkpoint is of another config, or there is none although a step was saved;
      otherwise as `Checkpoints.restore`.
  """
  config = assembly.config
  parts = assembly.parts
  checkpoints = session.checkpoints
  begins_anew = step == 0 and 0 not in distributed.broadcast_from_first(checkpoints.steps)
  if begins_anew:
    return _initialise(assembly, session, begins_anew)

  def template(saved: dict[str, dict]) -> dict:
    return tensors_to_restore(saved, parts.state, config.checkpoint.fresh_optimizer)

  checkpoint = checkpoints.restore(template, step)
  if checkpoint is None:
    return _initialise(assembly, session, begins_anew)
  step, tree, metadata = checkpoint
  rollbacks = _NO_ROLLBACKS | metadata.pop("rollbacks", {})
  session.check_config(metadata, f"{session.address}/checkpoints/{step}")
  if step:  # imported weights have no earlier phases
    position = step + rollbacks["batches_passed"]
    phases.check_past_phases(metadata, config, position, session.address)
  if step < config.total_steps:
    process.log(f"resuming {session.address} from step {step} of {config.total_steps}")
  if not tree.keys() - {"step", "params"}:
    process.log(f"{config.optimizer.name} starts without a state at step {step}")
  elif config.optimizer.get("ema") and _MEAN not in tree:
    process.log(f"the mean of the weights begins at step {step}")
  state = from_tree(tree, parts.state, parts.optimizer)
  return RestoredState(state, step, checkpoints.restored_digest, rollbacks)


def _initialise(assembly: Assembly, session: Session, begins_anew: bool) -> RestoredState:
  """Return the state of a new run, with the weights of other runs that its config names."""
  config = assembly.config
  parts = assembly.parts
  _check_not_lost(session, begins_anew)
  process.log(f"new run in {session.address}")
  state = init_state(parts.make_model, parts.optimizer, parts.state, config.seed)
  loaded = None
  if config.init.get("weights") or config.teacher:
    from t5x_like.training import warm_start

    state, loaded = warm_start.load_sources(config, parts, state)
  return RestoredState(state, 0, digest_state(state), dict(_NO_ROLLBACKS), loaded)


def digest_state(state: TrainState) -> str:
  """Return the digest of a state, as its checkpoint would have; all processes must call it."""
  tensors = flatten(to_tree(state))
  return digest_tensors(describe_tensors(tensors, fingerprints(tensors)))


def tensors_to_restore(saved: dict[str, dict], abstract: TrainState, fresh_optimizer: bool) -> dict:
  """Return the tree to restore: the whole state, or step and parameters for a fresh optimizer.

  The average of the weights is not a part of the optimizer's own state: a resumed run may begin to
  keep one, or stop keeping it.
  """
  tree = to_tree(abstract)
  run_tensors = {
    name: [list(tensor.shape), str(tensor.dtype)] for name, tensor in flatten(tree).items()
  }
  saved_tensors = {name: [entry["shape"], entry["dtype"]] for name, entry in saved.items()}
  if run_tensors == saved_tensors:
    return tree
  saved_without_mean = _without_mean(saved_tensors)
  if _without_mean(run_tensors) == saved_without_mean:
    if len(saved_without_mean) < len(saved_tensors):
      return tree
    return {key: subtree for key, subtree in tree.items() if key != _MEAN}
  if fresh_optimizer:
    return {key: tree[key] for key in ("step", "params")}
  return tree


def _without_mean(tensors: dict[str, list]) -> dict[str, list]:
  """Return the tensors other than the moving average of the weights."""
  prefix = f"{_MEAN}/"
  return {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}


def _check_not_lost(session: Session, begins_anew: bool) -> None:
  """Refuse to begin a run whose checkpoints are gone, unless `--from_step=0` is set.

  Imported weights that are gone are refused in any case.
  """
  evidence = session.past.save_evidence
  if not evidence:
    return
  message = (
    f"{session.address}/checkpoints: holds no checkpoint, but {evidence}; restore or mount "
    "the directory"
  )
  if evidence.startswith(workdir.IMPORTED_FILE):
    raise UserError(f"{message}, or convert the weights again into another workdir")
  if not begins_anew:
    raise UserError(
      f"{message}; to begin anew, use another --workdir, or --from_step=0, which keeps "
      "metrics.jsonl under another name"
    )
