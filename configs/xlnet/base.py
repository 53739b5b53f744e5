"""Pretrain XLNet on tokens in random orders (Yang et al. 2019, arXiv:1906.08237, section 3.1).

  python -m tools.prepare_data --source=text:books_and_wikipedia/*.txt --vocabulary=VOCABULARY \\
      --output=data/books_wiki
  python -m t5x_like.train --config=configs/xlnet/base.py --workdir=runs/xlnet_base

Attention has two streams. Rows are pairs of segments with 512 tokens. One token in six is predicted
(K = 6), in spans of 1 to 5 tokens. The base size is the ablation's (section 3.4): BERT's data and
1,000,000 batches of 256 rows, with a rate that rises to 1e-4 over 10,000 steps and falls linearly
to 0. `:large` has the hyper-parameters of table 7: 500,000 batches of 8,192 rows, and a rate that
rises to 4e-4 over 40,000 steps. Both use Adam with a weight decay of 0.01 and dropout of 0.1.

Hardware: large took the authors 5.5 days on 512 TPU v3 chips.

Expected after fine-tuning: base MNLI 85.6 and SST-2 93.4 (table 6), large MNLI 90.8 (on more text).
This recipe has not been run at full size.

Differences: the paper's base also has Transformer-XL's memory. The authors' code draws an order
within each 256 tokens (`perm_size`), includes [SEP] and [CLS] in the order, surrounds each
predicted span of n tokens with 6 n tokens of context, and reads half of the rows backwards
(`bi_data`).
"""

from typing import Literal

from t5x_like.config import defaults

# XLNet's attention has relative positions of its own; the tiny forms need no others.
LAPTOP = {"model.design.position": "none"}


def get_config(size: Literal["base", "large"] = "base"):
  config = defaults()
  large = size == "large"

  config.model = {"name": "xlnet", "variant": f"xlnet-{size}", "dropout": 0.1, "vocab_size": 32_000}
  config.model.remat = "full" if large else "none"
  config.task = {
    "name": "permutation_lm",
    "store": "data/books_wiki",
    "length": 512,
    "input_format": "segment_pair",
  }
  config.task.masking = "token_spans"
  config.objective = {"name": "permutation_lm"}

  config.batch_size = 8192 if large else 256
  config.total_steps = 500_000 if large else 1_000_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.999, "eps": 1e-6, "weight_decay": 0.01}
  if large:
    config.schedule = {"name": "linear", "learning_rate": 4e-4, "warmup_steps": 40_000}
  else:
    config.schedule = {"name": "linear", "learning_rate": 1e-4, "warmup_steps": 10_000}
  config.clip_norm = 1.0

  config.eval_every = 10_000
  config.evals = {"loss": {"max_examples": 16_384}, "samples": {}}
  config.checkpoint = {"every": 10_000, "keep_last": 3, "keep_every": 100_000}
  return config
