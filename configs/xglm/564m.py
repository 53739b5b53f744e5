"""Pretrain XGLM 564M as a language model (Lin et al. 2021, arXiv:2112.10668).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/xglm/564m.py --workdir=runs/xglm_564m

Training reads 500 billion tokens in windows of 2,048. The batch, the learning rate, its warm-up
over 375 million tokens, its decay to a tenth and the weight decay are GPT-3 Medium's, which has as
many layers of the same width (Brown et al. 2020, table 2.1 and appendix B).

Hardware: 32 accelerators or more. This recipe has not been run at full size.

Differences: the paper's corpus has 30 languages, this one has English; `configs/mt5/base.py` shows
how to mix languages.
"""

from t5x_like.config import defaults


def get_config():
  config = defaults()

  config.model = {"name": "xglm", "variant": "564m", "vocab_size": 256_008, "dropout": 0.1}
  config.task = {
    "name": "causal_lm",
    "store": "data/c4_en_eos",
    "length": 2048,
    "document_mask": False,
  }
  config.objective = {"name": "decoder"}

  config.batch_size = 256
  config.total_steps = 954_000  # 500 billion tokens
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
  config.schedule = {"name": "cosine", "learning_rate": 3e-4, "warmup_steps": 715, "end": 0.1}
  config.clip_norm = 1.0

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
