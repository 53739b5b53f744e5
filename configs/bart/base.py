"""BART base: text infilling and permuted sentences, restored by an encoder-decoder.

Source: Lewis et al. 2020, section 5.1.

  python -m tools.prepare_data --source=text:web/*.txt --vocabulary=VOCABULARY --output=data/web
  python -m t5x_like.train --config=configs/bart/base.py --workdir=runs/bart_base

30% of the tokens are in spans of Poisson(3) tokens, each replaced by one mask, and all sentences
are permuted; 500,000 steps of 8,000 documents, dropout 0.1 (section 5.1, on the large size, which
turns dropout off in the last tenth of the steps; here it stays on). For the optimizer the paper
refers to RoBERTa; here it is AdamW as for RoBERTa's base size, which decays biases and gains too.
Expected of the large size after fine-tuning: SQuAD 1.1 F1 94.6, CNN/DailyMail ROUGE-1 44.16. Not
run at full size here.
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
