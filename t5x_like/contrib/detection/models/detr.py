"""DETR: detection as set prediction (Carion et al. 2020, https://arxiv.org/abs/2005.12872).

Features of a ResNet with frozen batch norm go through a post-norm encoder; a decoder turns 100
learned queries into objects, each with a class (or "no object") and a box. Sinusoidal positions are
added at every attention.
"""

from t5x_like.architectures.design import Design
from t5x_like.contrib.detection.detector import Detector, DetectorVariant
from t5x_like.nn.dims import Dims

DESIGN = Design(
  norm="layernorm",
  norm_epsilon=1e-5,
  norm_position="post",
  activation="relu",
  biases=("qkv", "out", "mlp"),
  mlp_dropout=True,
)
SMALL = {"name": "small_cnn", "widths": (16, 32, 64)}
MIDDLE = {"name": "small_cnn", "widths": (16, 32, 64, 128)}
RESNET_101 = {"name": "resnet", "depths": (3, 4, 23, 3)}


def _detr(embed, mlp, heads, layers, backbone) -> DetectorVariant:
  return DetectorVariant(Dims(embed, heads, heads, embed // heads, mlp, layers), DESIGN, backbone)


VARIANTS = {
  #                     embed   mlp heads layers backbone
  "detr-tiny":     _detr(   64,  128,  4,  2, SMALL),  # for debugging
  "detr-cells":    _detr(  128,  256,  4,  3, MIDDLE),
  "detr-resnet50": _detr(  256, 2048,  8,  6, "resnet"),
  "detr-resnet101": _detr( 256, 2048,  8,  6, RESNET_101),
}  # fmt: skip


class Model(Detector):
  """A DETR in one of its `VARIANTS`."""

  VARIANTS = VARIANTS
