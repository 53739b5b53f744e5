"""DeBERTa v3 base, pretrained as a masked language model (architecture of He et al. 2021, arXiv:2111.09543).

  python -m tools.prepare_data --source=text:books_and_wikipedia/*.txt --vocabulary=VOCABULARY --output=data/books_wiki
  python -m t5x_like.train --config=configs/deberta/base.py --workdir=runs/deberta_base

Batches of 8,192 rows of 512 tokens for 500,000 steps, AdamW up to 6e-4 over 10,000 steps and linearly down to 0, decay
0.01, dropout 0.1 (appendix). The objective is v1's, masked tokens; the paper's is the detection of replaced tokens, so
its scores are not expected. 128 accelerators or more. Not run at full size here.
"""

from t5x_like.config import defaults

LAPTOP = {"model.design.position": "none"}  # the distances of its attention need no other positions


def get_config():
  config = defaults()

  config.model = {"name": "deberta", "variant": "deberta-v3-base", "dropout": 0.1, "vocab_size": 128_100}
  config.task = {"name": "mlm", "store": "data/books_wiki", "length": 512, "input_format": "full_sentences"}
  config.objective = {"name": "mlm"}
  config.batch_size = 8192
  config.total_steps = 500_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.98, "eps": 1e-6, "weight_decay": 0.01}
  config.schedule = {"name": "linear", "learning_rate": 6e-4, "warmup_steps": 10_000}
  config.clip_norm = 1.0
  config.eval_every = 5_000
  config.evals = {"loss": {"max_examples": 16_384}}
  config.checkpoint = {"every": 5_000, "keep_last": 3, "keep_every": 50_000}
  return config
