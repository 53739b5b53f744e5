"""A trained model on disk, whose parameters are read when they are restored."""

import abc
import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like.abstract_model import build_model
from t5x_like.data import task_features
from t5x_like.nn.linear import without_adapters
from t5x_like.parallel.rules import Rules
from t5x_like.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class GenerationFacts:
  """The settings of a model's files for the generation of texts.

  Attributes:
    ends: ids that end a text.
    forced: the id that each answer begins with, and the id that ends an answer which is cut off;
      each None if there is none.
    options: options of generation, by their names in `predict`.
    banned: sequences of ids that no generated text contains.
  """

  ends: tuple[int, ...] = ()
  forced: tuple[int | None, int | None] = (None, None)
  options: dict[str, Any] = dataclasses.field(default_factory=dict)
  banned: frozenset[tuple[int, ...]] = frozenset()


class SavedModel(abc.ABC):
  """A trained model, either of a run or published.

  Attributes:
    path: the workdir or its address; the Hugging Face directory; or the name of the Hub.
    identity: the content of a run's `config.json`, or a published model's in the same form.
    is_published: whether it was read from a Hugging Face directory.
    config: the resolved config; of a published model, its identity.
    model: the abstract model.
    rules: mesh and sharding rules of the parameters.
    vocabulary: the vocabulary of training; raises UserError if it is damaged or another's.
    vocabulary_directory: the directory with its files.
    generation: the settings of its files for the generation of texts.
  """

  path: str
  identity: dict[str, Any]
  is_published: bool
  config: ConfigDict
  model: nnx.Module
  rules: Rules
  vocabulary: Vocabulary
  vocabulary_directory: str
  generation: GenerationFacts

  @abc.abstractmethod
  def restore(
    self, step: int | None = None, folder: str = "checkpoints"
  ) -> tuple[int, dict[str, jax.Array]]:
    """Return (step, parameters by name), on the mesh of `rules`.

    Args:
      step: a run's checkpoint; None is the newest intact one.
      folder: the directory of checkpoints in a workdir; `best` has the one that `config.selection`
        picked.
    Raises:
      UserError: there is no such checkpoint, or the files are damaged.
    """

  def with_config(self, config: ConfigDict, rules: Rules) -> "SavedModel":
    """Return this model under another resolved config, whose parameters must be the same."""
    changed = copy.copy(self)
    changed.config = config
    changed.rules = rules
    changed.model = build_model(config)
    return changed

  @property
  def vocabulary_fingerprint(self) -> str | None:
    """The fingerprint of the vocabulary of training; None if the identity is damaged."""
    return config_lib.flatten(self.identity).get("fingerprints.vocabulary")

  @property
  def feature_shapes(self) -> dict[str, Sequence[int]]:
    """The shapes of a row's features, from the data of training or else the recipe.

    Raises:
      UserError: imported weights without data, and a task that declares no features.
    """
    if self.identity["features"]:
      return self.identity["features"]
    declared = task_features.declare(self.identity["task"])
    return {name: list(feature.shape) for name, feature in declared.items()}


def merge_for_export(model: nnx.Module) -> nnx.Module:
  """Return a model with merged adapters and without its reference and value head."""
  model = without_adapters(model, merged=True)
  for name in ("reference", "value"):
    if hasattr(model, name):
      delattr(model, name)
  return model
