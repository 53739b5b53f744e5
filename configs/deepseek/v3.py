"""DeepSeek-V3, pretrained as a language model that predicts two tokens.

Source: DeepSeek-AI 2024, arXiv:2412.19437.

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/deepseek/v3.py --workdir=runs/deepseek_v3

Sections 4.1 and 4.2: windows of 4,096 tokens, 14.8 trillion of them, AdamW, weights of 0.3 for the
second token and of 1e-4 for the balance within rows, biases that move by 0.001. The rate stays at
2.2e-4 for 10 trillion tokens, falls to a tenth on a cosine over 4.3 trillion and stays there (in
the paper, at 7.3e-6 for the last 167 billion). The paper's batch grows from 3,072 to 15,360 rows
over 469 billion tokens; after 10 trillion set --config.objective.next_weight=0.1, for the last 0.5
--config.model.design.experts.bias_rate=0. No token is dropped. 2,048 accelerators or more: v5p
8x16x16 holds 12,288 rows in 98.0 of 102.0 GB (docs/plans.json). The published base model scores
87.1 on MMLU with 5 shots (table 3). Not run at full size here.
"""

from t5x_like.config import defaults

EXPERTS = {
  "experts": 256,
  "top_k": 8,
  "mlp": 2048,
  "shared": 1,
  "router": "sigmoid",
  "normalise": True,
  "groups": 8,
  "top_groups": 4,
  "scale": 2.5,
  "bias_rate": 0.001,
  "balance_loss": 1e-4,
  "dispatch": "dropless",
}
SMALL = {"experts": 8, "top_k": 2, "mlp": 128, "groups": 4, "top_groups": 2, "bias_rate": 0.01}
LAPTOP = {
  "model.design.experts": EXPERTS | SMALL,
  "schedule.decay": 0.4,
  "schedule.total_steps": 400,
}


def get_config():
  config = defaults()

  sizes = {"variant": "v3", "vocab_size": 129_280, "mtp_depth": 1, "design": {"experts": EXPERTS}}
  config.model = {"name": "deepseek", "dropout": 0.0, "remat": "full"} | sizes
  config.task = {
    "name": "causal_lm",
    "store": "data/c4_en_eos",
    "length": 4096,
    "document_mask": True,
  }
  config.objective = {"name": "multi_token", "next_weight": 0.3}

  config.batch_size = 15_360
  config.total_steps = 235_000  # 14.8 trillion tokens
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
  schedule = {
    "learning_rate": 2.2e-4,
    "warmup_steps": 2_000,
    "decay": 68_300,
    "end": 0.1,
    "shape": "cosine",
  }
  # 4.3 of 14.3 trillion tokens
  config.schedule = {"name": "warmup_stable_decay", "total_steps": 227_300} | schedule
  config.clip_norm = 1.0
  config.mesh = {"fsdp": -1, "expert": 8}

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
