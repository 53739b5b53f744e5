"""Open a run with its certificate."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like import trust
from t5x_like.certificate import chain
from t5x_like.certificate.history import (
  BOUND_FLOAT32,
  BOUND_LOW_PRECISION,
  History,
  HistoryReader,
)
from t5x_like.errors import UserError
from t5x_like.files import checked_json
from t5x_like.files.mirror import copy_small_files
from t5x_like.saved_model.workdir import (
  CHECKPOINTS,
  HISTORY_FILE,
  IDENTITY_FILE,
  read_history,
  read_identity,
)
from t5x_like.training.resolve import resolve


@dataclasses.dataclass(frozen=True)
class CertifiedRun:
  """A run whose chain is one history.

  Attributes:
    address: the address of its workdir.
    folder: a local directory with its small files.
    identity: the content of its `config.json`.
    history: the history that its chain records.
    overrides: `KEY=VALUE` of each `--config.KEY=VALUE`, such as another location of the data.
    bound: the largest relative difference of losses that other versions or devices may cause.
  """

  address: str
  folder: pathlib.Path
  identity: dict[str, Any]
  history: History
  overrides: Sequence[str]
  bound: float

  @property
  def checkpoint_directory(self) -> str:
    return f"{self.address.rstrip('/')}/{CHECKPOINTS}"

  def config(self, identity: dict[str, Any] | None = None) -> ConfigDict:
    """Return the resolved config of an identity; None is the identity in `config.json`."""
    origin = f"{self.address}/{IDENTITY_FILE}"
    return resolve(config_lib.restore(identity or self.identity, self.overrides, origin))

  def identity_of(self, config_digest: str) -> dict[str, Any] | None:
    """Return the identity with a digest, from `config.json` or `history.jsonl`; None if lost."""
    if checked_json.digest(self.identity) == config_digest:
      return self.identity
    for row in read_history(self.folder, self.address):
      identity = row.get("config")
      if isinstance(identity, dict) and checked_json.digest(identity) == config_digest:
        signed = trust.is_signed(identity, row.get(trust.SIGNATURE))
        trust.record_file(f"{self.address}/{HISTORY_FILE}", identity, self.address, signed)
        return identity
    return None


def open_certified_run(address: str, overrides: Sequence[str] = ()) -> CertifiedRun:
  """Open the run in a workdir, and read its chain.

  Raises:
    Break: the chain is not one history.
    UserError: there is no run, or no chain.
  """
  folder = copy_small_files(address, with_certificate=True)
  identity = read_identity(folder, address)
  if identity is None:
    raise UserError(f"{address}: holds no run (no {IDENTITY_FILE}); give the workdir of a run")
  trust.check_links(address, f"{address}/{IDENTITY_FILE}")
  model = identity.get("model")
  dtype = model.get("dtype") if isinstance(model, dict) else None
  bound = BOUND_FLOAT32 if dtype == "float32" else BOUND_LOW_PRECISION
  history = HistoryReader(bound).read(chain.read_lines(folder, address))
  return CertifiedRun(address, folder, identity, history, overrides, bound)
