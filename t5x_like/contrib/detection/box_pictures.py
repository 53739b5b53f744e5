"""Draw detections: images with their objects and the predicted boxes."""

from collections.abc import Sequence

import numpy as np

_SIDE = 360
_GAP = 6
_COLUMNS = 4
_MIN_SCORE = 0.5
_COLOURS = ("#f97316", "#22c55e", "#3b82f6", "#e11d48", "#a855f7", "#14b8a6", "#eab308", "#64748b")


def draw_boxes(
  pixels_NYXC: np.ndarray,
  size_N2: np.ndarray,
  rows: Sequence[dict],
  shape_N2: np.ndarray,
  classes: Sequence,
):
  """Draw N images in rows of four, as a Pillow image.

  Objects are dashed. Predictions have their class and probability in percent; those with a
  probability below a half are left out. Each class has a colour.

  Args:
    pixels_NYXC: values from 0 to 255, padded below and on the right.
    size_N2: heights and widths without padding.
    rows: results of `evals.detection`, whose boxes are in pixels of the original images.
    shape_N2: heights and widths of the original images.
    classes: the names of all classes.
  """
  from PIL import Image

  cells = []
  for pixels_YXC, size_2, row, shape_2 in zip(pixels_NYXC, size_N2, rows, shape_N2, strict=True):
    height, width = size_2.tolist()
    cells.append(_draw_image(pixels_YXC[:height, :width], row, shape_2, classes))
  columns = min(_COLUMNS, len(cells))
  num_rows = -(-len(cells) // columns)
  side = _SIDE + _GAP
  sheet = Image.new("RGB", (columns * side, num_rows * side), "white")
  for index, cell in enumerate(cells):
    sheet.paste(cell, (index % columns * side, index // columns * side))
  return sheet


def _draw_image(pixels_YXC: np.ndarray, row: dict, shape_2: np.ndarray, classes: Sequence):
  from PIL import Image, ImageDraw

  height, width, channels = pixels_YXC.shape
  scale = _SIDE / max(height, width)
  rgb_YXC = np.repeat(pixels_YXC, 3 // channels, axis=-1).astype(np.uint8)
  size = (max(1, round(width * scale)), max(1, round(height * scale)))
  picture = Image.fromarray(rgb_YXC).resize(size)
  draw = ImageDraw.Draw(picture)
  ratio_4 = np.tile([picture.height, picture.width] / np.maximum(shape_2, 1), 2)
  for box in row["objects"]:
    _draw_dashes(draw, np.asarray(box["box"]) * ratio_4, _colour(box["label"], classes))
  for box in row["detections"]:
    if box["score"] < _MIN_SCORE:
      continue
    y0, x0, y1, x1 = (np.asarray(box["box"]) * ratio_4).tolist()
    colour = _colour(box["label"], classes)
    draw.rectangle((x0, y0, max(x0, x1), max(y0, y1)), outline=colour, width=2)
    draw.text((x0 + 3, y0 + 1), f"{box['label']} {100 * box['score']:.0f}", colour)
  return picture


def _colour(label: str, classes: Sequence[str]) -> str:
  if label not in classes:
    return _COLOURS[-1]
  return _COLOURS[list(classes).index(label) % len(_COLOURS)]


def _draw_dashes(draw, box_4: np.ndarray, colour: str) -> None:
  y0, x0, y1, x1 = box_4.astype(int).tolist()
  for x in range(x0, x1, 8):
    for y in (y0, y1):
      draw.line((x, y, min(x + 4, x1), y), colour)
  for y in range(y0, y1, 8):
    for x in (x0, x1):
      draw.line((x, y, x, min(y + 4, y1)), colour)
