"""Train Llama 2 7B as a reward model (Touvron et al. 2023, arXiv:2307.09288, section 3.2.2).

  python -m t5x_like.train --config=configs/finetune/reward.py --workdir=runs/reward \\
      --config.init.workdir=runs/chat \\
      --config.task.source=jsonl:train=pairs/train.jsonl,validation=pairs/dev.jsonl

The run starts after supervised fine-tuning. Each line of the files has `prompt`, `chosen` and
`rejected`. A linear layer on the last token gives the reward; the head of the language model is not
used. Training takes one epoch in batches of 512 pairs. The rate rises to 1e-5 over 3 % of the steps
and follows a cosine to a tenth. The number of steps assumes half a million pairs. The paper's loss
has a margin that depends on the annotators' rating: set --config.task.margin=FIELD. Watch
`accuracy`, the share of pairs in the right order.

This recipe has not been run at full size.
"""

from t5x_like.config import defaults

LAPTOP = {"schedule.learning_rate": 1e-3}


def get_config():
  config = defaults()

  config.model = {
    "name": "llama",
    "variant": "llama2-7b",
    "vocab_size": 32_000,
    "dropout": 0.0,
    "remat": "full",
  }
  config.model.scores = 1
  config.task = {
    "name": "preferences",
    "source": "jsonl:train=data/preferences/train.jsonl,"
    "validation=data/preferences/validation.jsonl",
    "length": 1024,
    "too_long": "truncate",
  }
  config.objective = {"name": "reward"}

  config.batch_size = 512
  config.total_steps = 1_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-5, "weight_decay": 0.1}
  config.schedule = {"name": "cosine", "learning_rate": 1e-5, "warmup_steps": 30, "end": 0.1}
  config.clip_norm = 1.0
  config.mesh = {"data": 1, "fsdp": -1}

  config.eval_every = 100
  config.evals = {"loss": {"max_examples": 1_024}}
  config.checkpoint = {"every": 100, "keep_last": 1}
  return config
