"""Train taggers of named entities on BERT's frozen features (Devlin et al. 2019, section 5.3).

  python -m t5x_like.evaluate --workdir=runs/bert_base --suite=tags --tasks=conll --data=DATA \\
      --config=configs/bert/features.py:concat_last_four \\
      --output=runs/bert_base/suites/concat_last_four
  python -m t5x_like.train --config=configs/bert/features.py --workdir=runs/conll \\
      --config.task.data_dir=DATA --config.init.workdir=runs/bert_base

The recipe covers all feature-based rows of table 7. The encoder is frozen and has no dropout. A
bidirectional LSTM of two layers, in each direction as wide as the encoder, reads its hidden states.
The tag of a word is read at its first token. An argument selects the hidden states.

Expected on the dev set of CoNLL 2003, F1 of base (fine-tuning the whole model has 96.4):

  embeddings        91.0    last                    94.9    concat_last_four  96.1
  second_to_last    95.6    weighted_sum_last_four  95.9    weighted_sum_all  95.5

This recipe has not been run at full size.

Differences: the paper gives no schedule for the LSTM. Here it trains for 10 epochs by Adam at 1e-3,
with dropout of 0.1 before every layer. The paper uses the cased model and reads the document around
a sentence; here a row is one sentence.
"""

from typing import Literal

from configs.finetune import encoder
from t5x_like.benchmarks.suites import tags

# For each argument: the hidden states (0 is the embeddings, -1 the last layer's output), and how
# they are combined.
_STATES = {
  "embeddings": ([0], "concatenate"),
  "second_to_last": ([-2], "concatenate"),
  "last": ([-1], "concatenate"),
  "weighted_sum_last_four": ([-4, -3, -2, -1], "weighted_sum"),
  "concat_last_four": ([-4, -3, -2, -1], "concatenate"),
  "weighted_sum_all": (list(range(-12, 0)), "weighted_sum"),
}
_TASKS = {f"tags/{name}": task for name, task in tags.SUITE.tasks.items()}
LAPTOP = {"model.head.states": [-2, -1]}  # the tiny model has two layers


def get_config(
  task: Literal[tuple(_TASKS)] = "tags/conll", states: Literal[tuple(_STATES)] = "last"
):
  config = encoder.get_config(task, official=True)
  numbers, combine = _STATES[states]

  head = config.model.head.to_dict()
  config.model.head = {
    "name": "bilstm",
    "head": head,
    "states": numbers,
    "combine": combine,
    "dropout": 0.1,
  }
  config.model.dropout = 0.0
  config.tuning = {"name": "head"}

  config.total_steps = 10 * _TASKS[task].examples // 32
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
  config.schedule = {"name": "linear", "learning_rate": 1e-3, "warmup_steps": 0.1}
  config.eval_every = config.checkpoint.every = None
  return config
