"""BERT base read from left to right: the ablation "LTR & No NSP" (Devlin et al. 2019, section 5.1).

  python -m t5x_like.train --config=configs/bert/left_to_right.py --workdir=runs/bert_left_to_right

A causal language model of BERT's size and blocks, on the data and with the schedule of configs/bert/base.py; each token
is a target. Expected (table 5, base): MNLI 82.1, SQuAD F1 77.8 on the dev sets. It has not been run at full size here.
"""

from configs.bert import base
from t5x_like.config import words
from t5x_like.laptop import FORMS, laptop

BLOCKS = {"activation": "gelu", "embed_norm": True, "norm_epsilon": 1e-12}  # GPT-1's with what BERT's have otherwise


def get_config(arg: str = ""):
  options = words(arg, FORMS)
  config = base.get_config()
  config.model = {
    "name": "gpt",
    "variant": "gpt1",
    "vocab_size": 30720,
    "dropout": 0.1,
    "dtype": "auto",
    "layers": "auto",
    "remat": "none",
    "design": BLOCKS,
  }
  config.task = {"name": "causal_lm", "store": "data/books_wiki", "length": 512}
  config.objective = {"name": "decoder"}
  tiny = BLOCKS | {"norm_position": "post", "residual_init": False, "init_stddev": 0.06}  # as configs/gpt/gpt1.py
  return laptop(config, options, "gpt2-tiny", learning_rate=1e-3, design=tiny)
