"""Pretrain ByT5 by span corruption of UTF-8 bytes (Xue et al. 2022, arXiv:2105.13626, section 3).

  python -m tools.prepare_data --source=tfds:c4/multilingual --vocabulary=bytes \\
      --output=data/mc4_bytes
  python -m t5x_like.train --config=configs/byt5/base.py --workdir=runs/byt5_base

Ids are bytes, so no vocabulary is trained. Noise spans average 20 bytes, encoder inputs have 1,024
bytes and batches have 2^20 bytes, for 1,000,000 steps. The rest is as in mT5. Other sizes are
`:small`, `:large`, `:xl` and `:xxl`. To draw languages by temperature, use the task of
`configs/mt5/base.py`.

Hardware: a pod of 64 chips or more. This recipe has not been run at full size.

Differences: sentinels have ids of their own, from 383 down. In the paper they are the last bytes,
from 258 down; `--vocabulary=DIR` takes those from the directory of a published ByT5.
"""

from configs.mt5.base import Size
from configs.t5 import base


def get_config(size: Size = "base"):
  config = base.get_config(size)

  config.model.variant = f"byt5-{size}"
  config.model.vocab_size = 384
  config.task = {
    "name": "span_corruption",
    "store": "data/mc4_bytes",
    "inputs_length": 1024,
    "noise_density": 0.15,
    "mean_noise_span_length": 20.0,
  }

  config.batch_size = 1024
  config.total_steps = 1_000_000
  return config
