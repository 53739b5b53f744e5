"""BERT without next-sentence prediction, on full sentences: the ablation "No NSP".

Source: Devlin et al. 2019, section 5.1.

  python -m t5x_like.train --config=configs/bert/base_no_nsp.py --workdir=runs/bert_base_no_nsp

It equals `base.py` but for the objective, which is the prediction of masked tokens alone. Rows are
full sentences across documents, which RoBERTa found to work as well without next-sentence
prediction (Liu et al. 2019, table 2). Expected (Devlin et al., table 5, base): MNLI 83.9, SQuAD F1
87.9 on the dev sets. Not run at full size here.
"""

from configs.bert import base


def get_config(size: base.Size = "base", static: bool = False, whole_words: bool = False):
  config = base.get_config(size, static, whole_words)

  config.model.head = "mlm"
  config.task.input_format = "full_sentences"
  return config
