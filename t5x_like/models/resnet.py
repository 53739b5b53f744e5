"""ResNet, version 1.5 (He et al. 2016, https://arxiv.org/abs/1512.03385): residual blocks of
convolutions.

The stride of a stage is in its 3 x 3 convolution. Published weights keep the statistics of their
batch norm, frozen together with its scales and biases, for fine-tuning. From scratch, take the
variants with group norm, whose statistics are each image's own: a result does not depend on the
rest of its batch, and no average is kept. Batch norm that learns its statistics is not here.
"""

from dataclasses import replace

from t5x_like.architectures.conv_encoder import ConvEncoder, ConvVariant
from t5x_like.architectures.design import Design

DESIGN = Design(norm="layernorm", norm_epsilon=1e-6)


def _resnet(
  depths, block="bottleneck", widths=(256, 512, 1024, 2048), resolution=224, **arguments
) -> ConvVariant:
  backbone = {"name": "resnet", "widths": widths, "depths": depths, "block": block, **arguments}
  return ConvVariant(backbone, widths[-1], DESIGN, resolution)


BASIC = ("basic", (64, 128, 256, 512))
VARIANTS = {
  # for debugging
  "resnet-tiny": _resnet((1, 1), "basic", (16, 32), 32, stem=8, norm="group", groups=8),
  "resnet-18":   _resnet((2, 2, 2, 2), *BASIC),
  "resnet-34":   _resnet((3, 4, 6, 3), *BASIC),
  "resnet-50":   _resnet((3, 4, 6, 3)),
  "resnet-101":  _resnet((3, 4, 23, 3)),
  "resnet-152":  _resnet((3, 8, 36, 3)),
}  # fmt: skip
VARIANTS |= {
  f"{name}-group": replace(variant, backbone={**variant.backbone, "norm": "group"})
  for name, variant in VARIANTS.items()
  if "norm" not in variant.backbone
}
CELLS = {"name": "small_cnn", "widths": (16, 32, 64, 128)}  # as in `detr-cells`
VARIANTS["resnet-cells"] = ConvVariant(CELLS, 128, DESIGN, 64)


class Model(ConvEncoder):
  """A ResNet of one of `VARIANTS`, with the arguments of every convolutional encoder."""

  VARIANTS = VARIANTS
