"""Pretrain BART base by text infilling and permuted sentences (Lewis et al. 2020, section 5.1).

  python -m tools.prepare_data --source=text:web/*.txt --vocabulary=VOCABULARY --output=data/web
  python -m t5x_like.train --config=configs/bart/base.py --workdir=runs/bart_base

The encoder-decoder restores documents. Spans of Poisson(3) tokens, 30 % of all tokens, are each
replaced by one mask, and all sentences are permuted. Training takes 500,000 steps of 8,000
documents with dropout of 0.1. Section 5.1 gives these values for the large size.

Expected of the large size after fine-tuning: SQuAD 1.1 F1 94.6, CNN/DailyMail ROUGE-1 44.16. This
recipe has not been run at full size.

Differences: the paper turns dropout off in the last tenth of the steps; here it stays on. For the
optimizer the paper refers to RoBERTa. Here it is AdamW with the values of RoBERTa's base size,
which decays biases and gains too.
"""

from t5x_like.config import defaults

LAPTOP = {"model.design": {"init_stddev": 0.06, "norm_position": "pre"}}


def get_config():
  config = defaults()

  config.model = {"name": "bart", "variant": "bart-base", "vocab_size": 50_304, "dropout": 0.1}
  config.task = {
    "name": "bart",
    "store": "data/web",
    "length": 512,
    "infill": 0.3,
    "permute_sentences": True,
  }
  config.objective = {"name": "encoder_decoder"}

  config.batch_size = 8000
  config.total_steps = 500_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.98, "eps": 1e-6, "weight_decay": 0.01}
  config.optimizer.undecayed = "nothing"
  config.schedule = {"name": "linear", "learning_rate": 6e-4, "warmup_steps": 24_000}

  config.eval_every = 10_000
  config.evals = {"loss": {"max_examples": 16_384}}
  config.checkpoint = {"every": 10_000, "keep_last": 3, "keep_every": 100_000}
  return config
