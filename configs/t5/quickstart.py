"""A first run: a 10M-parameter T5.1.1 learns to fill in technical English, in a few minutes on two CPU cores.

  make quickstart

The corpus is the docstrings of the installed Python packages (about 6M tokens of an 8,192-piece vocabulary). Expected:
validation loss clearly below the unigram entropy of the targets within the first hundred steps.
"""

from configs.t5 import base


def get_config():
  config = base.get_config()

  config.model.variant = "t5-v1_1-tiny"
  config.model.vocab_size = 8192
  config.task.store = "data/docstrings"
  config.task.inputs_length, config.task.targets_length = 128, 29

  config.batch_size = 32
  config.total_steps = 300
  config.schedule = {"name": "rsqrt", "warmup_steps": 1_000}

  config.eval_every = 100
  config.evals = {"loss": {"max_examples": 512}, "span_infilling": {"max_examples": 32}}
  config.checkpoint = {"every": 100, "keep_last": 2}
  return config
