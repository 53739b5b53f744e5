"""Pretrain a decoder with the sizes of Gemma 2 2B (Gemma Team 2024, arXiv:2408.00118).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/gemma2/2b.py --workdir=runs/gemma2_2b

The model learns to predict the next token with the optimizer and schedule of Llama 3.1 8B.

Hardware: 64 chips or more.

Expected: the published model scores 51.3 on MMLU with 5 shots. This recipe has not been run at full
size.

Differences: the published 2B was distilled from a larger model on 2 trillion tokens (section 3);
this recipe has no teacher. The report gives neither learning rates nor batch sizes.
"""

from t5x_like.config import defaults


def get_config():
  config = defaults()

  config.model = {
    "name": "gemma2",
    "variant": "2b",
    "vocab_size": 256_000,
    "dropout": 0.0,
    "remat": "full",
  }
  config.task = {
    "name": "causal_lm",
    "store": "data/c4_en_eos",
    "length": 8192,
    "document_mask": True,
  }
  config.objective = {"name": "decoder"}

  config.batch_size = 512
  config.total_steps = 480_000  # 2 * 10^12 tokens
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
  config.schedule = {"name": "cosine", "learning_rate": 3e-4, "warmup_steps": 8_000, "end": 0.01}
  config.clip_norm = 1.0
  config.mesh = {"data": -1, "fsdp": 8}

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
