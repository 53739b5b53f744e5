"""Pretrain mT5 by span corruption on many languages (Xue et al. 2021, arXiv:2010.11934).

  python -m tools.prepare_data --source=tfds:c4/multilingual --vocabulary=VOCABULARY \\
      --output=data/mc4_LANGUAGE
  python -m t5x_like.train --config=configs/mt5/base.py --workdir=runs/mt5_base

Each of `LANGUAGES` has a token store; all stores have the same vocabulary of 250,000 pieces and 100
sentinels. There are 101 languages, six of which also occur in Latin letters, as in the authors'
mixture. They are drawn in proportion to their size to the power of 0.3 (section 3.1), a temperature
of 1 / 0.3. Training takes 1,000,000 steps of 1,024 sequences of 1,024 tokens without dropout
(section 3.3). Other sizes are `:small`, `:large`, `:xl` and `:xxl`.

Hardware: a pod of 64 chips or more.

Expected of base after fine-tuning on English (table 2): XNLI 75.4. This recipe has not been run at
full size.
"""

from typing import Literal

from configs.t5 import base

Size = Literal["small", "base", "large", "xl", "xxl"]
LANGUAGES = (
  "af am ar az be bg bg-Latn bn ca ceb co cs cy da de el el-Latn en eo es et eu fa fi fil fr fy "
  "ga gd gl gu ha haw hi hi-Latn hmn ht hu hy id ig is it iw ja ja-Latn jv ka kk km kn ko ku ky "
  "la lb lo lt lv mg mi mk ml mn mr ms mt my ne nl no ny pa pl ps pt ro ru ru-Latn sd si sk sl sm "
  "sn so sq sr st su sv sw ta te tg th tr uk ur uz vi xh yi yo zh zh-Latn zu"
).split()
LAPTOP = {
  "task.parts": {"en": {}, "de": {}},
  "task.shared.store": "data/mc4_en",
  "task.period": 100,
}


def get_config(size: Size = "base"):
  config = base.get_config(size)

  config.model.variant = f"mt5-{size}"
  config.model.vocab_size = 250_112
  config.task = {
    "name": "mixture",
    "rates": "temperature",
    "temperature": 1 / 0.3,
    "period": 1_000_000,  # long enough to include the rarest of a hundred languages
    "shared": {
      "name": "span_corruption",
      "inputs_length": 1024,
      "targets_length": 229,
      "noise_density": 0.15,
    },
    "parts": {language: {"store": f"data/mc4_{language}"} for language in LANGUAGES},
    "label": "mc4_span_corruption",
  }

  config.batch_size = 1024
  config.total_steps = 1_000_000
  config.evals = {"loss": {"max_examples": 16_384}}
  return config
