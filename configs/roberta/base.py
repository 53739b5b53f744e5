"""Pretrain RoBERTa on dynamic masks in full sentences (Liu et al. 2019, sections 4 and 5).

  python -m tools.prepare_data --source=text:web/*.txt --vocabulary=VOCABULARY --append_eos \\
      --output=data/web
  python -m t5x_like.train --config=configs/roberta/base.py --workdir=runs/roberta_base

Training takes 500,000 steps of 8,192 rows of 512 tokens (table 9), without next sentences. AdamW's
rate rises to 6e-4 over 24,000 steps and falls linearly; for `:large` it rises to 4e-4 over 30,000.
Betas are 0.9 and 0.98, and eps is 1e-6. The weight decay of 0.01 applies to all parameters, biases
and gains included, as in the authors' code (fairseq). Dropout is 0.1, and gradients are not
clipped.

Hardware: 100,000 steps of large took the authors one day on 1,024 V100s.

Expected after fine-tuning (the table of the authors' repository, base): MNLI 87.6, SST-2 94.8. The
paper used 160 GB of text. This recipe has not been run at full size.
"""

from typing import Literal

from t5x_like.config import defaults


def get_config(size: Literal["base", "large"] = "base"):
  learning_rate, warmup_steps = {"base": (6e-4, 24_000), "large": (4e-4, 30_000)}[size]
  config = defaults()
  config.model = {
    "name": "roberta",
    "variant": f"roberta-{size}",
    "vocab_size": 50_304,  # 50,265 rounded up to a multiple of 128
    "head": "mlm",
    "dropout": 0.1,
  }
  config.task = {
    "name": "mlm",
    "store": "data/web",
    "length": 512,
    "input_format": "full_sentences",
    "masking": "tokens",
  }
  config.objective = {"name": "mlm"}

  config.batch_size = 8192
  config.total_steps = 500_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.98, "eps": 1e-6, "weight_decay": 0.01}
  config.optimizer.undecayed = "nothing"
  config.schedule = {"name": "linear", "learning_rate": learning_rate, "warmup_steps": warmup_steps}

  config.eval_every = 10_000
  config.evals = {"loss": {"max_examples": 16_384}, "samples": {}}
  config.checkpoint = {"every": 10_000, "keep_last": 3, "keep_every": 100_000}
  return config
