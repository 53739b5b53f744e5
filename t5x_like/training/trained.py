"""A training run as evaluation and prediction see it: its config and its parameters."""

import dataclasses
import json
from typing import Any

import jax
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like import recipes
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.checkpoints.manifest import flatten
from t5x_like.data import features
from t5x_like.errors import UserError
from t5x_like.files.places import place
from t5x_like.nn import params
from t5x_like.nn.linear import without_adapters
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.rows import Runner
from t5x_like.training import imported
from t5x_like.training import workdir as workdirs
from t5x_like.training.assembly import Parts
from t5x_like.training.state import to_tree

_LENGTHS = ("n_positions", "max_position_embeddings", "n_ctx", "max_seq_len")  # keys of config.json
_UNLIMITED = 2048  # tokens, where it names no length


def open_config(workdir: str, recipe: str | None, overrides: list[str]) -> tuple[ConfigDict, dict[str, Any]]:
  """The config to use, and the identity that the run was trained with.

  Args:
    workdir: of the run, a directory or an address.
    recipe: a recipe as for training, or None for the run's saved config.
    overrides: `KEY=VALUE` of each `--config.KEY=VALUE`.
  Raises:
    UserError: the workdir holds no run.
  """
  identity = workdirs.read(workdir)
  if identity is None:
    raise UserError(f"{workdir}/{workdirs.FILE}: not found, so {workdir} holds no run; check --workdir")
  if recipe is not None:
    config = imported.adopt(recipes.load(recipe, overrides), workdir)
    if "tokens" in identity["model"]:
      with config.model.unlocked(), config.model.ignore_type():
        config.model.tokens = identity["model"]["tokens"]  # from the vocabulary
    if "tuning" in identity:
      config.tuning = ConfigDict(identity["tuning"])  # says which adapters there are
    return config, identity
  return config_lib.restored(identity, overrides, f"{workdir}/{workdirs.FILE}"), identity


def check_model(identity: dict[str, Any], config: ConfigDict, workdir: str, vocabulary=None) -> None:
  """Checks that the model and the vocabulary are those the run was trained with.

  Raises:
    UserError: listing the keys that differ.
  """
  now = {"model": config.model.to_dict()}
  then = {"model": identity["model"]}
  if vocabulary is not None:
    now["fingerprints"] = {"vocabulary": vocabulary.fingerprint}
    then["fingerprints"] = {"vocabulary": identity["fingerprints"]["vocabulary"]}
  for tree in (now, then):  # dropout does not affect a trained model
    tree["model"] = {k: v for k, v in tree["model"].items() if k != "dropout"}
  workdirs.check(then, now, workdir)


def restore_params(
  workdir: str, parts: Parts, step: int | None, folder: str = "checkpoints"
) -> tuple[int, dict[str, jax.Array]]:
  """The parameters of a checkpoint, on the mesh of `parts`.

  Args:
    step: None for the newest intact one.
    folder: of the checkpoints in the workdir; `best` has the one that `config.selection` picked.
  Raises:
    UserError: no such checkpoint, or a damaged one.
  """
  directory = f"{workdir}/{folder}"
  with Checkpoints(directory) as checkpoints:
    restored = checkpoints.restore({"params": to_tree(parts.state)["params"]}, step)
  if restored is None:
    raise UserError(f"{directory}: no checkpoint yet; train first, or check --workdir")
  found, tree, _ = restored
  named = flatten(tree["params"])
  return found, {name: named[name] for name in parts.state.params}


def finished(model):
  """The model as it is used elsewhere: its adapters merged, without a reference beside it."""
  model = without_adapters(model, merged=True)
  if hasattr(model, "reference"):
    del model.reference
  return model


def row_features(identity: dict[str, Any]) -> dict[str, list[int]]:
  """The shapes of the features of one row: of a run whose examples have several, without their number.

  Raises:
    UserError: imported weights, whose run has seen no data yet, and a task whose features only its data tell.
  """
  shapes = identity["features"] or {name: one.shape for name, one in features.of(identity["task"]).items()}
  return {name: list(shape[-1:]) for name, shape in shapes.items()}


@dataclasses.dataclass(frozen=True)
class Opened:
  """A model that is ready for use.

  Attributes:
    model: the abstract model.
    run: applies it to rows, with the parameters of a checkpoint.
    vocabulary, features: those that it was trained with.
    ends: ids that end a text; none of a model of images.
    template: the chat template of a decoder trained on conversations, else None.
  """

  model: Any
  run: Runner
  vocabulary: Any
  features: dict[str, list[int]]
  ends: tuple[int, ...]
  template: str | None = None


def open_model(workdir: str, batch_size: int, step: int | None = None) -> Opened:
  """Opens a checkpoint of a run, by default the newest, or a Hugging Face directory.

  Args:
    batch_size: rows in a batch.
  Raises:
    UserError: there is no run and no such checkpoint or model, or its vocabulary is another.
  """
  from t5x_like import vocabularies
  from t5x_like.runtime import process
  from t5x_like.training import assembly

  process.prepare()
  if _is_published(workdir):
    return _open_published(workdir, batch_size)
  config, identity = open_config(workdir, None, [])
  vocabulary = vocabularies.load(f"{workdir}/vocabulary")
  config.batch_size, config.accumulation_steps = jax.device_count(), 1  # fits any mesh; the runner has its own
  config = assembly.resolve(config)
  check_model(identity, config, workdir, vocabulary)
  parts = assembly.build(config)
  _, arrays = restore_params(workdir, parts, step)
  run = Runner(parts.model, parts.rules, arrays, batch_size)
  ends = (vocabulary.eos_id,) if hasattr(vocabulary, "eos_id") else ()
  template = config.task.template if config.task.name in ("chat", "preferences") else None
  return Opened(parts.model, run, vocabulary, row_features(identity), ends, template)


def _is_published(directory: str) -> bool:
  """Whether a directory is one of Hugging Face: its config names a model type, not a run."""
  try:
    found = json.loads((place(directory) / workdirs.FILE).read_text())
  except (OSError, ValueError):
    return False
  return isinstance(found, dict) and "model_type" in found


def _open_published(directory: str, batch_size: int) -> Opened:
  from t5x_like import vocabularies
  from t5x_like.interop import hf

  if not vocabularies.storage.has_tokenizer(place(directory)):
    raise UserError(
      f"{directory}: found no tokenizer beside the model, expected tokenizer.json or its like; copy it there"
    )
  rules = Rules.make(make_mesh({"data": -1}))
  model = hf.load(directory, rules=rules, layers="loop" if jax.default_backend() == "cpu" else "scan")
  vocabulary = vocabularies.load(directory)
  size = model.variant.vocab_size
  if vocabulary.size > size:
    raise UserError(
      f"{directory}: the tokenizer has {vocabulary.size} ids, the model {size} token vectors; the tokenizer is another"
      " model's"
    )
  values = json.loads(model.origin.config)
  length = next((values[key] for key in _LENGTHS if isinstance(values.get(key), int)), _UNLIMITED)
  both = hasattr(model, "encode")
  described = features.encoder_decoder(length, length, vocabulary) if both else features.decoder(length)
  shapes = {name: list(one.shape) for name, one in described.items()}
  ends = values.get("eos_token_id")
  ends = {vocabulary.eos_id, *(ends if isinstance(ends, list) else [] if ends is None else [ends])}
  run = Runner(jax.eval_shape(lambda: model), rules, params.arrays(model), batch_size)
  return Opened(run.model, run, vocabulary, shapes, tuple(sorted(i for i in ends if i < size)))
