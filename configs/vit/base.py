"""Train ViT on ImageNet from scratch (Dosovitskiy et al. 2021, tables 1 and 3).

  python -m t5x_like.train --config=configs/vit/base.py --workdir=runs/vit_b16 \\
      --config.task.source=folders:train=imagenet/train,validation=imagenet/val

Training takes 300 epochs of 1,281,167 images in batches of 4,096. A random crop of 5 to 100 % of
each image is resized to 224 x 224 (bilinear) and mirrored at random. Adam's rate rises to 3e-3 over
10,000 steps and follows a cosine to 0. Weight decay is 0.3, dropout 0.1, and gradients are clipped
to norm 1. Crops, and kernels with Xavier's deviation, are from google-research/vision_transformer.
`:large` and `:huge` are ViT-L/16 and ViT-H/14. `:hybrid` is R50+ViT-B/16, whose patches are the
cells of a ResNet's feature map.

To fine-tune at 384 x 384 (table 4 and the authors' code), train with SGD without weight decay for
20,000 steps of 512 images. The rate is 0.003, 0.01, 0.03 or 0.06, and evaluations squeeze images to
squares:

  python -m t5x_like.train --config=configs/vit/base.py --workdir=runs/vit_b16_384 \\
      --config.init.workdir=runs/vit_b16 --config.model.resolution=384 \\
      --config.task.resolution=384 --config.task.fit=squeezed --config.task.method=bilinear \\
      --config.batch_size=512 --config.total_steps=20000 \\
      --config.optimizer='{"name": "sgd", "momentum": 0.9}' --config.schedule.learning_rate=0.03 \\
      --config.schedule.warmup_steps=500

Hardware: 32 chips of TPU v3 or more. Huge is planned on v5e 8x8: 0.70 s a step, 47 % MFU
(docs/plans.json).

Expected of B/16 (table 5): 77.9 % top-1. This recipe has not been run at full size.

Differences from the authors' code: kernels are drawn from a normal distribution, there from a
uniform one. Fine-tuning keeps the pretrained head instead of a new one, and interpolates positions
by cubics instead of linearly.
"""

from typing import Literal

from t5x_like.config import defaults

_SIZES = {"base": "vit-b16", "large": "vit-l16", "huge": "vit-h14", "hybrid": "vit-r50-b16"}
_IMAGES = 1_281_167


def get_config(size: Literal["base", "large", "huge", "hybrid"] = "base"):
  config = defaults()

  head = {"name": "image_classification", "hidden": True}
  config.model = {"name": "vit", "variant": _SIZES[size], "head": head, "dropout": 0.1}
  config.model.design = {"kernel_scales": (1.0, 1.0, 0.4, 1.6)}
  if size == "huge":  # 64 images on a chip of 16 GB
    saved_names = ["query", "key", "value", "attention_out", "mlp_hidden"]
    config.model.remat = {"name": "save", "names": saved_names}
    config.mesh = {"fsdp": -1}
  config.task = {
    "name": "image_classification",
    "source": "folders:train=imagenet/train,validation=imagenet/val",
    "resolution": 224,
    "augmentations": (
      {"name": "random_resized_crop", "area": (0.05, 1.0), "method": "bilinear"},
      "flip",
    ),
  }
  config.objective = {"name": "classification"}
  config.batch_size = 4096
  config.total_steps = 300 * _IMAGES // 4096
  config.optimizer = {
    "name": "adamw",
    "b1": 0.9,
    "b2": 0.999,
    "weight_decay": 0.3,
    "undecayed": "tables",
  }
  config.schedule = {"name": "cosine", "learning_rate": 3e-3, "warmup_steps": 10_000}
  config.clip_norm = 1.0
  config.eval_every = 3_000
  config.evals = {"loss": {}, "image_classification": {}}
  config.checkpoint = {"every": 3_000, "keep_last": 3}
  return config
