"""Pretrain RoBERTa with three sizes of batches (Liu et al. 2019, section 4.3, table 3).

  python -m tools.prepare_data --source=text:books_and_wikipedia/*.txt --vocabulary=VOCABULARY \\
      --append_eos --output=data/books_wiki_eos
  python -m t5x_like.train --config=configs/roberta/batches.py:batch_2k \\
      --workdir=runs/roberta_batch_2k

The recipe covers all rows of table 3: RoBERTa base on BERT's text. Each row reads as many sequences
as 1,000,000 steps of 256 and has its own peak rate.

Expected perplexity on held-out text (the exponential of `eval/loss/loss`) and dev scores:

                     steps  rate  perplexity  MNLI-m  SST-2
  batch_256      1,000,000  1e-4        3.99    84.7   92.7
  batch_2k         125,000  7e-4        3.68    85.2   92.9
  batch_8k          31,250  1e-3        3.77    84.6   92.8

This recipe has not been run at full size.

Differences: the paper does not give the warm-ups; here each row warms up over as many sequences as
BERT.
"""

from typing import Literal

from configs.roberta import base

_ROWS = {"batch_256": (256, 1e-4), "batch_2k": (2048, 7e-4), "batch_8k": (8192, 1e-3)}
_SEQUENCES = 256 * 1_000_000
_WARMUP = 256 * 10_000


def get_config(batch: Literal[tuple(_ROWS)] = "batch_256"):
  config = base.get_config()
  rows, learning_rate = _ROWS[batch]

  config.task.store = "data/books_wiki_eos"
  config.batch_size = rows
  config.total_steps = _SEQUENCES // rows
  config.schedule = {
    "name": "linear",
    "learning_rate": learning_rate,
    "warmup_steps": _WARMUP // rows,
  }
  config.eval_every = config.total_steps // 50
  config.checkpoint = {"every": config.eval_every, "keep_last": 3}
  return config
