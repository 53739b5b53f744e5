"""Pretrain Mistral 7B as a language model (Jiang et al. 2023).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/llama/mistral_7b.py --workdir=runs/mistral_7b

Rows have 8,192 tokens, and each token attends to the last 4,096 (section 2). The paper gives the
sizes of the model but not its training. Optimizer and learning rate follow Llama 2 7B (Touvron et
al. 2023, section 2.2), with batches of 2^22 tokens.

Hardware: 64 chips or more.

Expected: the published model scores 60.1 on MMLU with 5 shots (table 2). This recipe has not been
run at full size.
"""

from t5x_like.config import defaults

LAPTOP = {"model.design.windows": [16]}


def get_config():
  config = defaults()

  config.model = {
    "name": "llama",
    "variant": "mistral-7b-v0.1",
    "vocab_size": 32_000,
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
  config.total_steps = 240_000  # 10^12 tokens
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-5, "weight_decay": 0.1}
  config.schedule = {"name": "cosine", "learning_rate": 3e-4, "warmup_steps": 2_000, "end": 0.1}
  config.clip_norm = 1.0
  config.mesh = {"data": -1, "fsdp": 8}

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
