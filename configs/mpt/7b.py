"""MPT 7B, pretrained as a language model (MosaicML 2023).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/mpt/7b.py --workdir=runs/mpt_7b

Batches of 1,760 windows of 2,048 tokens for a trillion tokens, as published. The published model
was trained with Lion, at rates that are not told; optimizer and rates are those of the authors'
recipe of 134 billion tokens in batches of 1,024 (scripts/train/yamls/pretrain/mpt-7b.yaml of
mosaicml/llm-foundry): AdamW up to 1.2e-4 over 100 steps and down to a tenth by a cosine, no decay,
clipping at 1.0. It needs 64 chips or more. Not run at full size here.
"""

from t5x_like.config import defaults


def get_config():
  config = defaults()

  config.model = {
    "name": "mpt",
    "variant": "7b",
    "vocab_size": 50_432,
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

  config.batch_size = 1760
  config.total_steps = 280_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.0}
  config.schedule = {"name": "cosine", "learning_rate": 1.2e-4, "warmup_steps": 100, "end": 0.1}
  config.clip_norm = 1.0
  config.mesh = {"data": -1, "fsdp": 8}

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
