"""Compare the kept checkpoints of a run with the states in its chain."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from t5x_like.certificate.history import CHAIN, CONFIG, DATA, STATE, Break, Save
from t5x_like.certificate.verification.certified_run import CertifiedRun
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import DamageError, one_line
from t5x_like.files import checked_json


def check_checkpoints(run: CertifiedRun) -> list[int]:
  """Check the tensors and the manifest of every checkpoint, and that its state is in the chain.

  Tensors are read one top-level key, such as `params`, after the other, to save memory.

  Returns:
    The steps of the checkpoints that the chain covers.
  Raises:
    Break: a checkpoint differs from the chain; names the first one.
  """
  history = run.history
  covered = []
  with Checkpoints(run.checkpoint_directory) as checkpoints:
    for step in checkpoints.steps():
      if step < history.begins:
        continue
      if step > history.last_step:
        raise Break(
          history.last_step + 1,
          CHAIN,
          f"the chain ends at step {history.last_step}, and there is a checkpoint of step {step}: "
          "the chain was cut, or the checkpoint is another run's",
        )
      save = history.saves.get(step)
      if save is None:
        raise Break(step, STATE, "its checkpoint is there, and the chain has no save of it")
      try:
        _check_checkpoint(run, checkpoints, step, save)
      except DamageError as error:
        raise Break(step, STATE, one_line(error)) from None
      except (KeyError, TypeError, ValueError) as error:
        reason = f"its manifest describes its tensors wrongly ({one_line(error):.60})"
        raise Break(step, STATE, reason) from None
      covered.append(step)
  return covered


def _check_checkpoint(run: CertifiedRun, checkpoints: Checkpoints, step: int, save: Save) -> None:
  """Check one checkpoint; raise Break or DamageError."""
  entries_by_name: dict[str, dict[str, Any]] = {}

  def note_entries(saved: dict[str, dict[str, Any]]) -> dict:
    entries_by_name.update(saved)
    return {}

  _, _, metadata = checkpoints.restore(note_entries, step)
  if checkpoints.restored_digest != save.state:
    raise Break(
      step,
      STATE,
      f"its checkpoint holds the state {checkpoints.restored_digest[:12]}, and the run saved "
      f"{save.state[:12]}",
    )
  _check_metadata(run, step, metadata, save)
  sharding = SingleDeviceSharding(jax.devices()[0])
  for key in sorted({name.partition("/")[0] for name in entries_by_name}):
    abstract = {}
    for name, entry in entries_by_name.items():
      if name.partition("/")[0] == key:
        dtype = jnp.dtype(entry["dtype"])
        abstract[name] = jax.ShapeDtypeStruct(tuple(entry["shape"]), dtype, sharding=sharding)
    checkpoints.restore(abstract, step)


def _check_metadata(run: CertifiedRun, step: int, metadata: dict[str, Any], save: Save) -> None:
  """Check the config and the number of skipped batches in a checkpoint's metadata."""
  identity = dict(metadata)
  rollbacks = identity.pop("rollbacks", {})
  batches_passed = rollbacks.get("batches_passed", 0)
  if batches_passed != save.batches_passed:
    raise Break(
      step,
      DATA,
      f"its checkpoint has passed over {batches_passed} batches, and the run over "
      f"{save.batches_passed}",
    )
  configs = [start.config for start in run.history.starts]
  # The checkpoint from which the first start continued may have an earlier config.
  if step > run.history.begins and checked_json.digest(identity) not in configs:
    raise Break(step, CONFIG, "its checkpoint names a config that no start of the chain has")
