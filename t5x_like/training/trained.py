"""Open a trained model, for evaluation, prediction and other runs: its config, model and parameters."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like import recipes, slots, vocabularies
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.checkpoints.manifest import flatten, nest
from t5x_like.data import features
from t5x_like.errors import UserError
from t5x_like.nn.linear import without_adapters
from t5x_like.parallel.rules import Rules
from t5x_like.rows import Opened, Runner
from t5x_like.runtime import process
from t5x_like.training import build
from t5x_like.training import workdir as workdirs
from t5x_like.training.resolve import adopted, resolve
from t5x_like.training.state import abstract_params


@dataclasses.dataclass(frozen=True)
class Trained:
  """A run whose parameters can be restored.

  Attributes:
    workdir: its directory or address.
    config: resolved.
    identity: the content of its `config.json`.
    model: the abstract model.
    rules: mesh and sharding rules.
  """

  workdir: str
  config: ConfigDict
  identity: dict[str, Any]
  model: Any
  rules: Rules

  @property
  def objective(self) -> Callable:
    """The objective that `config` names."""
    return build.objective_of(self.config)

  def check(self, vocabulary=None) -> None:
    """Check that the model, and a vocabulary, are unchanged since training; raise UserError with the changed keys."""
    now, then = {"model": self.config.model.to_dict()}, {"model": dict(self.identity["model"])}
    if vocabulary is not None:
      now["fingerprints"] = {"vocabulary": vocabulary.fingerprint}
      then["fingerprints"] = {"vocabulary": workdirs.vocabulary_print(self.identity)}
    for tree in (now, then):  # dropout does not affect a trained model
      tree["model"].pop("dropout", None)
    workdirs.check(then, now, self.workdir)

  def vocabulary(self):
    """Return the run's vocabulary; raise UserError if it is another's or damaged."""
    vocabulary = vocabularies.load(f"{self.workdir}/vocabulary")
    self.check(vocabulary)
    return vocabulary

  def restore(self, step: int | None = None, folder: str = "checkpoints") -> tuple[int, dict[str, jax.Array]]:
    """Return (step, parameters by name) of a checkpoint, on the mesh of `rules`.

    Args:
      step: None for the newest intact one.
      folder: the directory of the checkpoints in the workdir; `best` has the one that `config.selection` picked.
    Raises:
      UserError: no such checkpoint, or a damaged one.
    """
    directory, wanted = f"{self.workdir}/{folder}", abstract_params(self.model, self.rules)
    with Checkpoints(directory) as checkpoints:
      restored = checkpoints.restore({"params": nest(wanted)}, step)
    if restored is None:
      raise UserError(f"{directory}: no checkpoint yet; train first, or check --workdir")
    found, tree, _ = restored
    named = flatten(tree["params"])
    return found, {name: named[name] for name in wanted}

  def row_features(self) -> dict[str, list[int]]:
    """Return the shapes of the features of one row, without the number of rows in an example.

    Raises:
      UserError: imported weights, whose run has seen no data yet, and a task that declares no features.
    """
    shapes = self.identity["features"] or {name: one.shape for name, one in features.of(self.identity["task"]).items()}
    return {name: list(shape[-1:]) for name, shape in shapes.items()}


def open_saved(workdir: str, rules: Rules | None = None) -> Trained:
  """Open a run with its saved config; its parameters stay where they are.

  Args:
    workdir: the run's directory or address.
    rules: the mesh to restore on; None is the run's own.
  Raises:
    UserError: the workdir holds no run, or its mesh does not fit the devices.
  """
  identity = _identity(workdir)
  config = config_lib.restored(identity, [], f"{workdir}/{workdirs.FILE}")
  model, _ = build.model_of(config)
  return Trained(workdir, config, identity, model, rules or build.mesh_rules(config))


def open_run(workdir: str, recipe: str | None, overrides: Sequence[str], rows: bool = False) -> Trained:
  """Open a run with a recipe or with changes to its config; its parameters stay where they are.

  Args:
    workdir: the run's directory or address.
    recipe: a recipe as for training, or None for the run's saved config.
    overrides: `KEY=VALUE` of each `--config.KEY=VALUE`.
    rows: whether the run is used on rows of any number, so that its batch size does not matter.
  Raises:
    UserError: the workdir holds no run, or the config has another model.
  """
  identity = _identity(workdir)
  if rows:
    overrides = [*overrides, f"batch_size={jax.device_count()}", "accumulation_steps=1"]  # fits any mesh
  if recipe is None:
    config = config_lib.restored(identity, overrides, f"{workdir}/{workdirs.FILE}")
  else:
    config = adopted(recipes.load(recipe, overrides), workdir)
    if "tokens" in identity["model"]:
      with config.model.unlocked(), config.model.ignore_type():
        config.model.tokens = identity["model"]["tokens"]  # from the vocabulary
    config.tuning = ConfigDict(identity["tuning"])  # the adapters
  config = resolve(config)
  rules, (model, _) = build.mesh_rules(config), build.model_of(config)
  build.check_batch(config, rules)
  run = Trained(workdir, config, identity, model, rules)
  run.check()
  return run


def _identity(workdir: str) -> dict[str, Any]:
  identity = workdirs.read(workdir)
  if identity is None:
    raise UserError(f"{workdir}/{workdirs.FILE}: not found, so {workdir} holds no run; check --workdir")
  return identity


def finished(model):
  """Return the model as it is used elsewhere: its adapters merged, without a reference beside it."""
  model = without_adapters(model, merged=True)
  if hasattr(model, "reference"):
    del model.reference
  return model


def open_model(workdir: str, batch_size: int, step: int | None = None) -> Opened:
  """Open a checkpoint of a run, by default the newest, or a directory of a published model.

  Args:
    batch_size: rows in a batch.
  Raises:
    UserError: there is no run and no such checkpoint or model, or its vocabulary is another.
  """
  process.prepare()
  if "model_type" in (workdirs.read(workdir) or {}):
    return slots.module("published", "t5x_like.interop").opened(workdir, batch_size)
  run = open_saved(workdir)
  vocabulary = run.vocabulary()
  _, arrays = run.restore(step)
  ends = (vocabulary.eos_id,) if hasattr(vocabulary, "eos_id") else ()
  template = run.config.task.template if run.config.task.name in ("chat", "preferences") else None
  runner = Runner(run.model, run.rules, arrays, batch_size)
  return Opened(runner, vocabulary, run.row_features(), ends, template)
