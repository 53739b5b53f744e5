"""Pretrain OPT 125M as a language model (Zhang et al. 2022, arXiv:2205.01068, section 2).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/opt/125m.py --workdir=runs/opt_125m

Batches have 256 windows of 2,048 tokens (0.5 million). AdamW's rate rises to 6e-4 over 375 million
tokens and falls linearly to a tenth over 300 billion. The weight decay of 0.1 applies to all
parameters, biases and gains included, as in metaseq's code. Dropout is 0.1 but for embeddings, and
gradients are clipped at 1.0 (table 1).

Hardware: eight accelerators or more. This recipe has not been run at full size.

Differences: the paper's corpus joins RoBERTa's corpus and the Pile with Reddit's.
"""

from t5x_like.config import defaults


def get_config():
  config = defaults()

  config.model = {"name": "opt", "variant": "125m", "vocab_size": 50_272, "dropout": 0.1}
  config.task = {
    "name": "causal_lm",
    "store": "data/c4_en_eos",
    "length": 2048,
    "document_mask": False,
  }
  config.objective = {"name": "decoder"}

  config.batch_size = 256
  config.total_steps = 572_000  # 300 billion tokens
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
  config.optimizer.undecayed = "nothing"
  config.schedule = {"name": "linear", "learning_rate": 6e-4, "warmup_steps": 715, "end": 0.1}
  config.clip_norm = 1.0

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
