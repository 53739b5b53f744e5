"""Pretrain a decoder with the sizes of Gemma 3 12B (Gemma Team 2025, arXiv:2503.19786).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/gemma3/12b.py --workdir=runs/gemma3_12b

The recipe trains the text model without its image encoder, in windows of 8,192 tokens. Batch and
learning rate follow Llama 3.1 8B.

Hardware: 128 accelerators or more.

Expected: the published model scores 74.5 on MMLU with 5 shots. This recipe has not been run at full
size.

Differences: the model learns from text; the authors distil a larger model (section 2.2). Positions
are not stretched for long contexts. The report gives neither batch size nor learning rate.
"""

from t5x_like.config import defaults

LAPTOP = {"model.design.windows": [16, 16, None], "model.design.position": "rope"}


def get_config():
  config = defaults()

  config.model = {
    "name": "gemma3",
    "variant": "12b",
    "vocab_size": 262_208,
    "dropout": 0.0,
    "remat": "full",
  }
  config.task = {
    "name": "causal_lm",
    "store": "data/c4_en_eos",
    "length": 8192,
    "document_mask": True,
  }
  config.objective = {"name": "decoder"}

  config.batch_size = 512
  config.total_steps = 240_000  # 10^12 tokens
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
  config.schedule = {"name": "cosine", "learning_rate": 3e-4, "warmup_steps": 8_000, "end": 0.01}
  config.clip_norm = 1.0
  config.mesh = {"fsdp": -1}

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
