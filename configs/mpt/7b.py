"""Pretrain MPT 7B as a language model (MosaicML 2023).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/mpt/7b.py --workdir=runs/mpt_7b

Training reads a trillion tokens in batches of 1,760 windows of 2,048 tokens, as published.
Optimizer and rates are from the authors' recipe of 134 billion tokens in batches of 1,024
(scripts/train/yamls/pretrain/mpt-7b.yaml of mosaicml/llm-foundry). AdamW's rate rises to 1.2e-4
over 100 steps and follows a cosine to a tenth. Weights do not decay, and gradients are clipped at
1.0.

Hardware: 64 chips or more. This recipe has not been run at full size.

Differences: the published model was trained with Lion at rates that are not published.
"""

from t5x_like.config import defaults


def get_config():
  config = defaults()

  config.model = {
    "name": "mpt",
    "variant": "7b",
    "vocab_size": 50_432,
    "dropout": 0.0,
    "remat": "full",
  }
  config.task = {
    "name": "causal_lm",
    "store": "data/c4_en_eos",
    "length": 2048,
    "document_mask": False,
  }
  config.objective = {"name": "decoder"}

  config.batch_size = 1760
  config.total_steps = 280_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.0}
  config.schedule = {"name": "cosine", "learning_rate": 1.2e-4, "warmup_steps": 100, "end": 0.1}
  config.clip_norm = 1.0
  config.mesh = {"data": -1, "fsdp": 8}

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
