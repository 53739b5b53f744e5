"""Train a classifier of ImageNet on DINOv2's frozen features (Oquab et al. 2024, section 7.1).

  python -m t5x_like.train --config=configs/dinov2/base.py --workdir=runs/dinov2_probe \\
      --config.init.workdir=runs/dinov2_b14 \\
      --config.task.source=folders:train=imagenet/train,validation=imagenet/val

Source: arXiv:2304.07193. A linear layer reads the class token and the mean of the patches. Training
takes 10 epochs of 1,281,167 images in batches of 1,024 at 224 x 224, cropped and mirrored at
random. SGD follows a cosine without weight decay. `:small`, `:large` and `:giant` are the other
sizes. To train all layers, set --config.tuning='{"name": "layer_decay", "rate": 0.65}' and a
learning rate for AdamW.

Expected top-1 (table 4): S 81.1, B 84.5, L 86.3, g 86.5 %. This recipe has not been run at full
size.

Differences: the paper tries 13 learning rates and keeps the best one; this recipe has one.
"""

from typing import Literal

from t5x_like.config import defaults

_SIZES = {"small": "dinov2-s14", "base": "dinov2-b14", "large": "dinov2-l14", "giant": "dinov2-g14"}
_IMAGES = 1_281_167


def get_config(size: Literal["small", "base", "large", "giant"] = "base"):
  config = defaults()

  head = {"name": "image_classification", "pooling": "both"}
  config.model = {"name": "dinov2", "variant": _SIZES[size], "resolution": 224, "head": head}
  config.tuning = {"name": "head"}
  config.task = {
    "name": "image_classification",
    "source": "folders:train=imagenet/train,validation=imagenet/val",
    "resolution": 224,
    "augmentations": ("random_resized_crop", "flip"),
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
  }
  config.objective = {"name": "classification"}
  config.batch_size = 1024
  config.total_steps = 10 * _IMAGES // 1024
  config.optimizer = {"name": "sgd", "momentum": 0.9}
  config.schedule = {"name": "cosine", "learning_rate": 0.02, "warmup_steps": 0}
  config.eval_every = 1_250
  config.evals = {"loss": {}, "image_classification": {}}
  config.checkpoint = {"every": 1_250, "keep_last": 3}
  return config
