"""Pretrain CLIP on pairs of images and texts (Radford et al. 2021, tables 18 to 20).

  python -m t5x_like.train --config=configs/clip/base.py --workdir=runs/clip_b32 \\
      --config.task.source=jsonl:train=pairs/train/*.jsonl,validation=pairs/val.jsonl \\
      --config.task.folder=pairs/images --config.task.vocabulary=clip-vit-base-patch32

Source: arXiv:2103.00020. Training takes 32 epochs of 400 million pairs in batches of 32,768. A row
is {"image": path, "caption": text or list of texts}. AdamW's rate rises to 5e-4 over 2,000 steps
and follows a cosine to 0. The weight decay of 0.2 spares gains and biases. The scale of the cosines
begins at 1/0.07 and is held below 100. `:b16` and `:l14` are ViT-B/16 (5e-4) and ViT-L/14 (4e-4).
Where the activations of a batch do not fit, `objective.chunks` encodes it in parts. The vocabulary
is the directory of a published CLIP.

Hardware: the paper's largest ResNet took 18 days on 592 V100s; ViT-L/14 took 12 days on 256.

Expected zero-shot top-1 on ImageNet (table 11): B/32 63.2 %, B/16 68.6 %, L/14 75.3 %. The
evaluator is `zero_shot` with the 80 templates and the class names in
notebooks/Prompt_Engineering_for_ImageNet.ipynb of openai/CLIP. This recipe has not been run at full
size.

Differences: images are cropped to random parts of at least 90 % of their area, as in OpenCLIP, in
place of the paper's random squares.
"""

from typing import Literal

from t5x_like.config import defaults

_SIZES = {"b32": "clip-b32", "b16": "clip-b16", "l14": "clip-l14"}
_PAIRS = 400_000_000
_BATCH = 32_768
LAPTOP = {"task.length": 32}


def get_config(size: Literal["b32", "b16", "l14"] = "b32"):
  config = defaults()

  config.model = {"name": "clip", "variant": _SIZES[size], "remat": "full"}
  config.task = {
    "name": "image_text",
    "source": "jsonl:train=pairs/train/*.jsonl,validation=pairs/val.jsonl",
    "image_field": "image",
    "caption_field": "caption",
    "folder": "pairs/images",
    "vocabulary": "clip-vit-base-patch32",
    "resolution": 224,
    "length": 77,
    "augmentations": ({"name": "random_resized_crop", "area": (0.9, 1.0)},),
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
  }
  config.objective = {"name": "contrastive"}
  config.batch_size = _BATCH
  config.total_steps = 32 * _PAIRS // _BATCH
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.98, "eps": 1e-6, "weight_decay": 0.2}
  config.schedule = {
    "name": "cosine",
    "learning_rate": 4e-4 if size == "l14" else 5e-4,
    "warmup_steps": 2_000,
  }
  config.eval_every = 10_000
  config.evals = {"loss": {}, "retrieval": {}}
  config.checkpoint = {"every": 5_000, "keep_last": 3}
  return config
