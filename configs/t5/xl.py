"""T5.1.1 xl (2.85B parameters; version 1.0 is T5-3B).

  python -m t5x_like.train --config=configs/t5/xl.py --workdir=runs/t5_xl

The hyper-parameters are those of `base.py`; parameters and optimizer state are split over all chips (FSDP).
"""

from configs.t5 import base


def get_config(arg: str = ""):
  config = base.get_config(arg, size="xl")
  config.model.remat = "full"
  config.mesh = {"fsdp": -1}
  return config
