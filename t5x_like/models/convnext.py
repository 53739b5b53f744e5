"""ConvNeXt: a convolutional network with the macro design of Swin.

Liu et al. 2022, https://arxiv.org/abs/2201.03545.

Blocks of a 7 x 7 depthwise convolution, a norm and a feed-forward layer; between stages, squares of
four cells are merged. The mean of the last map is normalised and classified.
"""

from t5x_like.architectures.conv_encoder import ConvEncoder, ConvVariant
from t5x_like.architectures.design import Design

DESIGN = Design(norm="layernorm", norm_epsilon=1e-6, init_stddev=0.02)


def _convnext(width, depths, patch=4, resolution=224) -> ConvVariant:
  widths = tuple(width * 2**stage for stage in range(len(depths)))
  backbone = {"name": "convnext", "patch": patch, "widths": widths, "depths": depths}
  return ConvVariant(
    backbone, widths[-1], DESIGN, resolution, head={"name": "image_classification", "norm": "after"}
  )


VARIANTS = {
  "convnext-tiny": _convnext( 16, (1, 1), 2, 32),  # for debugging; ConvNeXt-T is convnext-t
  "convnext-t":    _convnext( 96, (3, 3,  9, 3)),
  "convnext-s":    _convnext( 96, (3, 3, 27, 3)),
  "convnext-b":    _convnext(128, (3, 3, 27, 3)),
  "convnext-l":    _convnext(192, (3, 3, 27, 3)),
  "convnext-xl":   _convnext(256, (3, 3, 27, 3)),
}  # fmt: skip


class Model(ConvEncoder):
  """A ConvNeXt in one of its `VARIANTS`, with the arguments of every convolutional encoder."""

  VARIANTS = VARIANTS
