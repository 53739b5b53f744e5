"""Fit images to a resolution without TensorFlow, for evaluations and predictions."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

# Defaults of tasks on images.
CROP = 0.875
MEAN = (0.5,)
STD = (0.5,)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# `ImageArguments` of `data/images/examples.py` explains these values.
Fit = Literal["cut", "padded", "squeezed", "squeezed_cut"]
Method = Literal["bicubic", "bilinear", "lanczos", "nearest"]


def covering_size(side: int, crop: float) -> int:
  """Return `side / crop` pixels, to which evaluations resize a side, rounded down as in timm."""
  return int(side / crop + 1e-6)  # 224 / (224 / 248) is 248


def fit_to_resolution(
  image_YXC: np.ndarray,
  sides_2: tuple[int, int],
  crop: float,
  fit: Fit = "cut",
  mean: Sequence[float] = MEAN,
  method: Method = "bicubic",
) -> np.ndarray:
  """Fit an image to a height and width, see `ImageArguments.fit`: float32 [*sides_2, C].

  The result is equal to that of `fit_to_resolution` in `data/images/examples.py`, which uses
  TensorFlow.

  Args:
    image_YXC: the image, 0 to 255.
    sides_2: the height and width.
    crop, fit, method: see `ImageArguments`.
    mean: the colour, from 0 to 1, around an image that is smaller than the sides.
  """
  shape = np.array(image_YXC.shape[:2])
  size = _resized_shape(shape, sides_2, crop, fit)
  start = (size - sides_2) // 2
  visible_2 = np.minimum(size, sides_2)
  # Only the middle is interpolated: a side may be very long.
  positions = [max(first, 0) + np.arange(count) for first, count in zip(start, visible_2)]
  if (size == shape).all():
    middle = image_YXC[positions[0]][:, positions[1]]
  else:
    middle = _interpolate(image_YXC, size, positions, method)
  filled = np.empty((*sides_2, image_YXC.shape[-1]), np.float32)
  filled[:] = 255.0 * np.asarray(mean, np.float32)
  y, x = np.maximum(-start, 0)
  h, w = visible_2
  filled[y : y + h, x : x + w] = middle
  return filled


def _resized_shape(
  shape: np.ndarray, sides_2: tuple[int, int], crop: float, fit: Fit
) -> np.ndarray:
  """Return the height and width to which an image is resized, before it is cut or padded."""
  is_cut = fit.endswith("cut")
  target_2 = np.array(sides_2)
  if is_cut:
    target_2 = np.array([covering_size(side, crop) for side in sides_2])
  if fit.startswith("squeezed"):
    return target_2
  # One side is exact; the other is rounded down, as in torchvision.
  ratio_2 = target_2 / shape
  axis = ratio_2.argmax() if is_cut else ratio_2.argmin()
  return np.maximum(shape * target_2[axis] // shape[axis], target_2 if is_cut else 1)


def resize_sides(image_YXC: np.ndarray, shortest: int, longest: int) -> np.ndarray:
  """Resize the shorter side to `shortest` pixels, or less to keep the longer within `longest`.

  Equal to `resize_sides` of `contrib/detection/data/box_augmentations`, which uses TensorFlow.
  """
  shape = np.array(image_YXC.shape[:2])
  low = shape.min()
  high = shape.max()
  target = min(shortest, longest * low / high)
  # Rounded as in DETR's code.
  short = round(target)
  long = int(target * high / low)
  if short == low:
    long = high
  size = np.where(shape == low, short, min(long, longest)).clip(1)
  if (size == shape).all():
    return image_YXC
  return _interpolate(image_YXC, size, [np.arange(side) for side in size], "bilinear")


def _interpolate(
  image_YXC: np.ndarray, size_2: np.ndarray, positions: Sequence[np.ndarray], method: Method
) -> np.ndarray:
  """Return the rows and columns at `positions` of an image resized to `size`."""
  row_weights = _weights(image_YXC.shape[0], size_2[0], positions[0], method)
  column_weights = _weights(image_YXC.shape[1], size_2[1], positions[1], method)
  columns_RXC = np.einsum("xk,rkc->rxc", column_weights, image_YXC, optimize=True)
  resized_YXC = np.einsum("yr,rxc->yxc", row_weights, columns_RXC, optimize=True)
  return resized_YXC.clip(0.0, 255.0)


def _weights(old: int, new: int, position_R: np.ndarray, method: Method) -> np.ndarray:
  """Return the weights, float32 [R, old], of a side resized from `old` to `new` pixels.

  Downsampling widens the kernel.
  """
  if method == "nearest":
    nearest_R1 = (2 * position_R[:, None] + 1) * old // (2 * new)
    return (nearest_R1 == np.arange(old)).astype(np.float32)
  width = max(old / new, 1.0)
  centre = (position_R + 0.5) * old / new - 0.5
  weights = _KERNELS[method](np.abs(centre[:, None] - np.arange(old)) / width)
  return (weights / weights.sum(1, keepdims=True)).astype(np.float32)


def _cubic(x: np.ndarray) -> np.ndarray:
  """Evaluate the cubic kernel of Keys (1981) with a = -0.5."""
  near = 1.5 * x**3 - 2.5 * x**2 + 1
  far = -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
  return np.where(x < 1, near, np.where(x < 2, far, 0.0))


_KERNELS = {
  "bicubic": _cubic,
  "bilinear": lambda x: np.maximum(1 - x, 0.0),
  "lanczos": lambda x: np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0.0),
}
