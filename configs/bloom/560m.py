"""BLOOM 560M, pretrained as a language model (BigScience Workshop 2022, arXiv:2211.05100).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/bloom/560m.py --workdir=runs/bloom_560m

Batches of 256 windows of 2,048 tokens, AdamW up to 3e-4 and down by a cosine to 1e-5 at 410 billion
tokens, of which 341 billion are run; weight decay 0.1, clipping at 1.0 (table 3), dropout 0.1,
which the authors' scripts inherit from Megatron-LM (train/tr11-176B-ml/README.md of
bigscience-workshop/bigscience). The paper's corpus has 46 languages; `configs/mt5/base.py` shows
how to mix them. The batch is constant here, and grows from 192 in the authors' script
(tr11e-350M-ml). It needs 32 accelerators or more. Not run at full size here.
"""

from t5x_like.config import defaults

LAPTOP = {"schedule.total_steps": 400}


def get_config():
  config = defaults()

  config.model = {"name": "bloom", "variant": "560m", "vocab_size": 250_880, "dropout": 0.1}
  config.task = {
    "name": "causal_lm",
    "store": "data/c4_en_eos",
    "length": 2048,
    "document_mask": False,
  }
  config.objective = {"name": "decoder"}

  config.batch_size = 256
  config.total_steps = 650_000  # 341 billion tokens
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
  # 375 M tokens
  config.schedule = {"name": "cosine", "learning_rate": 3e-4, "warmup_steps": 715, "end": 1 / 30}
  config.schedule.total_steps = 782_000  # 410 billion tokens
  config.clip_norm = 1.0

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
