"""Pretrain OLMo 2 7B, first stage (OLMo Team 2025, arXiv:2501.00656, sections 2 and 3).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/olmo/olmo2_7b.py --workdir=runs/olmo2_7b

Batches have 1,024 windows of 4,096 tokens, with attention across documents. AdamW's rate rises to
3e-4 over 2,000 steps. It then follows a half cosine that would reach a tenth at 5 trillion tokens,
and training stops at 3.9 trillion. The z-loss is 1e-5. Embeddings have no weight decay, but the
scales of norms do (OLMo2-7B-stage1.yaml of allenai/OLMo).

Hardware: 128 accelerators or more.

Expected: the published base model, after its second stage, scores 63.7 on MMLU with 5 shots. This
recipe has not been run at full size.
"""

from t5x_like.config import defaults

LAPTOP = {"schedule.total_steps": 400}


def get_config():
  config = defaults()

  config.model = {
    "name": "olmo",
    "variant": "olmo2-7b",
    "vocab_size": 100_352,
    "dropout": 0.0,
    "remat": "full",
  }
  config.task = {
    "name": "causal_lm",
    "store": "data/c4_en_eos",
    "length": 4096,
    "document_mask": False,
  }
  config.objective = {"name": "decoder", "z_loss": 1e-5}

  config.batch_size = 1024
  config.total_steps = 928_646  # 3.9 trillion tokens
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
  config.optimizer.undecayed = "embeddings"
  config.schedule = {"name": "cosine", "learning_rate": 3e-4, "warmup_steps": 2_000, "end": 0.1}
  config.schedule.total_steps = 1_192_000  # 5 trillion tokens
  config.clip_norm = 1.0
  config.mesh = {"fsdp": -1}

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
