"""Train a small T5 with rotary positions to restore gaps in technical English within minutes.

  make quickstart

It runs on two CPU cores. The corpus is the docstrings of the installed Python packages, about 7.5M
tokens of a vocabulary of 2,048 pieces. Rows are short so that each has few sentinels: the decoder
must find its sentinel before it can use the encoder. With rotary positions the model learned this
after some 400 steps, with T5's biases after 700, and with rows of 64 tokens not within 800. A T5 of
`transformers` has the biases: --config.model.design.position=relative_bias, with 2,500 steps.

Expected: a validation loss of 2.49, where the entropy of unigrams is 4.42, and 6.5 % of the spans
restored exactly, where the commonest span would restore 2.6 %.
"""

from configs.t5 import base


def get_config():
  config = base.get_config()

  config.model.variant = "t5-v1_1-micro"
  config.model.vocab_size = 2048
  config.model.design = {"position": "rope"}
  config.task.store = "data/docstrings"
  config.task.inputs_length = 32
  config.task.targets_length = None
  config.task.mean_noise_span_length = 1.5

  config.batch_size = 64
  config.total_steps = 1_500
  config.schedule = {"name": "linear", "learning_rate": 0.04, "warmup_steps": 30}

  config.eval_every = 500
  config.evals = {"loss": {"max_examples": 512}, "span_infilling": {"max_examples": 256}}
  config.checkpoint = {"every": 50, "minutes": 0.1, "keep_last": 2}
  return config
