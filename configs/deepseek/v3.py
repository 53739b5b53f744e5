"""Pretrain DeepSeek-V3, which predicts two tokens (DeepSeek-AI 2024, sections 4.1 and 4.2).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/deepseek/v3.py --workdir=runs/deepseek_v3

Source: arXiv:2412.19437. AdamW reads 14.8 trillion tokens in windows of 4,096. The loss of the
second token has a weight of 0.3 and the balance loss within rows a weight of 1e-4; the biases of
the router move by 0.001. No token is dropped. The rate stays at 2.2e-4 for 10 trillion tokens,
falls on a cosine to a tenth over 4.3 trillion, and stays there. After 10 trillion tokens set
--config.objective.next_weight=0.1; for the last 0.5 trillion set
--config.model.design.experts.bias_rate=0.

Hardware: 2,048 accelerators or more. A v5p 8x16x16 holds 12,288 rows in 98.0 of 102.0 GB
(docs/plans.json).

Expected: the published base model scores 87.1 on MMLU with 5 shots (table 3). This recipe has not
been run at full size.

Differences: the paper's batch grows from 3,072 to 15,360 rows over 469 billion tokens; here it has
15,360 rows from the start. The paper's rate for the last 167 billion tokens is 7.3e-6.
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
_SMALL_EXPERTS = {
  "experts": 8,
  "top_k": 2,
  "mlp": 128,
  "groups": 4,
  "top_groups": 2,
  "bias_rate": 0.01,
}
LAPTOP = {
  "model.design.experts": EXPERTS | _SMALL_EXPERTS,
  "schedule.decay": 0.4,
  "schedule.total_steps": 400,
}


def get_config():
  config = defaults()

  config.model = {
    "name": "deepseek",
    "variant": "v3",
    "vocab_size": 129_280,
    "mtp_depth": 1,
    "dropout": 0.0,
    "remat": "full",
    "design": {"experts": EXPERTS},
  }
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
  config.schedule = {
    "name": "warmup_stable_decay",
    "learning_rate": 2.2e-4,
    "warmup_steps": 2_000,
    "decay": 68_300,  # 4.3 trillion tokens
    "total_steps": 227_300,  # 14.3 trillion tokens
    "end": 0.1,
    "shape": "cosine",
  }
  config.clip_norm = 1.0
  config.mesh = {"fsdp": -1, "expert": 8}

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
