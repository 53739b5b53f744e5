"""Pretrain GPT-1's baseline, an LSTM of 2,048 units (Radford et al. 2018, section 5).

  python -m t5x_like.train --config=configs/gpt/lstm.py --workdir=runs/gpt1_lstm

The recipe is `gpt1.py` with another model. Together they cover all rows of table 5. Every row is
fine-tuned by one command followed by the flags of the row:

  python -m t5x_like.evaluate --suite=glue --data=DATA --workdir=WORKDIR --output=OUTPUT

Expected (table 5):

                               flags                              average  CoLA SST-2  MNLI   RTE
  Transformer, auxiliary loss  --workdir=runs/gpt1                   74.7  45.4  91.3  81.8  56.0
  without pretraining          --workdir=runs/gpt1 --from_scratch    59.9  18.9  84.0  75.7  53.8
  without auxiliary loss       --workdir=runs/gpt1                   75.0  47.9  92.0  81.1  54.4
                               --config.objective.language_model=0.0
  LSTM, auxiliary loss         --workdir=runs/gpt1_lstm              69.1  30.3  90.5  73.7  54.6

`--config.init.layers=N` sets the number of transferred layers (figure 2, left), from 0, the
embeddings alone, to 12. This recipe has not been run at full size.
"""

from configs.gpt import gpt1

LAPTOP = {"schedule.learning_rate": 1e-3}


def get_config():
  config = gpt1.get_config()

  config.model = {"name": "lstm", "variant": "lstm-2048", "vocab_size": 40_576, "dropout": 0.1}
  return config
