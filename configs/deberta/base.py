"""Pretrain DeBERTa v3 base: a discriminator and its generator (He et al. 2021, arXiv:2111.09543).

  python -m tools.prepare_data --source=text:books_and_wikipedia/*.txt --vocabulary=VOCABULARY \\
      --output=data/books_wiki
  python -m t5x_like.train --config=configs/deberta/base.py --workdir=runs/deberta_base

A generator of six layers replaces masked tokens, and a discriminator judges all tokens. Training
takes 500,000 steps of 8,192 rows of 512 tokens. AdamW's rate rises to 6e-4 over 10,000 steps and
falls linearly to 0. Weight decay is 0.01, dropout 0.1 and the discriminator's weight 50 (section 3
and appendix). `models/deberta_rtd.py` describes the other parts of the two heads.

Hardware: 128 accelerators or more.

Expected after fine-tuning, from 160 GB of text (table 3): MNLI-m 90.6, SQuAD 2.0 F1 88.4. This
recipe has not been run at full size.

Differences: the default of the authors' code for the discriminator's weight is 10. As in that code,
15 % of the tokens are predicted, and all of them are masked in the generator's input.
"""

from t5x_like.config import defaults

# Attention has relative positions, so no rotary ones are added. At a discriminator's weight of 50,
# clipping leaves the generator too small a gradient for thousands of steps.
LAPTOP = {"model.design.position": "none", "objective.discriminator": 5.0}


def get_config():
  config = defaults()

  config.model = {
    "name": "deberta_rtd",
    "variant": "deberta-v3-base",
    "dropout": 0.1,
    "vocab_size": 128_100,
  }
  config.task = {
    "name": "mlm",
    "store": "data/books_wiki",
    "length": 512,
    "input_format": "full_sentences",
    "mask_share": 1.0,
    "random_share": 0.0,
  }
  config.objective = {"name": "electra", "discriminator": 50.0}
  config.batch_size = 8192
  config.total_steps = 500_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.98, "eps": 1e-6, "weight_decay": 0.01}
  config.schedule = {"name": "linear", "learning_rate": 6e-4, "warmup_steps": 10_000}
  config.clip_norm = 1.0
  config.eval_every = 5_000
  config.evals = {"loss": {"max_examples": 16_384}, "samples": {}}
  config.checkpoint = {"every": 5_000, "keep_last": 3, "keep_every": 50_000}
  return config
