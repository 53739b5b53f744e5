"""Train CoAtNet on ImageNet from scratch (Dai et al. 2021, table 12; arXiv:2106.04803).

  python -m t5x_like.train --config=configs/coatnet/base.py --workdir=runs/coatnet_0 \\
      --config.task.source=folders:train=imagenet/train,validation=imagenet/val

Training takes 300 epochs of batches of 4,096 images of 224 x 224 pixels, with RandAugment of two
operations, mixup of 0.8, label smoothing of 0.1 and drop path of 0.2. AdamW's rate rises to 1e-3
over 10,000 steps and follows a cosine to 1e-5. Weight decay is 0.05, and gradients are clipped to
norm 1. `:1`, `:2` and `:3` are the larger models, with drop path of 0.3, 0.5 and 0.7.

Expected top-1 (table 4): 81.6, 83.3, 84.1 and 84.5 %. This recipe has not been run at full size.

Differences: RandAugment has magnitude 10, the maximum of this project, where the paper has 15. The
models have LayerNorm; the models of table 4 have batch norm.
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
