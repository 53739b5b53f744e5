"""A laptop-sized T5 (16M parameters in version 1.0, as in Tay et al. 2021, table 2).

  python -m t5x_like.train --config=configs/t5/tiny.py --workdir=runs/t5_tiny

The hyper-parameters are those of `base.py`.
"""

from configs.t5 import base


def get_config(arg: str = ""):
  return base.get_config(arg, size="tiny")
