"""Pretrain PaLM 8B as a language model (Chowdhery et al. 2022, section 5).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/palm/8b.py --workdir=runs/palm_8b

Batches have 512 windows of 2,048 tokens. Adafactor is not factored, and its rates are scaled by the
parameters: 1e-2 for 10,000 steps, then 1/sqrt(step). Momentum is 0.9 and the decay of second
moments 0.8. Weights decay by the square of the rate. The z-loss is 1e-4, gradients are clipped at
1.0, and there is no dropout. 744,000 steps are the 780 billion tokens of table 2.

Hardware: a pod of 256 chips or more. 540B is planned on v4 12x16x16: 24.72 s a step, 49 % MFU
(docs/plans.json).

Expected: the published 8B scores 69.5 on LAMBADA with no shots (appendix H.1). This recipe has not
been run at full size.

Differences: the paper's batch grows from 256 to 512 windows (table 1) at a step that it does not
give; here it has 512 from the start. Gains do not decay here; the paper does not say whether they
do.
"""

from t5x_like.config import defaults


def get_config():
  config = defaults()

  config.model = {
    "name": "palm",
    "variant": "8b",
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
  config.objective = {"name": "decoder", "z_loss": 1e-4}

  config.batch_size = 512
  config.total_steps = 744_000
  config.optimizer = {"name": "unfactored_adafactor", "decay_rate": 0.8, "momentum": 0.9}
  config.schedule = {"name": "rsqrt", "warmup_steps": 10_000}
  config.clip_norm = 1.0
  config.mesh = {"data": -1, "fsdp": 8}

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
