"""Pretrain umT5: mT5 with one position table a layer and UniMax (Chung et al. 2023).

  python -m tools.prepare_data --source=tfds:c4/multilingual --vocabulary=VOCABULARY \\
      --output=data/mc4_LANGUAGE
  python -m t5x_like.train --config=configs/mt5/umt5_base.py --workdir=runs/umt5_base

Source: arXiv:2304.09151, algorithm 1. The vocabulary has 256,000 pieces and 300 sentinels.
Languages are drawn equally, but no row is drawn more than once (UniMax with N = 1). The rest is as
in `base.py`, except that the Adafactor of XXL is not factored, has a momentum of 0.9 and clips
gradients at 1.0 (t5x/examples/scalable_t5/umt5 of google-research/t5x). Other sizes are `:small`,
`:xl` and `:xxl`. This recipe has not been run at full size.
"""

from typing import Literal

from configs.mt5 import base

LAPTOP = base.LAPTOP | {"model.design.position": {"name": "relative_bias", "shared": False}}


def get_config(size: Literal["small", "base", "xl", "xxl"] = "base"):
  config = base.get_config(size)

  config.model.variant = f"umt5-{size}"
  config.model.vocab_size = 256_384
  config.task.rates = "unimax"
  config.task.draws = config.batch_size * config.total_steps
  del config.task.temperature
  if size == "xxl":
    config.optimizer = {
      "name": "unfactored_adafactor",
      "decay_rate": 0.8,
      "momentum": 0.9,
      "clipping_threshold": 1.0,
    }
    config.optimizer.decay_power = None
    config.clip_norm = 1.0
  return config
