"""Pretrain SigLIP on pairs of images and texts (Zhai et al. 2023, algorithm 1).

  python -m t5x_like.train --config=configs/siglip/base.py --workdir=runs/siglip_b16 \\
      --config.task.source=jsonl:train=pairs/train/*.jsonl,validation=pairs/val.jsonl \\
      --config.task.folder=pairs/images --config.task.vocabulary=siglip-base-patch16-224

Source: https://arxiv.org/abs/2303.15343. The loss compares each pair independently of the others.
Its scale starts at 10 and its bias at -10. Training reads 40 billion pairs in batches of 32,768
(section 4.6). Texts have 64 tokens without a causal mask, and images are pooled by attention. b2 is
0.95 (section 4.7), and the optimizer is the Adafactor of Zhai et al. 2022. As in the authors' code,
evaluations squeeze images to squares. `:l16` is the large model. The vocabulary is the directory of
a published SigLIP.

Expected of B/16 (table 3): 76.2 % zero-shot top-1 on ImageNet. This recipe has not been run at full
size.

Differences: the paper gives neither rates nor weight decay. These and the rest are as in
`configs/clip/base.py`.
"""

from typing import Literal

from configs.clip import base

LAPTOP = base.LAPTOP
_SIZES = {"b16": ("siglip-b16", 224), "l16": ("siglip-l16-256", 256)}


def get_config(size: Literal["b16", "l16"] = "b16"):
  config = base.get_config()
  variant, config.task.resolution = _SIZES[size]
  config.model.name = "siglip"
  config.model.variant = variant
  config.task.vocabulary = "siglip-base-patch16-224"
  config.task.length = 64
  config.task.mean = config.task.std = (0.5, 0.5, 0.5)
  config.task.fit = "squeezed"
  config.objective = {"name": "pairwise_sigmoid"}
  config.total_steps = 40_000_000_000 // config.batch_size
  config.optimizer = {"name": "momentum_adafactor", "b2": 0.95, "weight_decay": 0.2}
  return config
