"""T5.1.1 small (77M parameters; version 1.0: 60M).

  python -m t5x_like.train --config=configs/t5/small.py --workdir=runs/t5_small

The hyper-parameters are those of `base.py`.
"""

from configs.t5 import base


def get_config(arg: str = ""):
  return base.get_config(arg, size="small")
