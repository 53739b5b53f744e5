"""Features of labelled images, for evaluators that learn from one split and score another."""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.corpora.sources import parse_split
from t5x_like.errors import UserError
from t5x_like.evals import EvalContext


@dataclasses.dataclass(frozen=True)
class LabelledFeatures:
  """The features of N images.

  Attributes:
    features_ND: float32 [N, D], the inputs of the model's head.
    label_N: int32 [N].
    index_N: the indices of the examples, int [N].
    digest_N: a digest of each image's pixels, uint64 [N], which equal images share.
  """

  features_ND: np.ndarray
  label_N: np.ndarray
  index_N: np.ndarray
  digest_N: np.ndarray

  def select(self, is_selected_N: np.ndarray) -> "LabelledFeatures":
    """Return the images selected by a mask, bool [N]."""
    arrays = (self.features_ND, self.label_N, self.index_N, self.digest_N)
    return LabelledFeatures(*(array[is_selected_N] for array in arrays))


class ImageFeatures:
  """The inputs of the model's head on two splits of a task.

  Args:
    context: the context of the split to score.
    support_split: the split to learn from.
    where: the evaluator, for messages.

  Attributes:
    support: the context of the other split.

  Raises:
    UserError: the model is not for labelled images, or the two splits are the same or have the same
      images.
  """

  def __init__(self, context: EvalContext, support_split: str, where: str):
    has_features = hasattr(context.model, "features")
    if not has_features or context.task.labels is None or context.for_split is None:
      raise UserError(
        f"evaluator {where}: found task {context.task.name}, expected a model and a task of "
        "labelled images; choose another evaluator"
      )
    self._context = context
    self.support = context.for_split(support_split)
    # `train` and `train[:200]` share images.
    split_name, _ = parse_split(context.split or "")
    support_name, _ = parse_split(support_split)
    is_same = self.support is context or split_name == support_name
    if is_same or _same_images(context.task, self.support.task):
      raise UserError(
        f"evaluator {where}: found the split {context.split!r} and the support_split "
        f"{support_split!r} of the same images, so images that it learns from would be scored; "
        "set either to another split"
      )
    self._where = where
    self._has_reported = False

    def features(model, batch):
      return (
        model.features(batch),
        batch["label"],
        batch["example_index"],
        pixel_digests(batch["image"]),
      )

    self._run = context.jit(features)

  def __call__(
    self,
    arrays: dict[str, jax.Array],
    support_batches: Iterator[dict[str, np.ndarray]],
    max_examples: int | None,
  ) -> tuple[LabelledFeatures, LabelledFeatures]:
    """Return the features of the images to learn from, and of those to score.

    Args:
      arrays: the parameters by name.
      support_batches: batches of the images to learn from.
      max_examples: the number of images to score, from the first; None means all.
    """
    support = self._compute(arrays, self.support, support_batches)
    scored = self._compute(arrays, self._context, self._context.batches(max_examples))
    return support, self.without_copies(scored, support)

  def _compute(self, arrays, context: EvalContext, batches) -> LabelledFeatures:
    """Return the features of the images in batches, without rows that only fill a batch."""
    outputs = context.run_batches(self._run, arrays, batches)
    features_ND, label_N, index_N, digest_N2 = outputs
    digest_N2 = digest_N2.astype(np.uint64)
    digest_N = digest_N2[:, 0] << np.uint64(32) | digest_N2[:, 1]
    return LabelledFeatures(features_ND, label_N, index_N, digest_N).select(index_N >= 0)

  def without_copies(self, scored: LabelledFeatures, support: LabelledFeatures) -> LabelledFeatures:
    """Return the scored images without copies of those to learn from, and report copies once.

    Raises:
      UserError: all of them are copies.
    """
    is_new_N = ~np.isin(scored.digest_N, support.digest_N)
    copies = len(is_new_N) - int(is_new_N.sum())
    if copies == len(is_new_N):
      raise UserError(
        f"evaluator {self._where}: all {copies} images to score are also among those that it "
        "learns from; set support_split to a split of other images"
      )
    if copies and not self._has_reported and jax.process_index() == 0:
      print(
        f"evaluator {self._where}: {copies} of {len(is_new_N)} images are also among those that "
        "it learns from, and are not scored",
        flush=True,
      )
    self._has_reported = True
    return scored.select(is_new_N)


def _same_images(task, support_task) -> bool:
  """Return whether two tasks have the same images.

  Their `numbering` then begins with the fingerprint of one store.
  """
  if task.numbering is None or support_task.numbering is None:
    return False
  return task.numbering.split()[0] == support_task.numbering.split()[0]


def pixel_digests(image_BYXC: jax.Array) -> jax.Array:
  """Return a digest of each image's pixels, uint32 [B, 2].

  Sums modulo 2**32 do not depend on the order of addition.
  """
  bits_BYXC = jax.lax.bitcast_convert_type(image_BYXC.astype(jnp.float32), jnp.uint32)
  bits_BN = bits_BYXC.reshape(len(image_BYXC), -1)
  place_N = jnp.arange(bits_BN.shape[1], dtype=jnp.uint32)
  sums = []
  for first, second in ((0x9E3779B1, 0x85EBCA77), (0xC2B2AE3D, 0x27D4EB2F)):  # the primes of xxHash
    mixed_BN = (bits_BN ^ (place_N * jnp.uint32(first))) * jnp.uint32(second)
    mixed_BN = (mixed_BN ^ (mixed_BN >> 15)) * jnp.uint32(first)
    mixed_BN = mixed_BN ^ (mixed_BN >> 13)
    sums.append(jnp.sum(mixed_BN, axis=1, dtype=jnp.uint32))
  return jnp.stack(sums, axis=1)
