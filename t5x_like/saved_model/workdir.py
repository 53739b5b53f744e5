"""Read the model of a run from its workdir.

`config.json` is the run's identity. `history.jsonl` has copies of it, which replace it where it
is missing or damaged.
"""

import datetime
import functools
import json
import logging
import pathlib
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like import trust, vocabularies
from t5x_like.abstract_model import build_model
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import UserError, one_line
from t5x_like.files import checked_json, local
from t5x_like.files.paths import as_path
from t5x_like.nn import params
from t5x_like.parallel.rules import Rules
from t5x_like.saved_model.averaged_weights import averaged_params, averaged_tensors
from t5x_like.saved_model.model import GenerationFacts, SavedModel
from t5x_like.vocabularies import Vocabulary

IDENTITY_FILE = "config.json"
HISTORY_FILE = "history.jsonl"
CHECKPOINTS = "checkpoints"  # the folder of a run's checkpoints
_PUBLISHED_KEYS = {"model_type", "architecture"}  # of a `config.json` of Hugging Face or timm
Rows = list[dict[str, Any]]
_log = logging.getLogger("t5x_like.workdir")


class WorkdirModel(SavedModel):
  """The model of a run.

  Args:
    path, identity: see `SavedModel`.
    rules: the mesh to restore on; None is the run's own.
  """

  is_published = False

  def __init__(self, path: str, identity: dict[str, Any], rules: Rules | None = None):
    self.path = path
    self.identity = identity
    self.vocabulary_directory = f"{path.rstrip('/')}/vocabulary"
    if rules is not None:
      self.rules = rules

  @functools.cached_property
  def config(self) -> ConfigDict:
    return config_lib.restore(self.identity, [], f"{self.path}/{IDENTITY_FILE}")

  @functools.cached_property
  def model(self) -> nnx.Module:
    return build_model(self.config)

  @functools.cached_property
  def rules(self) -> Rules:
    return Rules.from_config(self.config)

  @functools.cached_property
  def vocabulary(self) -> Vocabulary:
    vocabulary = vocabularies.load(self.vocabulary_directory)
    if vocabulary.fingerprint != self.vocabulary_fingerprint:
      raise UserError(
        f"{self.vocabulary_directory}: fingerprints.vocabulary: found {vocabulary.fingerprint}, "
        f"expected {self.vocabulary_fingerprint}, with which {self.path} was trained; restore the "
        "directory from a backup"
      )
    return vocabulary

  @functools.cached_property
  def generation(self) -> GenerationFacts:
    if not hasattr(self.vocabulary, "eos_id"):
      return GenerationFacts()
    return GenerationFacts(ends=(self.vocabulary.eos_id,))

  def restore(
    self, step: int | None = None, folder: str = CHECKPOINTS
  ) -> tuple[int, dict[str, jax.Array]]:
    """Return (step, parameters by name); their mean, if the run keeps one."""
    abstract_params = self.rules.abstract_params(params.named_params(self.model))
    directory = f"{self.path}/{folder}"
    with Checkpoints(directory) as checkpoints:
      if folder == CHECKPOINTS and self._keeps_mean():
        checkpoint = checkpoints.restore(
          lambda saved: averaged_tensors(saved, abstract_params), step
        )
        if checkpoint is not None:
          restored_step, tensors, _ = checkpoint
          averaged = averaged_params(tensors)
          if averaged:
            return restored_step, {name: averaged[name] for name in abstract_params}
      checkpoint = checkpoints.restore({"params": abstract_params}, step)
    if checkpoint is None:
      raise UserError(f"{directory}: no checkpoint yet; train first, or check --workdir")
    restored_step, state, _ = checkpoint
    return restored_step, {name: state["params"][name] for name in abstract_params}

  def _keeps_mean(self) -> bool:
    """Return whether the optimizer keeps a mean of the weights that is to be used."""
    optimizer = self.config.optimizer
    return bool(optimizer.use_ema and (optimizer.get("ema") or optimizer.get("schedule_free")))


