"""A first run: a small T5.1.1 learns to fill in technical English, in a few minutes on two CPU cores.

  make quickstart

The corpus is the docstrings of the installed Python packages (about 7M tokens of a 4,096-piece vocabulary).
"""

from configs.t5 import base


def get_config():
  config = base.get_config()

  config.model.variant = "t5-v1_1-micro"
  config.model.vocab_size = 4096
  config.task.store = "data/docstrings"
  config.task.inputs_length, config.task.targets_length = 64, None
  config.task.mean_noise_span_length = 2.0

  config.batch_size = 32
  config.total_steps = 1_000
  config.optimizer = {"name": "adamw"}
  config.schedule = {"name": "linear", "learning_rate": 3e-3, "warmup_steps": 50}

  config.eval_every = 250
  config.evals = {"loss": {"max_examples": 512}, "span_infilling": {"max_examples": 256}}
  config.checkpoint = {"every": 250, "keep_last": 2}
  return config
