"""DeiT III: a plain ViT with LayerScale and a simple recipe, on ImageNet alone (Touvron et al. 2022, table 1).

  python -m t5x_like.train --config=configs/deit/deit3.py --workdir=runs/deit3_b16 \\
      --config.task.source=folders:train=imagenet/train,validation=imagenet/val

800 epochs of 1,281,167 images at batch 2048, each three times in a row; 3-Augment and colour jitter, mixup and CutMix;
binary cross-entropies, LAMB with decay 0.05 up to 3e-3 (`:small` 4e-3) over 5 epochs and down a cosine to 1e-5,
gradients clipped to norm 1, LayerScale from 1e-4, drop-path by size, the same in all layers. At 192 x 192 pixels
(`:small` at 224), to be followed by 20 epochs at 224: --config.init.workdir=runs/deit3_b16
--config.model.resolution=224 --config.task.resolution=224 --config.optimizer.name=adamw
--config.optimizer.weight_decay=0.1 --config.optimizer.undecayed=tables --config.schedule.learning_rate=1e-5
--config.objective.loss=softmax --config.objective.label_smoothing=0.1. Expected then (table 7): S 81.4, B 83.8, L 84.9,
H 85.2 % top-1. On the way, after epochs 10, 50, 90 and 300 of 800, the authors' logs (README_revenge.md of
facebookresearch/deit) have S 9.3, 53.6, 61.8 and 71.6, B at 192 x 192 10.3, 56.6, 66.0 and 75.3, L at 192 x 192 9.8,
55.8, 66.6 and 77.3 %. 32 or more accelerators. Not run at full size here.
"""

from typing import Literal

from t5x_like.config import defaults

_SIZES = {  # variant, resolution, drop-path
  "small": ("vit-s16", 224, 0.05),
  "base": ("vit-b16", 192, 0.2),
  "large": ("vit-l16", 192, 0.45),
  "huge": ("vit-h14", 154, 0.6),
}
_IMAGES = 1_281_167


def get_config(size: Literal["small", "base", "large", "huge"] = "base"):
  config = defaults()
  variant, resolution, drop_path = _SIZES[size]

  head = {"name": "image_classification"}
  config.model = {"name": "vit", "variant": variant, "resolution": resolution, "head": head, "drop_path": drop_path}
  config.model.drop_path_rates = "uniform"
  config.model.design = {"layer_scale": 1e-4}
  config.model.remat = "full" if size == "huge" else "none"
  config.task = {
    "name": "image_classification",
    "source": "folders:train=imagenet/train,validation=imagenet/val",
    "resolution": resolution,
    "augmentations": ("random_resized_crop", "flip", "three_augment", {"name": "color_jitter"}),
    "mixing": {"mixup": 0.8, "cutmix": 1.0},
    "repeats": 3,
    "crop": 1.0,
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
  }
  config.objective = {"name": "classification", "loss": "sigmoid"}
  config.batch_size = 2048
  config.total_steps = 800 * _IMAGES // 2048
  config.optimizer = {"name": "lamb", "weight_decay": 0.05, "undecayed": "tables"}
  rate = 4e-3 if size == "small" else 3e-3
  warmup = 5 * _IMAGES // 2048
  config.schedule = {"name": "cosine", "learning_rate": rate, "warmup_steps": warmup, "end": 1e-5 / rate}
  config.clip_norm = 1.0
  config.eval_every = 10_000
  config.evals = {"loss": {}, "image_classification": {}}
  config.checkpoint = {"every": 5_000, "keep_last": 3}
  return config
