"""Train MViT v2 on ImageNet (Li et al. 2022, section 5.1, and the authors' configs).

  python -m t5x_like.train --config=configs/mvit/base.py --workdir=runs/mvit_t \\
      --config.task.source=folders:train=imagenet/train,validation=imagenet/val

Source: https://arxiv.org/abs/2112.01526. Training takes 300 epochs of 1,281,167 images in batches
of 2,048 at 224 x 224, with RandAugment, mixup, CutMix, random erasing, label smoothing of 0.1 and
drop-path rates up to 0.1 (0.3 for `:b`). AdamW's rate rises to 2e-3 over 70 epochs and follows a
cosine to 8e-6. Weight decay is 0.05, and gradients are clipped to norm 1.

Hardware: 16 accelerators.

Expected top-1 (table 1): `:t` 82.3, `:s` 83.6, `:b` 84.4 %. This recipe has not been run at full
size.
"""

from typing import Literal

from t5x_like.config import defaults

_IMAGES = 1_281_167


def get_config(size: Literal["t", "s", "b"] = "t"):
  config = defaults()
  epoch = _IMAGES // 2048

  head = {"name": "image_classification"}
  config.model = {"name": "mvit", "variant": f"mvit-v2-{size}", "head": head}
  config.model.drop_path = 0.3 if size == "b" else 0.1
  config.task = {
    "name": "image_classification",
    "source": "folders:train=imagenet/train,validation=imagenet/val",
    "resolution": 224,
    "augmentations": (
      "random_resized_crop",
      "flip",
      {"name": "randaugment", "ops": 6, "magnitude": 9.0, "deviation": 0.5, "probability": 0.5},
      {"name": "erase", "probability": 0.25},
    ),
    "mixing": {"mixup": 0.8, "cutmix": 1.0},
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
  }
  config.objective = {"name": "classification", "label_smoothing": 0.1}
  config.batch_size = 2048
  config.total_steps = 300 * epoch
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.999, "weight_decay": 0.05}
  config.schedule = {
    "name": "cosine",
    "learning_rate": 2e-3,
    "warmup_steps": 70 * epoch,
    "end": 4e-3,
  }
  config.clip_norm = 1.0
  config.eval_every = 10 * epoch
  config.evals = {"loss": {}, "image_classification": {}}
  config.checkpoint = {"every": 10 * epoch, "keep_last": 3}
  return config
