"""Pretrain UL2 at base size on a mixture of seven denoisers (Tay et al. 2022, section 3).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --output=data/c4_en
  python -m t5x_like.train --config=configs/t5/ul2.py --workdir=runs/ul2_base

The model is T5's encoder-decoder. Training takes 500,000 steps of 128 windows of 512 tokens, as in
the paper's ablations. Every input begins with its mode ([NLU], [S2S] or [NLG]), which prompts can
use as well. The vocabulary needs 85 sentinels, fewer than T5's 100.

Hardware: as for `base.py`. This recipe has not been run at full size.
"""

from configs.t5 import base


def get_config():
  config = base.get_config()

  config.task = {"name": "ul2", "store": "data/c4_en", "length": 512, "mode_tokens": True}
  config.total_steps = 500_000
  return config
