"""UL2 at base size: T5's encoder-decoder, pretrained on a mixture of seven denoisers.

Source: Tay et al. 2022, section 3.

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --output=data/c4_en
  python -m t5x_like.train --config=configs/t5/ul2.py --workdir=runs/ul2_base

Windows of 512 tokens, batches of 128, 500,000 steps, as in the paper's ablations. Every input
begins with its mode ([NLU], [S2S] or [NLG]), which prompts can use as well. The vocabulary needs 85
sentinels, fewer than T5's 100. Hardware as for `base.py`. Not run at full size here.
"""

from configs.t5 import base


def get_config():
  config = base.get_config()

  config.task = {"name": "ul2", "store": "data/c4_en", "length": 512, "mode_tokens": True}
  config.total_steps = 500_000
  return config
