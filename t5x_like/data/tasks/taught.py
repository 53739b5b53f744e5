"""Examples of another task with a teacher's likeliest next tokens, stored by `tools.cache_teacher`.

  config.task = {"name": "taught", "store": "data/taught"}

An item of the store is an example: all features of its task, and at each target the teacher's k
likeliest tokens, in order, with their log-probabilities: `teacher_tokens` int32 and
`teacher_log_probabilities` float32, [T, k]. Random spans or masks of the task were drawn when the
store was made, so every epoch has the same examples. For `:debug`, the built-in corpus has an
artificial teacher that gives the target half of the probability.
"""

import dataclasses
import math

import numpy as np

from t5x_like import data
from t5x_like.data.features import Feature, Features, decoder
from t5x_like.data.preprocessors.decoder_only import decoder_only
from t5x_like.data.supervised.labelled import batch_from_reader
from t5x_like.data.task import Task, TaskArguments, unfingerprinted
from t5x_like.data.windows import Windows
from t5x_like.errors import UserError
from t5x_like.files.paths import as_path
from t5x_like.quiet_tensorflow import tf
from t5x_like.store import manifest as manifests
from t5x_like.store.reader import Store, Verify
from t5x_like.vocabularies import Vocabulary, start_id

# The fact of a manifest that gives the shape and dtype of each feature.
FACT = "examples"
_BUILT_IN_LENGTH = 64
_BUILT_IN_K = 3


def tiny(length: int) -> dict[str, int]:
  """Return no lengths for the recipe form `:tiny`: the store determines them."""
  return {}


def teacher_features(length: int, k: int) -> Features:
  """Describe the features that a teacher adds to a row."""
  return {
    "teacher_tokens": Feature((length, k), "int32"),
    "teacher_log_probabilities": Feature((length, k), "float32"),
  }


_BUILT_IN_FEATURES = decoder(_BUILT_IN_LENGTH) | teacher_features(_BUILT_IN_LENGTH, _BUILT_IN_K)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(TaskArguments):
  """The arguments of a task on stored examples.

  Attributes:
    store: the directory with a store of each split, local or at a URL; or `builtin`.
    verify: the checks on opening, see `Store.open`.
  """

  store: str = unfingerprinted("the fingerprint covers the content of the store")
  verify: Verify = unfingerprinted("it only checks files", default="auto")

  def features(self, vocabulary: Vocabulary) -> Features:
    """Return the features of the examples in the store's split `train`."""
    if self.store == "builtin":
      return _BUILT_IN_FEATURES
    return _store_features(_open(self.store, "train", "size"))

  def build(self) -> Task:
    """Open the store and return the task.

    Raises:
      UserError: there is no such store, or it holds something else.
    """
    if not isinstance(self.store, str):
      return self._build_built_in()
    examples = _open(self.store, self.split, self.verify)
    features = _store_features(examples)
    data.announce(
      f"{examples.path}: {examples.num_items:,} examples with {_describe_teacher(examples)}",
      f"; {examples.verification}",
    )

    def read(index_B: np.ndarray) -> dict[str, np.ndarray]:
      arrays = {}
      for name, feature in features.items():
        size = math.prod(feature.shape)
        flat = examples.read_ranges(name, index_B * size, np.full(index_B.size, size))
        arrays[name] = flat.reshape(index_B.size, *feature.shape)
      return arrays

    return Task(
      name=examples.name,
      vocabulary=examples.vocabulary,
      fingerprint=self.fingerprint("taught.v1", store=examples.fingerprint),
      num_examples=examples.num_items,
      features=features,
      batch=batch_from_reader(read, features),
    )

  def _build_built_in(self) -> Task:
    """Return the task on the built-in corpus, whose `store` is a function."""
    windows = Windows(self.store, self.split, _BUILT_IN_LENGTH, documents_end="eos")

    def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
      rows = decoder_only(windows.read(example_index_B), start_id(windows.vocabulary))
      ids_BTk = rows["decoder_target_tokens"][..., None] + tf.range(_BUILT_IN_K)
      log_p_BTk = tf.broadcast_to(tf.math.log([0.5, 0.3, 0.1]), tf.shape(ids_BTk))
      return rows | {"teacher_tokens": ids_BTk, "teacher_log_probabilities": log_p_BTk}

    return Task(
      name=f"{windows.tokens.name}_taught",
      vocabulary=windows.vocabulary,
      fingerprint=self.fingerprint("taught.v1", store=windows.tokens.fingerprint),
      num_examples=windows.num_examples,
      features=_BUILT_IN_FEATURES,
      batch=batch,
    )


def _open(store: str, split: str, verify: Verify) -> Store:
  """Open the store of a split; raise UserError, with the command that makes it, if missing."""
  if not (as_path(f"{store}/{split}") / manifests.FILE).is_file():
    raise UserError(
      f"config.task.store: found no store {store}/{split}; make it with python -m "
      "tools.cache_teacher"
    )
  return Store.open(f"{store}/{split}", verify)


def _store_features(store: Store) -> Features:
  """Return the features of a store's examples; raise UserError for another kind of store."""
  facts = store.manifest.facts.get(FACT)
  if not isinstance(facts, dict):
    raise UserError(
      f"{store.path}: holds no examples of a teacher, expected a store that "
      "tools.cache_teacher made"
    )
  return {name: Feature(tuple(shape), dtype) for name, (shape, dtype) in facts.items()}


def _describe_teacher(store: Store) -> str:
  """Describe what a store holds of its teacher's predictions."""
  k = store.manifest.facts[FACT]["teacher_tokens"][0][-1]
  return f"the {k} likeliest tokens of {store.manifest.source.get('teacher', 'a teacher')}"
