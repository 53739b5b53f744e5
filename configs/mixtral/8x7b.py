"""Pretrain Mixtral 8x7B as a language model (Jiang et al. 2024).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/mixtral/8x7b.py --workdir=runs/mixtral_8x7b

The paper gives the sizes of the model but not its training. Optimizer, rates and batch follow Llama
2 70B (Touvron et al. 2023, section 2.2). AdamW's rate rises to 1.5e-4 over 2,000 steps and
follows a cosine to a tenth; a batch has 2^22 tokens.

Experts are split over eight chips. Each has slots for 1.25 times its share of the tokens in
training and for twice its share in evaluations (`dispatch`), as ST-MoE advises for two experts a
token (Zoph et al. 2022).

The balance loss has the weight of the published config. `transformers` pools the choices of all 32
layers and weights them by 0.02, which is twice the mean of the layers. Here the weight applies to
the sum of the layers, so it is 0.02 * 2 / 32.

Hardware: 512 chips or more. A chip of v5p uses 60 of 102 GB (docs/plans.json), or 9 GB with
`--config.model.remat=full`. It is planned on v5p 8x8x8: 2.77 s a step, 51 % MFU (docs/plans.json).

Expected: the published model scores 70.6 on MMLU with 5 shots (table 2). This recipe has not been
run at full size.
"""

from t5x_like.config import defaults


def get_config():
  config = defaults()

  config.model = {
    "name": "mixtral",
    "variant": "8x7b",
    "vocab_size": 32_000,
    "dropout": 0.0,
    "remat": "minimal",
  }
  config.model.design = {
    "experts": {
      "experts": 8,
      "top_k": 2,
      "normalise": True,
      "balance_loss": 0.02 * 2 / 32,
      "z_loss": 0.0,
      "dispatch": "capacity",
      "capacity_factor": 1.25,
      "eval_capacity_factor": 2.0,
    }
  }
  config.task = {
    "name": "causal_lm",
    "store": "data/c4_en_eos",
    "length": 4096,
    "document_mask": True,
  }
  config.objective = {"name": "decoder"}

  config.batch_size = 1024
  config.total_steps = 240_000  # 10^12 tokens
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-5, "weight_decay": 0.1}
  config.schedule = {"name": "cosine", "learning_rate": 1.5e-4, "warmup_steps": 2_000, "end": 0.1}
  config.clip_norm = 1.0
  config.mesh = {"fsdp": -1, "expert": 8}

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
