"""Train ResNet with group norm on ImageNet from scratch (Wu & He 2018, section 4.1).

  python -m t5x_like.train --config=configs/resnet/base.py --workdir=runs/resnet_50 \\
      --config.task.source=folders:train=imagenet/train,validation=imagenet/val

Sources: arXiv:1803.08494, and He et al. 2016. Training takes 100 epochs of 1,281,167 images in
batches of 256 at 224 x 224, cropped and mirrored at random. SGD has momentum of 0.9, weight decay
of 1e-4 and a rate of 0.1, which falls to a tenth after 30, 60 and 90 epochs. Norms have 32 groups.
`:18`, `:34`, `:101` and `:152` are the other sizes.

To fine-tune published weights, convert them with this recipe and set
--config.init.workdir=runs/imported. Their batch norm is frozen.

Expected of ResNet-50 (table 1): 75.9 % top-1. This recipe has not been run at full size.

Differences: the paper also decays gains and biases, and starts the last gain of a block at 0.
"""

from typing import Literal

from t5x_like.config import defaults

_IMAGES = 1_281_167


def get_config(size: Literal["18", "34", "50", "101", "152"] = "50"):
  config = defaults()

  config.model = {"name": "resnet", "variant": f"resnet-{size}-group"}
  config.model.head = {"name": "image_classification"}
  config.task = {
    "name": "image_classification",
    "source": "folders:train=imagenet/train,validation=imagenet/val",
    "resolution": 224,
    "augmentations": ("random_resized_crop", "flip"),
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
  }
  config.objective = {"name": "classification"}
  config.batch_size = 256
  epoch = _IMAGES // 256
  config.total_steps = 100 * epoch
  config.optimizer = {"name": "sgd", "momentum": 0.9, "weight_decay": 1e-4}
  config.schedule = {
    "name": "drops",
    "learning_rate": 0.1,
    "steps": (30 * epoch, 60 * epoch, 90 * epoch),
  }
  config.eval_every = 2 * epoch
  config.evals = {"loss": {}, "image_classification": {}}
  config.checkpoint = {"every": epoch, "keep_last": 3}
  return config
