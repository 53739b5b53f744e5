"""BERT, pretrained with masked tokens and next sentences in two phases.

Source: Devlin et al. 2019, section 3.1, A.2.

  python -m tools.prepare_data --source=text:books_and_wikipedia/*.txt \\
      --vocabulary=VOCABULARY --output=data/books_wiki
  python -m t5x_like.train --config=configs/bert/base.py --workdir=runs/bert_base

Batches of 256 rows, 900,000 steps at length 128 and then 100,000 at 512, in one run (`phases`).
Pairs of short segments share a row without seeing each other (Krell et al. 2021). Adam up to 1e-4
over 10,000 steps and linearly down to 0, decay 0.01 of all but biases and gains, dropout 0.1. The
authors' code, and ALBERT's, BigBird's, ELECTRA's and XLNet's after it, leaves out Adam's
corrections for the bias of moments, which matter early in the warm-up alone. `:large` is BERT
large; `:static` repeats ten masks per example, as in the original data; `:whole_words` masks whole
words. The paper took four days on 16 TPU chips for base, on 64 for large. Expected after
fine-tuning (table 1, base and large): GLUE 79.6 and 82.1, MNLI 84.6 and 86.7. Not run at full size
here.

Large is planned on v5e 4x4: 0.20 s a step, 42 % MFU (docs/plans.json).
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
