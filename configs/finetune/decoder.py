"""Fine-tune GPT on classification and multiple choice (Radford et al. 2018, sections 3.2 to 4.1).

  python -m t5x_like.train --config=configs/finetune/decoder.py:glue/cola,official \\
      --workdir=runs/cola --config.init.workdir=runs/gpt1 --config.task.data_dir=glue_data

The argument is a task of a suite. With `official`, the task is read from its official files in
`task.data_dir`, otherwise from TensorFlow Datasets. `init.workdir` is a pretraining run, or a
workdir written by `tools.convert_hf`; without it, the model is trained from scratch.

A row is a start token, the texts with a delimiter token between them, and an extract token. A
linear layer computes the scores from the state of the extract token. Pairs without a meaningful
order are read in both orders, and each option of a multiple choice has its own row. The language-
modelling loss has a weight of one half. Training takes 3 epochs in batches of 32. The learning rate
is 6.25e-5 after a warm-up over 0.2 % of the steps. The best checkpoint on the dev set is kept.

Expected scores of GPT-1 on the test sets (tables 2 to 4): SST-2 91.3, CoLA 45.4, RTE 56.0, RACE
59.0. This recipe has not been run at full size.

Differences: the language-modelling loss is the mean over all tokens of the batch. In the authors'
code it is the mean over rows of each row's mean.
"""

from typing import Literal

from t5x_like.benchmarks import suites
from t5x_like.config import defaults

_TASKS = suites.benchmarks_for("decoder")
LAPTOP = {"schedule.learning_rate": 3e-4, "schedule.warmup_steps": 0.1}


def get_config(task: Literal[tuple(_TASKS)] = "glue/sst2", official: bool = False):
  config = defaults()
  config.model = {"name": "gpt", "variant": "gpt1", "dropout": 0.1, "vocab_size": 40_576}
  benchmark = _TASKS[task]
  suites.apply_form(config, benchmark, benchmark.decoder, official)

  config.batch_size = 32
  config.total_steps = max(1, 3 * benchmark.examples // 32)
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
  config.schedule = {"name": "linear", "learning_rate": 6.25e-5, "warmup_steps": 0.002}
  config.schedule.decay = "from_start_times_warmup"
  config.clip_norm = 1.0
  config.eval_every = None
  config.checkpoint = {"every": None, "keep_last": 1}
  return config
