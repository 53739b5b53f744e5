"""Pretrain GPT-2 of 124M parameters as a language model (Radford et al. 2019).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/gpt/gpt2_124m.py --workdir=runs/gpt2_124m

Batches have 512 windows of 1,024 tokens, as in the paper. It gives no other values: learning rate,
warm-up, decay, betas, weight decay and clipping follow GPT-3 at this size (Brown et al. 2020, table
2.1 and appendix B). 100,000 steps are 52 billion tokens.

Hardware: eight accelerators of 16 GB or more. It is planned on v5p 2x2x1: 0.65 s a step, 35 % MFU
(docs/plans.json).

Expected with the paper's corpus (table 3, first column): LAMBADA perplexity 35.13, WikiText-103
37.50. This recipe has not been run at full size.
"""

from t5x_like.config import defaults


def get_config():
  config = defaults()

  config.model = {
    "name": "gpt",
    "variant": "gpt2",
    "vocab_size": 50_304,  # 50,257 rounded up to a multiple of 128
    "dropout": 0.1,
  }
  config.task = {
    "name": "causal_lm",
    "store": "data/c4_en_eos",
    "length": 1024,
    "document_mask": False,
  }
  config.objective = {"name": "decoder"}

  config.batch_size = 512
  config.total_steps = 100_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
  # 375 M tokens
  config.schedule = {"name": "cosine", "learning_rate": 6e-4, "warmup_steps": 715, "end": 0.1}
  config.clip_norm = 1.0

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}, "samples": {}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
