"""Pretrain Pythia 160M as a language model (Biderman et al. 2023, appendix E).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/neox/pythia_160m.py --workdir=runs/pythia_160m

Source: arXiv:2304.01373. Training takes 143,000 steps (300 billion tokens) of 1,024 windows of
2,048 tokens. AdamW's rate rises to 6e-4 over one step in a hundred and follows a cosine to a tenth.
There is no dropout. The weight decay of 0.1 and the tanh form of GELU (by `bias-gelu-fusion`) are
from the authors' configs (EleutherAI/pythia, models/160M).

Hardware: eight accelerators of 40 GB or more. This recipe has not been run at full size.

Differences: the appendix has a weight decay of 0.01, and the published files have the exact form of
GELU.
"""

from t5x_like.config import defaults


def get_config():
  config = defaults()

  config.model = {"name": "neox", "variant": "pythia-160m", "vocab_size": 50_304, "dropout": 0.0}
  config.model.design = {"activation": "gelu_tanh"}
  config.task = {
    "name": "causal_lm",
    "store": "data/c4_en_eos",
    "length": 2048,
    "document_mask": False,
  }
  config.objective = {"name": "decoder"}

  config.batch_size = 1024
  config.total_steps = 143_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
  config.schedule = {"name": "cosine", "learning_rate": 6e-4, "warmup_steps": 1_430, "end": 0.1}
  config.clip_norm = 1.0

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}, "samples": {}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
