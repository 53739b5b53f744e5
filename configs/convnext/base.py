"""Train ConvNeXt on ImageNet from scratch (Liu et al. 2022, appendix A.1, table 5).

  python -m t5x_like.train --config=configs/convnext/base.py --workdir=runs/convnext_t \\
      --config.task.source=folders:train=imagenet/train,validation=imagenet/val

Source: https://arxiv.org/abs/2201.03545. Training takes 300 epochs of 1,281,167 images in batches
of 4,096 at 224 x 224, with RandAugment, mixup of 0.8, CutMix, random erasing, label smoothing and
drop path of 0.1. AdamW's rate rises to 4e-3 over 20 epochs and follows a cosine to 1e-6, as in the
authors' code. Weight decay is 0.05, and a moving average of the weights is kept. `:s`, `:b` and
`:l` are the larger models, with drop path of 0.4, 0.5 and 0.5.

Expected top-1: 82.1, 83.1, 83.8 and 84.3 %. This recipe has not been run at full size.
"""

from typing import Literal

from t5x_like.config import defaults

_DROP_PATH = {"t": 0.1, "s": 0.4, "b": 0.5, "l": 0.5}
_IMAGES = 1_281_167


def get_config(size: Literal["t", "s", "b", "l"] = "t"):
  config = defaults()

  config.model = {"name": "convnext", "variant": f"convnext-{size}"}
  config.model.head = {"name": "image_classification", "norm": "after"}
  config.model.drop_path = _DROP_PATH[size]
  config.task = {
    "name": "image_classification",
    "source": "folders:train=imagenet/train,validation=imagenet/val",
    "resolution": 224,
    "augmentations": (
      "random_resized_crop",
      "flip",
      {"name": "randaugment", "ops": 2, "magnitude": 9.0, "deviation": 0.5, "probability": 0.5},
      {"name": "erase", "probability": 0.25},
    ),
    "mixing": {"mixup": 0.8, "cutmix": 1.0},
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
  }
  config.objective = {"name": "classification", "label_smoothing": 0.1}
  config.batch_size = 4096
  config.total_steps = 300 * _IMAGES // 4096
  config.optimizer = {
    "name": "adamw",
    "b1": 0.9,
    "b2": 0.999,
    "weight_decay": 0.05,
    "undecayed": "tables",
  }
  config.optimizer.ema = 0.9999
  config.schedule = {"name": "cosine", "learning_rate": 4e-3, "warmup_steps": 20 * _IMAGES // 4096}
  config.schedule.end = 1e-6 / 4e-3
  config.eval_every = 3_000
  config.evals = {"loss": {}, "image_classification": {}}
  config.checkpoint = {"every": 3_000, "keep_last": 3}
  return config
