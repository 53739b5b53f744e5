"""Open a trained model, of a run or published, and restore its parameters."""

import dataclasses
from typing import Any

import jax
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like import trust
from t5x_like.abstract_model import build_model
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.checkpoints.manifest import flatten, nest
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.linear import without_adapters
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.training import ema
from t5x_like.training import workdir as workdirs

# Keys that a published model's identity has and no run writes; `interop/published.py` explains
# them.
_PUBLISHED = ("directory", "ends", "forced", "generation", "banned")


@dataclasses.dataclass(frozen=True)
class SavedModel:
  """A run whose parameters can be restored.

  Attributes:
    workdir: the run's directory or address.
    config: the resolved config.
    identity: the content of `config.json`.
    model: the abstract model.
    rules: mesh and sharding rules.
    published: the `PublishedModel` of `interop`; None for a run.
  """

  workdir: str
  config: ConfigDict
  identity: dict[str, Any]
  model: Any
  rules: Rules
  published: Any = None

  def restore(
    self, step: int | None = None, folder: str = "checkpoints"
  ) -> tuple[int, dict[str, jax.Array]]:
    """Return (step, parameters by name) of a checkpoint, on the mesh of `rules`.

    The parameters are their mean, if the run keeps one.

    Args:
      step: None for the newest intact one.
      folder: the directory of the checkpoints in the workdir; `best` has the one that
        `config.selection` picked.
    Raises:
      UserError: no such checkpoint, or a damaged one.
    """
    if self.published is not None:
      return 0, self.published.arrays(self.rules)
    directory = f"{self.workdir}/{folder}"
    abstract = self.rules.abstract_params(params.named_params(self.model))
    with Checkpoints(directory) as checkpoints:
      if folder == "checkpoints" and self._keeps_mean():
        restored = checkpoints.restore(
          lambda saved: nest(ema.averaged_tensors(saved, abstract)), step
        )
        if restored is not None:
          restored_step, tree, _ = restored
          named = ema.averaged_params(flatten(tree))
          if named:
            return restored_step, {name: named[name] for name in abstract}
      restored = checkpoints.restore({"params": nest(abstract)}, step)
    if restored is None:
      raise UserError(f"{directory}: no checkpoint yet; train first, or check --workdir")
    restored_step, tree, _ = restored
    named = flatten(tree["params"])
    return restored_step, {name: named[name] for name in abstract}

  def _keeps_mean(self) -> bool:
    """Return whether the optimizer keeps a mean of the weights that is to be used."""
    optimizer = self.config.optimizer
    return bool(optimizer.use_ema and (optimizer.get("ema") or optimizer.get("schedule_free")))


def open_saved_model(
  workdir: str, rules: Rules | None = None, flag: str = "--workdir"
) -> SavedModel:
  """Open a run with its saved config, or a published model; its parameters stay where they are.

  Args:
    workdir: the run's directory or address; or a Hugging Face directory, or a name of the Hub.
    rules: the mesh to restore on; None is the run's own, or all devices for a published model.
    flag: the flag or key that gave the workdir, for messages.
  Raises:
    UserError: the workdir holds no run, or its mesh does not fit the devices.
  """
  identity, published = identify_model(workdir, flag)
  if published is not None:
    rules = rules or Rules.make(make_mesh({"data": -1}))
    return SavedModel(workdir, ConfigDict(identity), identity, published.model, rules, published)
  config = config_lib.restore(identity, [], f"{workdir}/{workdirs.IDENTITY_FILE}")
  model, _ = build_model(config)
  return SavedModel(workdir, config, identity, model, rules or Rules.from_config(config))


def find_identity(workdir: str, flag: str) -> dict[str, Any] | None:
  """Return the saved identity of a run or of a published model; None if there is neither.

  Args:
    flag: the flag or key that gave the workdir, for messages.
  """
  identity, _ = _look_up(workdir, flag)
  return identity


def load_identity(workdir: str, flag: str = "--workdir") -> dict[str, Any]:
  """Return the identity of a trained model; raise UserError if there is none."""
  return identify_model(workdir, flag)[0]


def identify_model(workdir: str, flag: str) -> tuple[dict[str, Any], Any]:
  """Return the identity of a trained model, and the `PublishedModel` that it is or None for a run.

  Args:
    flag: the flag or key that gave the workdir, for messages.
  Raises:
    UserError: there is no trained model, or it is damaged.
  """
  identity, published = _look_up(workdir, flag)
  if identity is None:
    from t5x_like.interop import hub

    raise hub.missing_model_error(str(workdir), flag)
  return identity, published


def _look_up(workdir: str, flag: str) -> tuple[dict[str, Any] | None, Any]:
  trust.check_location(flag, workdir)
  saved = workdirs.read_identity(workdir)
  if saved is not None and not {"model_type", "architecture"} & saved.keys():
    for key in _PUBLISHED:
      saved.pop(key, None)
    trust.check_links(str(workdir), f"{workdir}/{workdirs.IDENTITY_FILE}")
    return saved, None
  from t5x_like.interop.published import find

  published = find(str(workdir), flag)
  return published and published.identity, published


def vocabulary_directory(workdir: str, identity: dict[str, Any]) -> str:
  """Return the directory of the vocabulary of a trained model with this identity."""
  return identity.get("directory") or f"{str(workdir).rstrip('/')}/vocabulary"


def merge_for_export(model):
  """Return a model with merged adapters and without its reference and value head."""
  model = without_adapters(model, merged=True)
  for name in ("reference", "value"):
    if hasattr(model, name):
      delattr(model, name)
  return model
