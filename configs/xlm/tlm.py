"""Pretrain XLM on masked pairs of translations (Lample and Conneau 2019, section 3.3).

  python -m t5x_like.train --config=configs/xlm/tlm.py --workdir=runs/xlm_tlm \\
      --config.task.source='parallel:corpus/{split}.{field}.gz' \\
      --config.task.vocabulary=vocabulary

Tokens of both sentences are masked. The model of two languages has 6 layers of width 1,024 and
reads the fields `en` and `de` of the source; `--config.task.text` and `pair` name others. Batches
have 64 pairs in rows of up to 256 tokens. Adam's rate rises to 1e-4 and falls by the inverse square
root, and dropout is 0.1 (section 5.1). b2 of 0.98, 4,000 steps of warm-up and clipping at 5 are
from the authors' code.

Hardware: the authors used 64 V100s.

Expected of the model of 15 languages (`--config.model.variant=xlm-xnli15`, table 1): XNLI 75.1 with
TLM, 71.5 without. This recipe has not been run at full size.

Differences: the paper alternates this objective with masked language modelling of each language.
For that, use a `mixture` with parts that have only `text`.
"""

from t5x_like.config import defaults

# the two sentences share their positions
LAPTOP = {"model.design.position": {"name": "learned", "length": 128}}


def get_config():
  config = defaults()

  config.model = {"name": "xlm", "variant": "xlm-ende", "vocab_size": 64_768, "dropout": 0.1}
  config.task = {
    "name": "translation_lm",
    "source": "parallel:corpus/{split}.{field}.gz",
    "vocabulary": "vocabulary",
    "text": "{en}",
    "pair": "{de}",
    "length": 256,
    "too_long": "truncate",
    "cache": "data/prepared",
  }
  config.objective = {"name": "mlm"}

  config.batch_size = 64
  config.total_steps = 500_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.98, "eps": 1e-8, "weight_decay": 0.0}
  config.schedule = {"name": "warmup_rsqrt", "learning_rate": 1e-4, "warmup_steps": 4_000}
  config.clip_norm = 5.0

  config.eval_every = 5_000
  config.evals = {"loss": {"max_examples": 4_096}, "samples": {}}
  config.checkpoint = {"every": 5_000, "keep_last": 3}
  return config
