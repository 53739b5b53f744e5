"""Batches of images that are cut to one of a few sizes lose padding only."""

import numpy as np
import pytest

from t5x_like.contrib.detection.training.image_buckets import ImageBuckets
from t5x_like.data.features import Feature


# Four buckets of a side of 100 pixels are 32, 64, 96 and 100 pixels.
@pytest.mark.parametrize(
  "largest, shape", [((20, 70), (32, 96)), ((100, 33), (100, 64)), ((32, 97), (32, 100))]
)
def test_images_keep_every_pixel_and_lose_padding(largest, shape):
  features = {
    "image": Feature((100, 100, 3), "float32"),
    "boxes": Feature((4, 4), "float32"),
  }
  image_buckets = ImageBuckets(features, buckets=4)
  sizes = np.array([largest, (largest[0], 5), (3, largest[1])])
  image = np.zeros((3, 100, 100, 3), np.float32)
  for row, (y, x) in enumerate(sizes):
    image[row, :y, :x] = 1.0
  cut = image_buckets.cut({"image": image, "image_size": sizes, "boxes": np.ones((3, 4, 4))})
  assert image_buckets.shape(cut) == shape
  assert cut["image"].sum() == image.sum()
  assert image_buckets.cut_features(shape) == features | {"image": Feature((*shape, 3), "float32")}
