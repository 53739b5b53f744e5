"""Pretrain BERT on masked tokens and next sentences (Devlin et al. 2019, sections 3.1 and A.2).

  python -m tools.prepare_data --source=text:books_and_wikipedia/*.txt --vocabulary=VOCABULARY \\
      --output=data/books_wiki
  python -m t5x_like.train --config=configs/bert/base.py --workdir=runs/bert_base

One run has two phases: 900,000 steps at length 128, then 100,000 steps at length 512, in batches of
256 rows. Adam's rate rises to 1e-4 over 10,000 steps and falls linearly to 0. The weight decay of
0.01 spares biases and gains. Dropout is 0.1. `:large` is BERT large, `:static` repeats ten masks
per example as in the original data, and `:whole_words` masks whole words.

Hardware: the paper took four days, on 16 TPU chips for base and on 64 for large. Large is planned
on v5e 4x4: 0.20 s a step, 42 % MFU (docs/plans.json).

Expected after fine-tuning (table 1, base and large): GLUE 79.6 and 82.1, MNLI 84.6 and 86.7. This
recipe has not been run at full size.

Differences: pairs of short segments share a row without seeing each other (Krell et al. 2021). The
authors' code leaves out Adam's bias corrections of the moments, as does the code of ALBERT,
BigBird, ELECTRA and XLNet. They matter only early in the warm-up.
"""

from typing import Literal

from t5x_like.config import defaults

Size = Literal["base", "large"]


def get_config(size: Size = "base", static: bool = False, whole_words: bool = False):
  config = defaults()

  config.model = {
    "name": "bert",
    "variant": f"bert-{size}-uncased",
    "head": "pretraining",
    "dropout": 0.1,
  }
  if size == "large":  # 16 rows of 512 on a chip of 16 GB
    config.model.remat = "minimal"
    config.mesh = {"fsdp": -1}
  config.model.vocab_size = 30_720  # at least the vocabulary's ids; the paper's has 30,522
  config.task = {
    "name": "mlm",
    "store": "data/books_wiki",
    "length": 512,
    "input_format": "segment_pair",
    "masking": "words" if whole_words else "tokens",
  }
  if static:
    config.task.static_copies = 10
  config.objective = {"name": "mlm"}
  config.batch_size = 256
  config.total_steps = 1_000_000
  config.phases = {"short": {"until": 900_000, "task": {"length": 128}}}
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.999, "eps": 1e-6, "weight_decay": 0.01}
  config.schedule = {
    "name": "linear",
    "learning_rate": 1e-4,
    "warmup_steps": 10_000,
    "decay": "from_start",
  }
  config.clip_norm = 1.0
  config.eval_every = 10_000
  config.evals = {"loss": {"max_examples": 16_384}, "samples": {}}
  config.checkpoint = {"every": 10_000, "keep_last": 3, "keep_every": 100_000}
  return config
