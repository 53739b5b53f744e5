"""`digit_scenes`: grey images with one to four digits, for trying out detection recipes.

Images have 40 x 40 pixels. The digits come from scikit-learn (`digits.py`); training and validation
scenes use different digits. The fields are `image` (a PNG) and `objects`, whose boxes enclose the
ink.
"""

from collections.abc import Iterator

import numpy as np

from t5x_like.corpora.sources import Record, check_split, digits
from t5x_like.corpora.sources.idx import encode_png

_SIDE = 40  # pixels of an image's side
_GLYPH = 8  # pixels of the side of a digit in scikit-learn
_MAX_DIGITS = 4
_SCENES = {"train": 1000, "validation": 120}


class Source(digits.Source):
  """Scenes of digits, identical on every machine."""

  name = "digit_scenes"

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record]]:
    from sklearn.datasets import load_digits

    check_split(self, split)
    dataset = load_digits()
    if split == "train":
      digit_numbers = np.arange(digits.TRAIN)
    else:
      digit_numbers = np.arange(digits.TRAIN, len(dataset.target))
    first, end = part or (0, _SCENES[split])
    for n in range(first, end):
      generator = np.random.default_rng([n, len(digit_numbers)])
      yield f"digit_scenes, image {n}", _draw_scene(dataset, digit_numbers, generator)


def _draw_scene(dataset, digit_numbers: np.ndarray, generator: np.random.Generator) -> Record:
  """Return an image with some of the digits at random positions, and their boxes."""
  image = generator.integers(0, 30, (_SIDE, _SIDE)).astype(np.uint8)
  objects = {"bbox": [], "label": [], "area": [], "is_crowd": []}
  # grid cells keep digits from overlapping
  cells_per_side = _SIDE // (2 * _GLYPH)
  cell_side = _SIDE // cells_per_side
  cells = generator.permutation(cells_per_side**2)
  for cell in cells[: generator.integers(1, _MAX_DIGITS + 1)]:
    digit = int(generator.choice(digit_numbers))
    zoom = int(generator.integers(1, 3))
    side = zoom * _GLYPH
    corner = np.array(divmod(cell, cells_per_side)) * cell_side
    y, x = corner + generator.integers(0, cell_side - side + 1, 2)
    ink = np.kron(dataset.images[digit], np.ones((zoom, zoom)))
    patch = image[y : y + side, x : x + side]
    # scikit-learn's grey values are 0 to 16
    patch[...] = np.maximum(patch, (ink * (255 / 16)).astype(np.uint8))
    is_dark = ink > 4
    rows = np.flatnonzero(is_dark.any(axis=1))
    columns = np.flatnonzero(is_dark.any(axis=0))
    box = [y + rows[0], x + columns[0], y + rows[-1] + 1, x + columns[-1] + 1]
    objects["bbox"].append([float(edge) / _SIDE for edge in box])
    objects["label"].append(str(dataset.target[digit]))
    objects["area"].append(float((box[2] - box[0]) * (box[3] - box[1])))
    objects["is_crowd"].append(False)
  return {"image": encode_png(image), "objects": objects}
