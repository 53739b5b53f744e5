"""Train ViT-S/16 on ImageNet: better plain baselines (Beyer et al. 2022, arXiv:2205.01580).

  python -m t5x_like.train --config=configs/vit/small.py --workdir=runs/vit_s16 \\
      --config.task.source=folders:train=imagenet/train,validation=imagenet/val

The values are from the paper and from big_vision's vit_s16_i1k. Training takes 90 epochs of
1,281,167 images in batches of 1,024 at 224 x 224, with RandAugment of two operations at magnitude
10 and mixup of 0.2. The classifier reads the mean of the patches through a tanh layer, and
positions are fixed. AdamW's rate rises to 1e-3 over 10,000 steps and follows a cosine. Weight decay
is 0.1 of the rate (1e-4 in the authors' units), gradients are clipped to norm 1, and kernels have
Xavier's deviation. `:150` and `:300` train for more epochs.

Hardware: 90 epochs took the authors 7 hours on 8 chips of TPU v3. The plan for 8 chips of v5e
(`--topology=v5e:2x4`) uses 4.5 of 17.2 GB a chip and takes at least 0.08 s a step, or 2.5 hours for
90 epochs.

Expected top-1: 76.5 % after 90 epochs, 78.5 % with `:150` and 80.0 % with `:300`. Within these
schedules, after 10 or 50 epochs, only curves are published. This recipe has not been run at full
size.

Differences: the changes of RandAugment are timm's, not TensorFlow's. The frequencies of positions
are MAE's, which nearly equal the authors'. Images are reduced without aliasing; the authors do not
smooth them in training.
"""

from typing import Literal

from t5x_like.config import defaults

_IMAGES = 1_281_167


def get_config(epochs: Literal["90", "150", "300"] = "90"):
  config = defaults()

  head = {"name": "image_classification", "hidden": True}
  config.model = {"name": "vit", "variant": "vit-s16", "class_tokens": 0, "head": head}
  scales = (1.0, 1.0, 0.4, 1.6)
  config.model.design = {
    "position": "sinusoidal_2d",
    "activation": "gelu_tanh",
    "kernel_scales": scales,
  }
  config.task = {
    "name": "image_classification",
    "source": "folders:train=imagenet/train,validation=imagenet/val",
    "resolution": 224,
    "augmentations": (
      {"name": "random_resized_crop", "area": (0.05, 1.0), "method": "bilinear"},
      "flip",
      {"name": "randaugment", "ops": 2, "magnitude": 10.0, "deviation": 0.0, "probability": 1.0},
    ),
    "mixing": {"mixup": 0.2},
  }
  config.objective = {"name": "classification"}
  config.batch_size = 1024
  config.total_steps = int(epochs) * _IMAGES // 1024
  config.optimizer = {
    "name": "adamw",
    "b1": 0.9,
    "b2": 0.999,
    "weight_decay": 0.1,
    "undecayed": "tables",
  }
  config.schedule = {"name": "cosine", "learning_rate": 1e-3, "warmup_steps": 10_000}
  config.clip_norm = 1.0
  config.eval_every = 2_500
  config.evals = {"loss": {}, "image_classification": {}}
  config.checkpoint = {"every": 1_000, "keep_last": 3}
  return config
