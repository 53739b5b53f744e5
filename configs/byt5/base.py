"""ByT5, pretrained by span corruption of UTF-8 bytes (Xue et al. 2022, arXiv:2105.13626).

  python -m tools.prepare_data --source=tfds:c4/multilingual --vocabulary=bytes \\
      --output=data/mc4_bytes
  python -m t5x_like.train --config=configs/byt5/base.py --workdir=runs/byt5_base

Ids are bytes, so no vocabulary is trained. Sentinels are ids of their own, from 383 down; the
paper's are the last bytes, from 258 down, which `--vocabulary=DIR` takes from the directory of a
published ByT5. Noise spans average 20 bytes, encoder inputs have 1,024 bytes and batches 2^20, for
1,000,000 steps; the rest is as in mT5 (section 3). To draw languages by temperature, use the task
of `configs/mt5/base.py`. It needs a pod of 64 chips or more. Other sizes: `:small`, `:large`,
`:xl`, `:xxl`. Not run at full size here.
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
