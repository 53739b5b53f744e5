"""A masked autoencoder, probed linearly or fine-tuned, on ImageNet.

Source: He et al. 2022, tables 9 and 10.

  python -m t5x_like.train --config=configs/vit/mae_classify.py --workdir=runs/mae_tuned \\
      --config.init.workdir=runs/mae_b16 \\
      --config.task.source=folders:train=imagenet/train,validation=imagenet/val

Fine-tuning: 100 epochs of 1,281,167 images at batch 1024; AdamW with decay 0.05 up to 4e-3 over 5
epochs and down a cosine, with 0.75 of a layer's rate for the one below it; RandAugment, mixup and
CutMix, label smoothing, drop-path 0.1; random erasing and the end of the cosine, 1e-6, as in the
authors' code; the mean of the patches is classified. Each image is mixed by its own draw; timm
draws once for a batch. Their code fine-tunes the models of table 3, whose targets were normalised,
with other values: B at 2e-3 and 0.65, L with drop-path 0.2, H 0.3
(`--config.schedule.learning_rate`, `tuning.rate`, `model.drop_path`). `:probe` trains a linear
classifier alone, on the frozen class token, normalised: 90 epochs at batch 16,384, LARS up to 6.4
over 10 epochs, random crops. LARS has the rate inside the momentum, as its paper; the authors' code
multiplies the momentum by it. `:large` and `:huge` are the other sizes; `:huge_448` fine-tunes
ViT-H, pretrained at 224, at 448 x 448, its sines computed for the larger grid; images are evaluated
with a shorter side of 448 pixels, as in the authors' code. Expected (table 3 and figure 8): B 83.6,
L 85.9, H 86.9, H at 448 87.8 % top-1 fine-tuned; B 68.0, L 75.8, H 76.6 % with a probe. Not run at
full size here.
"""

from typing import Literal

from t5x_like.config import defaults

_SIZES = {  # variant, epochs of fine-tuning, resolution
  "base": ("vit-b16", 100, 224),
  "large": ("vit-l16", 50, 224),
  "huge": ("vit-h14", 50, 224),
  "huge_448": ("vit-h14", 50, 448),
}
_IMAGES = 1_281_167


def get_config(size: Literal["base", "large", "huge", "huge_448"] = "base", probe: bool = False):
  config = defaults()
  variant, epochs, resolution = _SIZES[size]

  head = {"name": "image_classification"}
  head |= {"pooling": "token", "norm": "both"} if probe else {"pooling": "mean", "norm": "after"}
  config.model = {
    "name": "vit",
    "variant": variant,
    "design": {"position": "sinusoidal_2d"},
    "head": head,
  }
  config.model.resolution = resolution
  config.task = {
    "name": "image_classification",
    "source": "folders:train=imagenet/train,validation=imagenet/val",
    "resolution": resolution,
    "crop": 0.875 if resolution == 224 else 1.0,
    "augmentations": ("random_resized_crop", "flip"),
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
  }
  if probe:
    config.tuning = {"name": "head"}
    config.objective = {"name": "classification"}
    config.optimizer = {"name": "lars", "momentum": 0.9, "weight_decay": 0.0}
    config.batch_size = 16_384
    epochs = 90
    warmup = 10
    rate = 6.4
  else:
    config.tuning = {"name": "layer_decay", "rate": 0.75}
    config.model.drop_path = 0.2 if variant == "vit-h14" else 0.1
    randaugment = {
      "name": "randaugment",
      "ops": 2,
      "magnitude": 9.0,
      "deviation": 0.5,
      "probability": 0.5,
    }
    config.task.augmentations += (randaugment, {"name": "erase", "probability": 0.25})
    config.task.mixing = {"mixup": 0.8, "cutmix": 1.0}
    config.objective = {"name": "classification", "label_smoothing": 0.1}
    config.optimizer = {
      "name": "adamw",
      "b1": 0.9,
      "b2": 0.999,
      "weight_decay": 0.05,
      "undecayed": "tables",
    }
    config.batch_size = 1024
    warmup = 5
    rate = 4e-3
  config.total_steps = epochs * _IMAGES // config.batch_size
  warmup_steps = warmup * _IMAGES // config.batch_size
  end = 0.0 if probe else 1e-6 / rate
  config.schedule = {
    "name": "cosine",
    "learning_rate": rate,
    "warmup_steps": warmup_steps,
    "end": end,
  }
  config.eval_every = 1_000
  config.evals = {"loss": {}, "image_classification": {}}
  config.checkpoint = {"every": 1_000, "keep_last": 3}
  return config
