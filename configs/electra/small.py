"""ELECTRA small: a generator a quarter as wide, a discriminator on all tokens (Clark et al. 2020, table 6).

  python -m tools.prepare_data --source=text:books_and_wikipedia/*.txt --vocabulary=VOCABULARY --output=data/books_wiki
  python -m t5x_like.train --config=configs/electra/small.py --workdir=runs/electra_small

A million steps of 128 rows of 128: AdamW up to 5e-4 over 10,000 steps and linearly down, eps 1e-6, decay 0.01, dropout
0.1, discriminator weight 50, 15% predicted, all of them masked in the generator's input (as section 2 of the paper
says; their code leaves 15% of these as they are). Rows are full sentences; their code cuts nine rows in ten into two
segments about the middle, without predicting anything of it. The paper trained four days on one V100; expected after
fine-tuning (table 1): GLUE dev 79.9. It has not been run at full size here. `:tiny` learns within minutes on a laptop,
`:debug` takes two steps without data.
"""

from configs.bert import base
from t5x_like.config import words
from t5x_like.laptop import ENCODER, FORMS, laptop


def get_config(arg: str = ""):
  options = words(arg, FORMS)
  config = base.get_config()
  config.model = {
    "name": "electra",
    "variant": "electra-small",
    "vocab_size": 30720,
    "dropout": 0.1,
    "dtype": "auto",
    "layers": "auto",
    "remat": "none",
  }
  config.task = {
    "name": "mlm",
    "store": "data/books_wiki",
    "length": 128,
    "input_format": "full_sentences",
    "mask_share": 1.0,
    "random_share": 0.0,
  }
  config.objective = {"name": "electra", "discriminator": 50.0}
  config.batch_size = 128
  config.total_steps = 1_000_000
  config.phases = {}
  config.schedule.learning_rate = 5e-4
  if "tiny" in options:
    config.objective.discriminator = 5.0  # 50 leaves the generator little of a clipped gradient, for thousands of steps
  return laptop(config, options, "electra-tiny", batch_size=64, design=ENCODER)
