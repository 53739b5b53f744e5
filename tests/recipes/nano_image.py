"""A ViT as small as `nano.py`, on digits of 16 x 16 pixels, with all that is random in its
training."""

from configs.vit import base
from t5x_like import laptop
from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.models import vit
from t5x_like.nn.dims import Dims

vit.VARIANTS["nano"] = ImageVariant(
  Dims(32, 4, 4, 8, 64, 2), vit.DESIGN, patch=4, resolution=16, channels=1
)


def get_config(arg: str = ""):
  config = base.get_config()
  laptop.shrink(config, "debug")
  config.model.variant = "nano"
  config.model.resolution = 16
  config.model.dropout = 0.1
  config.model.head = {"name": "image_classification", "labels": 10}
  config.model.drop_path = 0.2
  config.task.resolution = 16
  config.task.channels = 1
  config.task.augmentations = ("random_resized_crop", "color_jitter", "erase")
  config.task.mixing = {"mixup": 0.8, "cutmix": 1.0}
  config.task.repeats = 2
  config.evals = {}
  config.peak_flops = 1e11
  return config
