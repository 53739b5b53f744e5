"""Pretrain BERT without next sentences: the ablation "No NSP" (Devlin et al. 2019, section 5.1).

  python -m t5x_like.train --config=configs/bert/base_no_nsp.py --workdir=runs/bert_base_no_nsp

The recipe is `base.py` with one objective, the prediction of masked tokens.

Expected on the dev sets (table 5, base): MNLI 83.9, SQuAD F1 87.9. This recipe has not been run at
full size.

Differences: rows are full sentences across documents. RoBERTa found that they work as well without
next-sentence prediction (Liu et al. 2019, table 2).
"""

from configs.bert import base


def get_config(size: base.Size = "base", static: bool = False, whole_words: bool = False):
  config = base.get_config(size, static, whole_words)

  config.model.head = "mlm"
  config.task.input_format = "full_sentences"
  return config
