"""Pretrain Falcon 7B as a language model (Almazrouei et al. 2023, arXiv:2311.16867).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/falcon/7b.py --workdir=runs/falcon_7b

According to the model card, training reads 1.5 trillion tokens in batches of 2,304 windows of 2,048
tokens. AdamW's rate rises to 6e-4 over 4 billion tokens and follows a cosine to 1.2e-5. Weight
decay is 0.1 and the z-loss 1e-4. The card gives neither betas nor eps nor clipping; the values are
GPT-3's.

Hardware: the authors used 384 accelerators of 40 GB. This recipe has not been run at full size.

Differences: the authors' batch grows during the first 30 billion tokens; here it is constant.
"""

from t5x_like.config import defaults


def get_config():
  config = defaults()

  config.model = {
    "name": "falcon",
    "variant": "7b",
    "vocab_size": 65_024,
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

  config.batch_size = 2304
  config.total_steps = 318_000  # 1.5 trillion tokens
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
  config.schedule = {"name": "cosine", "learning_rate": 6e-4, "warmup_steps": 848, "end": 0.02}
  config.clip_norm = 1.0
  config.mesh = {"fsdp": -1}

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
