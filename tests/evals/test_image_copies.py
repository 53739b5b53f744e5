"""Evaluators that learn from one split of images never score an image of it."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.errors import UserError
from t5x_like.evals._image_features import ImageFeatures, LabelledFeatures, pixel_digests

NOISE = np.random.default_rng(0).standard_normal((6, 5, 4, 3)).astype(np.float32)


def make_context(split: str, numbering: str, support_numbering: str = "b 1"):
  task = SimpleNamespace(name="images", labels=np.zeros(3), numbering=numbering)
  support = SimpleNamespace(task=SimpleNamespace(numbering=support_numbering))
  model = SimpleNamespace(features=lambda batch: batch["image"].mean((1, 2)))
  return SimpleNamespace(
    model=model, task=task, split=split, for_split=lambda _: support, jit=lambda function: function
  )


def label_features(image_NYXC: np.ndarray) -> LabelledFeatures:
  digest_N = np.asarray(pixel_digests(jnp.asarray(image_NYXC)))[:, 0]
  number = len(image_NYXC)
  return LabelledFeatures(image_NYXC.mean((1, 2)), np.zeros(number), np.arange(number), digest_N)


def test_copies_have_one_digest_and_other_images_another():
  changed = NOISE.copy()
  changed[0, 0, 0, 0] = np.nextafter(changed[0, 0, 0, 0], 9, dtype=np.float32)
  mirrored = NOISE[:, :, ::-1]
  images = np.concatenate(
    [NOISE, NOISE[::-1], changed[:1], mirrored, NOISE * 2, np.zeros_like(NOISE[:1])]
  )
  digests = [tuple(row) for row in np.asarray(pixel_digests(jnp.asarray(images)))]
  assert digests[:6] == digests[6:12][::-1]
  # 6 images, 1 changed by a bit, 6 mirrored, 6 doubled, 1 of zeros
  assert len(set(digests)) == 6 + 1 + 6 + 6 + 1


def test_images_that_the_evaluator_learns_from_are_not_scored(capsys):
  features = ImageFeatures(make_context("validation", "a 1"), "train", "knn")
  scored = features.without_copies(label_features(NOISE), label_features(NOISE[[4, 1]]))
  assert scored.index_N.tolist() == [0, 2, 3, 5]
  features.without_copies(label_features(NOISE), label_features(NOISE[[4, 1]]))
  message = "evaluator knn: 2 of 6 images are also among those that it learns from"
  assert capsys.readouterr().out.count(message) == 1  # once for both calls
  with pytest.raises(UserError, match="evaluator knn: all 6 images to score are also among those"):
    features.without_copies(label_features(NOISE), label_features(NOISE[::-1]))


def test_two_splits_of_the_same_images_are_refused():
  """A source as `folders:train=val,validation=val` has two stores with the same content."""
  words = "'validation' and the support_split 'train' of the same images"
  with pytest.raises(UserError, match=words):
    ImageFeatures(make_context("validation", "b 2"), "train", "knn")
  with pytest.raises(UserError, match="of the same images"):
    ImageFeatures(make_context("train[:9]", "a 1"), "train", "few_shot")
