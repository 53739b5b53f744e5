"""Pretrain BLOOM 560M as a language model (BigScience Workshop 2022, arXiv:2211.05100, table 3).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/bloom/560m.py --workdir=runs/bloom_560m

Batches have 256 windows of 2,048 tokens. AdamW's rate rises to 3e-4 and follows a cosine that would
reach 1e-5 at 410 billion tokens; training stops at 341 billion. Weight decay is 0.1, and gradients
are clipped at 1.0. The dropout of 0.1 is inherited by the authors' scripts from Megatron-LM
(train/tr11-176B-ml/README.md of bigscience-workshop/bigscience).

Hardware: 32 accelerators or more. This recipe has not been run at full size.

Differences: the paper's corpus has 46 languages; `configs/mt5/base.py` shows how to mix languages.
The batch is constant here; in the authors' script (tr11e-350M-ml) it grows from 192.
"""

from t5x_like.config import defaults

LAPTOP = {"schedule.total_steps": 400}


def get_config():
  config = defaults()

  config.model = {"name": "bloom", "variant": "560m", "vocab_size": 250_880, "dropout": 0.1}
  config.task = {
    "name": "causal_lm",
    "store": "data/c4_en_eos",
    "length": 2048,
    "document_mask": False,
  }
  config.objective = {"name": "decoder"}

  config.batch_size = 256
  config.total_steps = 650_000  # 341 billion tokens
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
  # 375 M tokens
  config.schedule = {"name": "cosine", "learning_rate": 3e-4, "warmup_steps": 715, "end": 1 / 30}
  config.schedule.total_steps = 782_000  # 410 billion tokens
  config.clip_norm = 1.0

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
