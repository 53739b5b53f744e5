"""Pretrain BERT base from left to right (Devlin et al. 2019, section 5.1, "LTR & No NSP").

  python -m tools.prepare_data --source=text:books_and_wikipedia/*.txt --vocabulary=VOCABULARY \\
      --append_eos --output=data/books_wiki_eos
  python -m t5x_like.train --config=configs/bert/left_to_right.py \\
      --workdir=runs/bert_left_to_right

The model is a causal language model with the size, blocks, text and schedule of BERT base. EOS
follows every document, and every token is a target. `evaluate --suite=glue` fine-tunes it as GPT-1
is fine-tuned. For SQuAD it is fine-tuned with the head of an encoder. The row "+ BiLSTM" puts two
layers of LSTM below this head:

  python -m t5x_like.train --config=configs/finetune/encoder.py:squad/squad,official \\
      --workdir=runs/ltr_squad --config.init.workdir=runs/bert_left_to_right \\
      --config.task.data_dir=DATA '--config.model.head={"name": "bilstm", "head": "spans"}'

Expected on the dev sets (table 5):

                  MNLI-m  QNLI  MRPC  SST-2  SQuAD F1
  LTR & No NSP      82.1  84.3  77.5   92.1      77.8
  + BiLSTM          82.1  84.1  75.7   91.6      84.9

This recipe has not been run at full size.
"""

from configs.bert import base

LAPTOP = {  # as in configs/gpt/gpt1.py
  "schedule.learning_rate": 1e-3,
  "model.design.norm_position": "post",
  "model.design.residual_init": False,
  "model.design.init_stddev": 0.06,
}


def get_config():
  config = base.get_config()

  config.model = {
    "name": "gpt",
    "variant": "gpt1",
    "vocab_size": 30_720,
    "dropout": 0.1,
    # BERT's differences from GPT-1
    "design": {"activation": "gelu", "embed_norm": True, "norm_epsilon": 1e-12},
  }
  config.task = {"name": "causal_lm", "store": "data/books_wiki_eos", "length": 512}
  config.objective = {"name": "decoder"}
  return config
