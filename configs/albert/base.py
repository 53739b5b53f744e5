"""Pretrain ALBERT on masked words and the order of sentences (Lan et al. 2020, section 4.1).

  python -m tools.prepare_data --source=text:books_and_wikipedia/*.txt --vocabulary=VOCABULARY \\
      --output=data/books_wiki
  python -m t5x_like.train --config=configs/albert/base.py --workdir=runs/albert_base

Training takes 125,000 steps with batches of 4,096 sequences of 512 tokens. LAMB's rate peaks at
1.76e-3. N-grams of up to three words are masked, and half of the pairs have their segments in the
wrong order. The warm-up over 3,125 steps, the linear decay to 0, the weight decay of 0.01 and the
clipping at 1.0 are from the released code. The suffixes `:large`, `:xlarge` and `:xxlarge` choose
other sizes.

Hardware: the paper used 64 to 512 TPU v3 chips.

Expected after fine-tuning (table 2, base and xxlarge): MNLI 81.6 and 88.0, SQuAD 2.0 F1 80.0 and
88.1. This recipe has not been run at full size.
"""

from typing import Literal

from t5x_like.config import defaults

Size = Literal["base", "large", "xlarge", "xxlarge"]


def get_config(size: Size = "base"):
  config = defaults()

  config.model = {
    "name": "albert",
    "variant": f"albert-{size}",
    "head": "pretraining",
    "vocab_size": 30_000,
    "dropout": 0.1,
    "remat": "none" if size == "base" else "full",
  }
  config.task = {
    "name": "mlm",
    "store": "data/books_wiki",
    "length": 512,
    "input_format": "segment_pair",
    "masking": "ngrams",
    "random_next": 0.0,
    "swapped": 0.5,
  }
  config.objective = {"name": "mlm"}
  config.batch_size = 4096
  config.total_steps = 125_000
  config.optimizer = {"name": "lamb", "weight_decay": 0.01}
  config.schedule = {
    "name": "linear",
    "learning_rate": 1.76e-3,
    "warmup_steps": 3_125,
    "decay": "from_start",
  }
  config.clip_norm = 1.0
  config.eval_every = 5_000
  config.evals = {"loss": {"max_examples": 16_384}}
  config.checkpoint = {"every": 5_000, "keep_last": 3, "keep_every": 25_000}
  return config
