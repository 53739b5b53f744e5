"""Read the batches of a task from Python, as training reads them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like import recipes, trust
from t5x_like.data.features import Feature
from t5x_like.runtime import process
from t5x_like.vocabularies import Vocabulary

Batch = dict[str, np.ndarray]


class Task:
  """Examples as a pure function of their index.

  `t5x.Task("span_corruption", store="data/corpus")[0]` is the first example.

  Args:
    name: a module of `t5x_like/data/tasks`.
    split: the split of the corpus.
    **arguments: as `config.task` in a recipe; docs/reference/tasks.md lists them.

  Attributes:
    name: the task's name in metrics.
    vocabulary: the vocabulary of the ids.
    features: the shapes, without the batch axis, and dtypes of the features.

  Raises:
    UserError: no such task, or an unknown, missing or wrong argument.
  """

  def __init__(self, name: str, split: str = "train", **arguments: Any):
    process.prepare()
    trust.admit_locations(arguments)
    self._task = process.build_task("task", name, split, arguments)
    self.name: str = self._task.name
    self.vocabulary: Vocabulary = self._task.vocabulary
    self.features: dict[str, Feature] = self._task.features

  @classmethod
  def of(
    cls,
    config: str | ConfigDict,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    split: str | None = None,
  ) -> "Task":
    """Return the task of a recipe, with the arguments of `t5x.Run`.

    Args:
      split: None is the split of training.
    """
    resolved = config_of(config, overrides)
    arguments = resolved.task.to_dict()
    return cls(arguments.pop("name"), split or resolved.train_split, **arguments)

  def batches(self, batch_size: int, *, seed: int = 0, start: int = 0) -> Iterator[Batch]:
    """Return endless training batches from step `start` on: each feature as [batch_size, *shape].

    A run with the same batch size and seed, and no earlier phases, trains on these batches.

    Raises:
      UserError: a batch size below 1.
    """
    from t5x_like.data import loader  # imports TensorFlow

    return loader.train_batches(self._task, batch_size=batch_size, seed=seed, start_step=start)

  def examples(self, batch_size: int, most: int | None = None) -> Iterator[Batch]:
    """Return every example once, or the first `most`, in index order, as evaluation reads them.

    The last batch is filled up with rows of zeros, whose `example_index` is -1.

    Raises:
      UserError: a batch size or number of examples below 1.
    """
    from t5x_like.data import loader

    return loader.eval_batches(self._task, batch_size=batch_size, max_examples=most)

  def __len__(self) -> int:
    return self._task.num_examples

  def __getitem__(self, index: int) -> Batch:
    """Return an example with the noise of the first epoch, each feature as [*shape]."""
    if not 0 <= index < len(self):
      raise IndexError(f"{self.name} has {len(self)} examples, found index {index}")
    batch = self._task.batch(np.array([index]), np.zeros(1, np.int64), 0)
    return {name: np.asarray(value)[0] for name, value in batch.items()}

  def __repr__(self) -> str:
    return f"<{type(self).__name__} {self.name}: {len(self):,} examples>"


def override_texts(overrides: Sequence[str] | Mapping[str, Any]) -> Sequence[str]:
  """Return `KEY=VALUE` for each override."""
  if isinstance(overrides, Mapping):
    return [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
  return overrides


def config_of(
  config: str | ConfigDict, overrides: Sequence[str] | Mapping[str, Any] = ()
) -> ConfigDict:
  """Return the config of a recipe, or a config made in Python, with overrides.

  Args:
    overrides: values by key, or a `KEY=VALUE` for each.
  Raises:
    UserError: there is no such recipe, or a key or value is invalid.
  """
  overrides = override_texts(overrides)
  if isinstance(config, str):
    return recipes.load(config, overrides)
  overridden = config_lib.apply_overrides(ConfigDict(config.to_dict()), overrides, "config")
  trust.admit(overridden)
  return overridden
