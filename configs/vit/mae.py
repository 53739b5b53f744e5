"""Pretrain a ViT as a masked autoencoder on ImageNet (He et al. 2022, table 8; arXiv:2111.06377).

  python -m t5x_like.train --config=configs/vit/mae.py --workdir=runs/mae_b16 \\
      --config.task.source=folders:train=imagenet/train,validation=imagenet/val

The model reconstructs three quarters of the patches. Training takes 800 epochs in batches of 4,096
at 224 x 224. AdamW's rate rises to 2.4e-3 over 40 epochs and follows a cosine to 0; weight decay is
0.05. Kernels have Xavier's deviation, computed for queries, keys and values as one matrix. The
evaluator `few_shot` scores a ridge regression on the frozen features. configs/vit/mae_classify.py
fine-tunes the model or trains a linear probe. `:large` and `:huge` are the other sizes.

Hardware: the plan of B for 32 chips of v5e (`--topology=v5e:4x8`) uses 7.5 of 17.2 GB a chip and
takes at least 0.14 s a step, or 10 hours for 800 epochs.

Expected top-1 after 1600 epochs, fine-tuned (table 3): B 83.6, L 85.9, H 86.9 %. Of B after fewer
epochs, fine-tuned and with a linear probe (open-mmlab/mmpretrain, configs/mae, not the authors):
300 epochs 83.1 and 60.8, 400 epochs 83.3 and 62.5, 800 epochs 83.3 and 65.1, 1600 epochs 83.5 and
67.1 %. The authors publish none after 10, 50 or 90. This recipe has not been run at full size.
"""

from typing import Literal

from t5x_like.config import defaults

_SIZES = {"base": "vit-b16", "large": "vit-l16", "huge": "vit-h14"}
_IMAGES = 1_281_167
LAPTOP = {
  "task.patch": 4,
  "model.head": {"name": "reconstruction", "depth": 2, "embed": 32, "heads": 4, "mlp": 64},
  "evals.few_shot.shots": 2,
}


def get_config(size: Literal["base", "large", "huge"] = "base"):
  config = defaults()

  config.model = {"name": "vit", "variant": _SIZES[size]}
  config.model.design = {"position": "sinusoidal_2d", "kernel_scales": (0.5, 1.0, 0.4, 1.6)}
  config.model.head = {"name": "reconstruction", "depth": 8, "embed": 512, "heads": 16, "mlp": 2048}
  config.model.remat = "full" if size == "huge" else "none"
  config.task = {
    "name": "masked_images",
    "source": "folders:train=imagenet/train,validation=imagenet/val",
    "resolution": 224,
    "patch": 14 if size == "huge" else 16,
    "mask_ratio": 0.75,
    "augmentations": ({"name": "random_resized_crop", "area": (0.2, 1.0)}, "flip"),
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
  }
  config.objective = {"name": "masked_patches"}
  config.batch_size = 4096
  config.total_steps = 800 * _IMAGES // 4096
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "weight_decay": 0.05}
  config.schedule = {
    "name": "cosine",
    "learning_rate": 2.4e-3,
    "warmup_steps": 40 * _IMAGES // 4096,
  }
  config.eval_every = 10_000
  config.evals = {"loss": {}, "few_shot": {"shots": 10}}
  config.checkpoint = {"every": 5_000, "keep_last": 3}
  return config
