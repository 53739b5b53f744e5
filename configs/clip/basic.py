"""Pretrain BASIC, a CoAtNet and a text encoder, on pairs (Pham et al. 2021; arXiv:2111.10050).

  python -m t5x_like.train --config=configs/clip/basic.py --workdir=runs/basic_s \\
      --config.task.source=jsonl:train=pairs/train/*.jsonl,validation=pairs/val.jsonl \\
      --config.task.folder=pairs/images --config.task.vocabulary=data/vocabulary

Training takes 500,000 batches of 65,536 pairs. A batch is encoded and compared in 16 parts, one
after the other (section 4). Texts have 64 tokens of a vocabulary of 32,000. `:m` has CoAtNet-3 and
twelve layers for texts. This recipe has not been run at full size.

Differences: AdamW replaces the paper's Adafactor with decay. Both encoders start from random
weights; the paper first trains the CoAtNet on labelled images.
"""

from typing import Literal

from configs.clip import base

LAPTOP = {"task.length": 32, "objective.chunks": 2}


def get_config(size: Literal["s", "m"] = "s"):
  config = base.get_config()
  config.model = {"name": "basic", "variant": f"basic-{size}", "remat": "full"}
  config.task.vocabulary = "data/vocabulary"
  config.task.length = 64
  config.objective.chunks = 16
  config.batch_size = 65_536
  config.total_steps = 500_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.999, "weight_decay": 0.0025}
  config.schedule = {"name": "cosine", "learning_rate": 1e-3, "warmup_steps": 10_000}
  return config
