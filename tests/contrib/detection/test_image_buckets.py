"""Cutting batches of images to few sizes loses no pixel."""

import numpy as np

from t5x_like.contrib.detection.training.image_buckets import ImageBuckets
from t5x_like.data.features import Feature


def test_images_keep_every_pixel_and_lose_padding():
  features = {
    "image": Feature((100, 100, 3), "float32"),
    "boxes": Feature((4, 4), "float32"),
  }
  kind = ImageBuckets(features, 4)
  for largest, shape in (((20, 70), (32, 96)), ((100, 33), (100, 64)), ((32, 97), (32, 100))):
    sizes = np.array([largest, (largest[0], 5), (3, largest[1])])
    image = np.zeros((3, 100, 100, 3), np.float32)
    for row, (y, x) in enumerate(sizes):
      image[row, :y, :x] = 1.0
    cut = kind.cut({"image": image, "image_size": sizes, "boxes": np.ones((3, 4, 4))})
    assert kind.shape(cut) == shape
    assert cut["image"].sum() == image.sum()
    assert kind.cut_features(shape) == features | {"image": Feature((*shape, 3), "float32")}