def find_run(path: str, rules: Rules | None) -> WorkdirModel | None:
  """Open the model of a run; return None if the path holds no run.

  Args:
    path: a directory or address.
    rules: see `WorkdirModel`.
  Raises:
    UserError: its `config.json` is damaged, or a link leads out of a workdir from elsewhere.
  """
  identity = read_identity(path)
  if identity is None or _PUBLISHED_KEYS & identity.keys():
    return None
  trust.check_links(path, f"{path}/{IDENTITY_FILE}")
  return WorkdirModel(path, identity, rules)


def read_identity(workdir, address=None) -> dict[str, Any] | None:
  """Return the saved identity of the run in a workdir, or None if there is no run.

  If the file is missing or damaged, its copy in `history.jsonl` is read instead, with a warning.

  Args:
    address: the workdir's address, for messages, if it differs.
  Raises:
    UserError: the file is not a JSON object and history has no copy, or it cannot be read.
  """
  source = address or workdir
  path = f"{source}/{IDENTITY_FILE}"
  content = _read_file(workdir, IDENTITY_FILE, path)
  damage = "missing"
  if content is not None:
    try:
      identity = json.loads(content)
      if not isinstance(identity, dict):
        raise ValueError("not a JSON object")
      signature = identity.pop(trust.SIGNATURE, None)
      trust.record_file(path, identity, source, trust.is_signed(identity, signature))
      return identity
    except (ValueError, RecursionError) as error:
      damage = f"damaged ({one_line(error) if content.strip() else 'empty'})"
  history_path = f"{source}/{HISTORY_FILE}"
  history = _read_file(workdir, HISTORY_FILE, history_path)
  rows = parse_history(history, history_path) if history else []
  copy = last_config(rows)
  if copy is not None:
    _log.warning("%s: %s; its copy in %s is used", path, damage, HISTORY_FILE)
    signed = any(trust.is_signed(copy, row.get(trust.SIGNATURE)) for row in rows)
    trust.record_file(history_path, copy, source, signed)
    return copy
  if content is None:
    return None
  raise UserError(
    f"{path}: {damage}, and {HISTORY_FILE} has no copy of it; restore the file from a backup, or "
    "delete it and run the train command that the run was started with (checkpoints say whether "
    "the config is theirs)"
  )


def _read_file(workdir, name: str, path: str) -> bytes | None:
  try:
    return (as_path(workdir) / name).read_bytes()
  except FileNotFoundError:
    return None
  except OSError as error:
    raise UserError(
      f"{path}: cannot be read: {error.strerror}; use a directory for --workdir"
    ) from error


def read_history(workdir, address=None) -> Rows:
  """Return the lines of `history.jsonl` in a local workdir, without incomplete and foreign ones.

  Args:
    address: the workdir's address, for warnings, if it differs.
  """
  content = local.read_content(pathlib.Path(workdir) / HISTORY_FILE)
  return parse_history(content or b"", f"{address or workdir}/{HISTORY_FILE}")


def parse_history(content: bytes, where) -> Rows:
  """Return the lines of a file with this content, without incomplete and foreign ones."""
  return [row for row, _ in checked_json.read_rows(content, where, _check_row)]


def last_config(rows: Rows) -> dict[str, Any] | None:
  """Return the config of the last start; None if no line has it, or its digest differs."""
  starts = [row for row in rows if "config_digest" in row]
  for row in reversed(starts):
    config = row.get("config")
    if isinstance(config, dict):
      return config if identity_digest(config) == starts[-1]["config_digest"] else None
  return None


def _check_row(row: dict[str, Any]) -> None:
  if not isinstance(row.get("time"), str):
    raise ValueError("an object without a time")
  datetime.datetime.fromisoformat(row["time"])


def identity_digest(identity: dict[str, Any]) -> str:
  return checked_json.digest(identity)[:16]
