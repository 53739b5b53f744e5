"""ResNet, version 1.5 (He et al. 2016, https://arxiv.org/abs/1512.03385).

In version 1.5, the first block of a stage has its stride in the 3 x 3 convolution. The variants
with batch norm are for fine-tuning published weights: the statistics, scales and biases of their
norms are frozen. To train from scratch, choose a variant with group norm (`resnet-50-group`), whose
statistics are computed over each image alone. Batch norm that updates its statistics is not
implemented.
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


BASIC_WIDTHS = (64, 128, 256, 512)
VARIANTS = {
  # for debugging
  "resnet-tiny": _resnet(
    (1, 1), "basic", (16, 32), resolution=32, stem=8, norm="group", groups=8
  ),
  "resnet-18":   _resnet((2, 2, 2, 2), "basic", BASIC_WIDTHS),
  "resnet-34":   _resnet((3, 4, 6, 3), "basic", BASIC_WIDTHS),
  "resnet-50":   _resnet((3, 4, 6, 3)),
  "resnet-101":  _resnet((3, 4, 23, 3)),
  "resnet-152":  _resnet((3, 8, 36, 3)),
}  # fmt: skip
VARIANTS |= {
  f"{name}-group": replace(variant, backbone={**variant.backbone, "norm": "group"})
  for name, variant in VARIANTS.items()
  if "norm" not in variant.backbone
}
# The backbone of the variant `detr-cells` of contrib/detection, to pretrain it as a classifier.
SMALL_CNN = {"name": "small_cnn", "widths": (16, 32, 64, 128)}
VARIANTS["resnet-cells"] = ConvVariant(SMALL_CNN, 128, DESIGN, resolution=64)


class Model(ConvEncoder):
  """A ResNet in one of its `VARIANTS`, with the arguments of every convolutional encoder."""

  VARIANTS = VARIANTS
