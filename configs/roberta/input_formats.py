"""Pretrain BERT base with each of RoBERTa's input formats (Liu et al. 2019, section 4.2, table 2).

  python -m t5x_like.train --config=configs/roberta/input_formats.py:doc_sentences \\
      --workdir=runs/doc_sentences

The recipe is `configs/bert/base.py` at length 512. The formats of pairs also learn next sentences.
`data/tasks/mlm.py` describes the formats.

Expected dev scores (the first two are F1 of SQuAD 1.1 and 2.0):

  segment_pair    90.4 78.7  MNLI-m 84.0  SST-2 92.9  RACE 64.2
  sentence_pair   88.7 76.2         82.9        92.1       63.0
  full_sentences  90.4 79.1         84.7        92.5       64.8
  doc_sentences   90.6 79.7         84.7        92.7       65.6

This recipe has not been run at full size.

Differences: the paper puts more rows into a batch where they are short. Here a batch has 256 rows.
Several short sequences share a row of `segment_pair` and `doc_sentences`, so only `sentence_pair`
sees fewer tokens.
"""

from typing import Literal

from configs.bert import base

_FORMATS = ("segment_pair", "sentence_pair", "full_sentences", "doc_sentences")


def get_config(input_format: Literal[_FORMATS] = "segment_pair"):
  config = base.get_config()

  config.schedule.decay = "after_warmup"  # as in fairseq
  config.phases = {}
  config.task.input_format = input_format
  config.model.head = "pretraining" if input_format.endswith("_pair") else "mlm"
  return config
