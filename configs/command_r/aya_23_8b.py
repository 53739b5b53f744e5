"""Pretrain a decoder with the sizes of Aya 23 8B (Aryabumi et al. 2024, arXiv:2405.15032).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/command_r/aya_23_8b.py \\
      --workdir=runs/command_r_aya_23_8b

The authors have not published how they trained the base model. Optimizer, rates and batch follow
Llama 2 7B (Touvron et al. 2023, section 2.2). AdamW's rate rises to 3e-4 over 2,000 steps and
follows a cosine to a tenth; a batch has 2^22 tokens.

Hardware: 64 accelerators or more. This recipe has not been run at full size.
"""

from t5x_like.config import defaults


def get_config():
  config = defaults()

  config.model = {
    "name": "command_r",
    "variant": "aya-23-8b",
    "vocab_size": 256_000,
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

  config.batch_size = 2048
  config.total_steps = 480_000  # 2 trillion tokens
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-5, "weight_decay": 0.1}
  config.schedule = {"name": "cosine", "learning_rate": 3e-4, "warmup_steps": 2_000, "end": 0.1}
  config.clip_norm = 1.0
  config.mesh = {"fsdp": -1}

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
