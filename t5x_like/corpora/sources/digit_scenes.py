"""`digit_scenes`: grey images of 40 x 40 pixels with one to four digits, for trying out detection
recipes.

The digits come from scikit-learn (`digits.py`); validation scenes and training scenes use different
digits. Fields are `image` (a PNG) and `objects`, whose boxes enclose the ink.
"""

from collections.abc import Iterator

import numpy as np

from t5x_like.corpora.sources import Record, check_split, digits
from t5x_like.corpora.sources.idx import encode_png

_SIDE = 40
_GLYPH = 8
_MOST = 4
_SCENES = {"train": 1000, "validation": 120}


class Source(digits.Source):
  """Scenes of digits, identical on every machine."""

  name = "digit_scenes"

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record]]:
    from sklearn.datasets import load_digits

    check_split(self, split)
    found = load_digits()
    own = (
      np.arange(digits.TRAIN) if split == "train" else np.arange(digits.TRAIN, len(found.target))
    )
    for n in range(*part) if part else range(_SCENES[split]):
      yield f"digit_scenes, image {n}", _scene(found, own, np.random.default_rng([n, len(own)]))


def _scene(found, own: np.ndarray, generator: np.random.Generator) -> Record:
  image = generator.integers(0, 30, (_SIDE, _SIDE)).astype(np.uint8)
  objects = {"bbox": [], "label": [], "area": [], "is_crowd": []}
  # grid cells keep digits from overlapping
  free = generator.permutation((_SIDE // (2 * _GLYPH)) ** 2)
  for cell in free[: generator.integers(1, _MOST + 1)]:
    digit = int(generator.choice(own))
    zoom = int(generator.integers(1, 3))
    side = zoom * _GLYPH
    cells = _SIDE // (2 * _GLYPH)
    room = _SIDE // cells
    y, x = np.array(divmod(cell, cells)) * room + generator.integers(0, room - side + 1, 2)
    ink = np.kron(found.images[digit], np.ones((zoom, zoom)))
    place = image[y : y + side, x : x + side]
    place[...] = np.maximum(place, (ink * (255 / 16)).astype(np.uint8))
    rows, columns = (np.flatnonzero((ink > 4).any(axis=axis)) for axis in (1, 0))
    box = [y + rows[0], x + columns[0], y + rows[-1] + 1, x + columns[-1] + 1]
    objects["bbox"].append([float(edge) / _SIDE for edge in box])
    objects["label"].append(str(found.target[digit]))
    objects["area"].append(float((box[2] - box[0]) * (box[3] - box[1])))
    objects["is_crowd"].append(False)
  return {"image": encode_png(image), "objects": objects}
