"""Pretrain Switch Transformer base by span corruption (Fedus et al. 2022, section 4.1).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --output=data/c4_en
  python -m t5x_like.train --config=configs/switch/base.py --workdir=runs/switch_base_8
  python -m t5x_like.train --config=configs/switch/base.py:128 --workdir=runs/switch_base_128

The argument is the number of experts, 8 to 256 (default 8: 619M parameters; 128: 7.4B). Training
takes 550,000 steps of 2^20 tokens, with the Adafactor and the learning rates of `configs/t5`. The
capacity factor is 1.25 in training and 2 in evaluations (switch_base.gin of Flaxformer). The
balance loss has a weight of 0.01. Router inputs are multiplied by random factors from 0.99 to 1.01.
Initial kernels have a tenth of the usual variance (sections 2.2 and 2.4).

Hardware: eight chips or a multiple of them. Experts and the rows of the batch are split over the
mesh axis `expert`. For 128 experts on v5e 8x8, `t5x_like.plan` estimates 0.43 s a step and 16 % MFU
(docs/plans.json).

Expected negative log-perplexities (table 7, where T5 base has -1.636): -1.505 with 16 experts,
-1.474 with 32, -1.444 with 64, -1.432 with 128, -1.427 with 256. This recipe has not been run at
full size.
"""

from typing import Literal

from configs.t5 import base

LAPTOP = {"model.design.experts.experts": 8}


def get_config(experts: Literal[8, 16, 32, 64, 128, 256] = 8):
  config = base.get_config()

  config.model = {
    "name": "switch",
    "variant": f"switch-base-{experts}",
    "vocab_size": 32_128,
    "dropout": 0.0,
    "design": {
      "kernel_scales": (0.1, 0.1, 0.1, 0.1),
      "experts": {
        "experts": experts,
        "top_k": 1,
        "normalise": False,
        "dispatch": "capacity",
        "capacity_factor": 1.25,
        "eval_capacity_factor": 2.0,
        "balance_loss": 0.01,
        "z_loss": 0.0,
        "jitter": 0.01,
      },
    },
  }
  config.batch_size = 2048
  config.total_steps = 550_000
  config.mesh = {"expert": 8, "data": -1}
  return config
