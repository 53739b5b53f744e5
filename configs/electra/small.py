"""Pretrain ELECTRA small: a discriminator and its generator (Clark et al. 2020, table 6).

  python -m tools.prepare_data --source=text:books_and_wikipedia/*.txt --vocabulary=VOCABULARY \\
      --output=data/books_wiki
  python -m t5x_like.train --config=configs/electra/small.py --workdir=runs/electra_small

The generator is a quarter as wide as the discriminator, which judges all tokens. Training takes
1,000,000 steps of 128 rows of 128 tokens. AdamW's rate rises to 5e-4 over 10,000 steps and falls
linearly. Eps is 1e-6, weight decay 0.01, dropout 0.1 and the discriminator's weight 50. As in
section 2, 15 % of the tokens are predicted, and all of them are masked in the generator's input.

Hardware: four days on one V100.

Expected after fine-tuning (table 1): GLUE dev 79.9. This recipe has not been run at full size.

Differences: the authors' code leaves 15 % of the predicted tokens unchanged. Rows are full
sentences; the authors' code splits nine rows in ten into two segments near the middle but predicts
nothing from the split.
"""

from t5x_like.config import defaults

# At the discriminator's weight of 50, clipping leaves the generator too small a gradient for
# thousands of steps.
LAPTOP = {"objective.discriminator": 5.0}


def get_config():
  config = defaults()

  config.model = {
    "name": "electra",
    "variant": "electra-small",
    "vocab_size": 30_720,
    "dropout": 0.1,
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
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.999, "eps": 1e-6, "weight_decay": 0.01}
  config.schedule = {"name": "linear", "learning_rate": 5e-4, "warmup_steps": 10_000}
  config.schedule.decay = "from_start_times_warmup"
  config.clip_norm = 1.0

  config.eval_every = 10_000
  config.evals = {"loss": {"max_examples": 16_384}, "samples": {}}
  config.checkpoint = {"every": 10_000, "keep_last": 3, "keep_every": 100_000}
  return config
