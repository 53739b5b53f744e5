"""Pictures of detections: images with their objects and the predicted boxes."""

from collections.abc import Sequence

import numpy as np

_SIDE = 360
_GAP = 6
_LEAST = 0.5
_COLOURS = ("#f97316", "#22c55e", "#3b82f6", "#e11d48", "#a855f7", "#14b8a6", "#eab308", "#64748b")


def drawn(
  pixels_NYXC: np.ndarray,
  size_N2: np.ndarray,
  rows: Sequence[dict],
  shape_N2: np.ndarray,
  classes: Sequence,
):
  """Draw N images, four in a row: objects dashed, predictions with name and probability in percent,
  a colour a class.

  Predictions with a probability below a half are left out.

  Args:
    pixels_NYXC: 0 to 255, padded below and to the right; `size_N2` is the size without padding.
    rows: results of `evals.detection`, whose boxes are in pixels of the original images, of sizes
      `shape_N2`.
  """
  from PIL import Image, ImageDraw

  cells = []
  for pixels, size, row, shape in zip(pixels_NYXC, size_N2, rows, shape_N2, strict=True):
    y, x = (int(side) for side in size)
    scale = _SIDE / max(y, x)
    kept = np.repeat(pixels[:y, :x], 3 // pixels.shape[-1], axis=-1).astype(np.uint8)
    picture = Image.fromarray(kept).resize((max(1, round(x * scale)), max(1, round(y * scale))))
    draw = ImageDraw.Draw(picture)
    ratio = np.tile([picture.height, picture.width] / np.maximum(shape, 1), 2)
    for one in row["objects"]:
      _dashed(draw, np.asarray(one["box"]) * ratio, _colour(one["label"], classes))
    for one in row["detections"]:
      if one["score"] >= _LEAST:
        y0, x0, y1, x1 = (float(edge) for edge in np.asarray(one["box"]) * ratio)
        colour = _colour(one["label"], classes)
        draw.rectangle((x0, y0, max(x0, x1), max(y0, y1)), outline=colour, width=2)
        draw.text((x0 + 3, y0 + 1), f"{one['label']} {100 * one['score']:.0f}", colour)
    cells.append(picture)
  columns = min(4, len(cells))
  side = _SIDE + _GAP
  whole = Image.new("RGB", (columns * side, -(-len(cells) // columns) * side), "white")
  for n, picture in enumerate(cells):
    whole.paste(picture, (n % columns * side, n // columns * side))
  return whole


def _colour(label: str, classes: Sequence[str]) -> str:
  return _COLOURS[list(classes).index(label) % len(_COLOURS)] if label in classes else _COLOURS[-1]


def _dashed(draw, box_4: np.ndarray, colour: str) -> None:
  y0, x0, y1, x1 = (int(edge) for edge in box_4)
  for x in range(x0, x1, 8):
    for y in (y0, y1):
      draw.line((x, y, min(x + 4, x1), y), colour)
  for y in range(y0, y1, 8):
    for x in (x0, x1):
      draw.line((x, y, x, min(y + 4, y1)), colour)
