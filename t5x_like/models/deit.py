"""DeiT: ViT with a distillation token, which learns from a teacher.

Touvron et al. 2021, https://arxiv.org/abs/2012.12877.

A second token precedes the patches and has its own classifier; predictions are the mean of
the two. Without a teacher, DeiT is the ViT of the same size (`models/vit.py`).
"""

from dataclasses import replace

from t5x_like.architectures.image_encoder import ImageEncoder, ImageVariant
from t5x_like.models import vit
from t5x_like.nn.dims import Dims


def _distill(name: str) -> ImageVariant:
  """Return a variant of ViT with a distillation token and two classifiers."""
  return replace(vit.VARIANTS[name], class_tokens=2, head="distillation")


VARIANTS = {
  "deit-tiny": _distill("vit-tiny"),  # for debugging; the paper's DeiT-Ti is deit-ti16
  "deit-fashion": replace(_distill("vit-fashion"), dims=Dims(48, 4, 4, 12, 96, 4)),
  "deit-ti16": _distill("vit-ti16"),
  "deit-s16": _distill("vit-s16"),
  "deit-b16": _distill("vit-b16"),
}


class Model(ImageEncoder):
  """A DeiT in one of its `VARIANTS`, with the features and arguments of every image encoder."""

  VARIANTS = VARIANTS
