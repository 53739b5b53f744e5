"""Pretrain a decoder with the sizes of Qwen 3 8B (Qwen Team 2025, arXiv:2505.09388).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/qwen/qwen3_8b.py --workdir=runs/qwen3_8b

Sequences have 4,096 tokens, as in the report's first stage (section 3.2). The report gives neither
batch size nor learning rate; both are from OLMo 2 7B (OLMo Team 2025, section 2.2).

Hardware: 128 accelerators or more.

Expected: the published base model scores 76.89 on MMLU with 5 shots. This recipe has not been run
at full size.

Differences: the first stage reads 30 trillion tokens; this recipe reads one trillion.
"""

from t5x_like.config import defaults


def get_config():
  config = defaults()

  config.model = {
    "name": "qwen",
    "variant": "qwen3-8b",
    "vocab_size": 151_936,
    "dropout": 0.0,
    "remat": "full",
  }
  config.task = {
    "name": "causal_lm",
    "store": "data/c4_en_eos",
    "length": 4096,
    "document_mask": True,
  }
  config.objective = {"name": "decoder"}

  config.batch_size = 1024
  config.total_steps = 240_000  # a trillion tokens
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
  config.schedule = {"name": "cosine", "learning_rate": 3e-4, "warmup_steps": 2_000, "end": 0.1}
  config.clip_norm = 1.0
  config.mesh = {"fsdp": -1}

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
