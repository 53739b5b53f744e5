"""`digits`: 1,797 handwritten digits of scikit-learn, for trying out image recipes.

Images have 8 x 8 pixels. The last 297 are the validation split. The data are Alpaydin and Kaynak's
"Optical Recognition of Handwritten Digits" (UCI, 1998).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from t5x_like.corpora.sources import Record, check_split
from t5x_like.corpora.sources import Source as Base
from t5x_like.corpora.sources.idx import encode_png

TRAIN = 1500


class Source(Base):
  """Grey images, fields `image` (a PNG) and `label`, "0" to "9"."""

  splits = ("train", "validation")
  name = "digits"

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    del spec, fields, data_dir

  def classes(self, field: str) -> tuple[str, ...]:
    return tuple("0123456789")

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record]]:
    from sklearn.datasets import load_digits

    check_split(self, split)
    dataset = load_digits()
    numbers = range(TRAIN) if split == "train" else range(TRAIN, len(dataset.target))
    for n in numbers:
      image = np.round(dataset.images[n] * (255 / 16)).astype(np.uint8)
      yield f"digits, image {n}", {"image": encode_png(image), "label": str(dataset.target[n])}

  def facts(self, field: str) -> dict[str, Any]:
    return self.split_facts("train")

  def split_facts(self, split: str) -> dict[str, Any]:
    return {"form": f"{self.name}.v1", "split": split}
