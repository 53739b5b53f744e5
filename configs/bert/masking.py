"""Pretrain BERT with other replacements of masked tokens (Devlin et al. 2019, appendix C.2).

  python -m t5x_like.train --config=configs/bert/masking.py:mask_100 --workdir=runs/bert_mask_100

The recipe covers all six rows of table 8 and is otherwise `base.py`. An argument gives, in percent,
how many of the predicted tokens become the mask, stay the same or become a random token. Fine-tune
each model with `evaluate --suite=glue --tasks=mnli` and `--suite=tags --tasks=conll`.

Expected on the dev sets: MNLI, CoNLL 2003 by fine-tuning, and CoNLL 2003 by features:

  mask_80_same_10_random_10  84.2 95.4 94.9      mask_80_same_20     84.4 95.2 94.7
  mask_100                   84.3 94.9 94.0      same_20_random_80   83.7 94.8 94.6
  mask_80_random_20          84.1 95.2 94.6      random_100          83.6 94.9 94.6

This recipe has not been run at full size.
"""

from typing import Literal

from configs.bert import base

# The shares of predicted tokens that become the mask and a random token; others stay the same.
_SHARES = {
  "mask_80_same_10_random_10": (0.8, 0.1),
  "mask_100": (1.0, 0.0),
  "mask_80_random_20": (0.8, 0.2),
  "mask_80_same_20": (0.8, 0.0),
  "same_20_random_80": (0.0, 0.8),
  "random_100": (0.0, 1.0),
}


def get_config(shares: Literal[tuple(_SHARES)] = "mask_80_same_10_random_10"):
  config = base.get_config()

  config.task.mask_share, config.task.random_share = _SHARES[shares]
  return config
