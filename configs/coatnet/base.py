"""CoAtNet on ImageNet, from scratch (Dai et al. 2021, table 12; arXiv:2106.04803).

  python -m t5x_like.train --config=configs/coatnet/base.py --workdir=runs/coatnet_0 \\
      --config.task.source=folders:train=imagenet/train,validation=imagenet/val

300 epochs at batch 4096 and 224 x 224: RandAugment of two operations (at 10, the most here, where
the paper has 15), mixup 0.8, label smoothing 0.1, drop path 0.2; AdamW with decay 0.05 up to 1e-3
over 10,000 steps and down a cosine to 1e-5, gradients clipped to norm 1. `:1`, `:2` and `:3` are
the larger models, with drop path 0.3, 0.5 and 0.7. Expected top-1: 81.6, 83.3, 84.1 and 84.5 %
(table 4), of models with batch norm, where these have LayerNorm. Not run at full size here.
"""

from typing import Literal

from t5x_like.config import defaults

_DROP_PATH = {"0": 0.2, "1": 0.3, "2": 0.5, "3": 0.7}
_IMAGES = 1_281_167


def get_config(size: Literal["0", "1", "2", "3"] = "0"):
  config = defaults()

  config.model = {"name": "coatnet", "variant": f"coatnet-{size}", "drop_path": _DROP_PATH[size]}
  config.model.head = {"name": "image_classification", "hidden": True}
  config.task = {
    "name": "image_classification",
    "source": "folders:train=imagenet/train,validation=imagenet/val",
    "resolution": 224,
    "augmentations": (
      "random_resized_crop",
      "flip",
      {"name": "randaugment", "magnitude": 10.0, "deviation": 0.0, "probability": 1.0},
    ),
    "mixing": {"mixup": 0.8},
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
  config.schedule = {"name": "cosine", "learning_rate": 1e-3, "warmup_steps": 10_000, "end": 0.01}
  config.clip_norm = 1.0
  config.eval_every = 3_000
  config.evals = {"loss": {}, "image_classification": {}}
  config.checkpoint = {"every": 3_000, "keep_last": 3}
  return config
