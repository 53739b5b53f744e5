"""A CLIP as small as `nano.py`, on images of 16 x 16 pixels."""

from configs.clip import base
from t5x_like import laptop
from t5x_like.architectures.design import Tokens, Variant
from t5x_like.architectures.dual_encoder import DualVariant
from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.models import clip
from t5x_like.nn.dims import Dims

_DIMS = Dims(32, 4, 4, 8, 64, 2)
clip.VARIANTS["nano"] = DualVariant(
  ImageVariant(_DIMS, clip.IMAGE, patch=4, resolution=16, head="projection", patch_bias=False),
  Variant(_DIMS, clip.TEXT, 384, Tokens()),
  width=32,
)


def get_config(arg: str = ""):
  config = base.get_config()
  laptop.shrink(config, "debug")
  config.model.variant = "nano"
  config.model.resolution = 16
  config.task.resolution = 16
  config.task.length = 24
  config.task.augmentations = ()
  config.task.mean = (0.5,)
  config.task.std = (0.5,)
  config.evals = {}
  config.peak_flops = 1e11
  return config
