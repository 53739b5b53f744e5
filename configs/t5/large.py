"""T5.1.1 large (783M parameters; version 1.0: 738M).

  python -m t5x_like.train --config=configs/t5/large.py --workdir=runs/t5_large

The hyper-parameters are those of `base.py`.
"""

from configs.t5 import base


def get_config(arg: str = ""):
  return base.get_config(arg, size="large")
