"""Pretrain a decoder with the sizes of gpt-oss-20b (OpenAI 2025, arXiv:2508.10925).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/gpt_oss/20b.py --workdir=runs/gpt_oss_20b

Windows have 4,096 tokens. The card gives the sizes but not the training. Batch and rates follow
OLMo 2 7B (OLMo Team 2025, section 2.2), the balance loss follows Switch, and the router's z-loss
ST-MoE (Zoph et al. 2022). Experts are split over eight chips, and each expert has
slots for 1.5 times its share of the tokens.

Hardware: 128 accelerators or more.

Expected: the published model, which was also trained to reason, scores 85.3 on MMLU at its longest
reasoning. This recipe has not been run at full size.

Differences: positions are not stretched to 131,072 by YaRN.
"""

from t5x_like.config import defaults

EXPERTS = {
  "experts": 32,
  "top_k": 4,
  "normalise": True,
  "dispatch": "capacity",
  "capacity_factor": 1.5,
}
LAPTOP = {"model.design.windows": [16, None], "model.design.experts": EXPERTS | {"experts": 8}}


def get_config():
  config = defaults()

  config.model = {
    "name": "gpt_oss",
    "variant": "20b",
    "vocab_size": 201_088,
    "dropout": 0.0,
    "remat": "full",
  }
  experts = EXPERTS | {"balance_loss": 0.01, "z_loss": 1e-3}
  config.model.design = {"experts": experts, "position": {"name": "rope", "theta": 150_000.0}}
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
  config.mesh = {"fsdp": -1, "expert": 8}

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
