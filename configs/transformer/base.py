"""Train Transformer base to translate (Vaswani et al. 2017, sections 5 and 6.1).

  python -m tools.train_vocabulary --source=lines:train=corpus/train.* --kind=bpe --size=37000 \\
      --extra_ids=0 --output=vocabulary
  python -m t5x_like.train --config=configs/transformer/base.py --workdir=runs/transformer_base \\
      --config.task.source='parallel:corpus/{split}.{field}.gz' \\
      --config.task.vocabulary=vocabulary

The corpus has one file per split and language with one sentence per line: `corpus/train.en.gz`,
`corpus/validation.de.gz`. For other languages set `--config.task.inputs={cs}
--config.task.targets={fr}`. Sentences are packed into rows of 256; 96 rows are the paper's batch of
25,000 source and target tokens.

Hardware: 100,000 steps took the authors 12 hours on 8 P100s.

Expected on newstest2014 after training on WMT 2014 English-German (table 2): BLEU 27.3 with 4 beams
and a length penalty of 0.6. This BLEU is of Moses's tokens with compounds split at hyphens
(get_ende_bleu.sh of Tensor2Tensor), which sacrebleu does not do. This recipe has not been run at
full size.

Differences: the paper averages the last 5 checkpoints; training here does not.
"""

from t5x_like.config import defaults

WIDTH = 512
WARMUP = 4_000


def get_config():
  config = defaults()

  # The paper's 37,000 pieces, rounded up to a multiple of 128.
  config.model = {
    "name": "transformer",
    "variant": "transformer-base",
    "vocab_size": 37_120,
    "dropout": 0.1,
  }
  config.task = {
    "name": "text_to_text",
    "source": "parallel:corpus/{split}.{field}.gz",
    "vocabulary": "vocabulary",
    "inputs": "{en}",
    "targets": "{de}",
    "inputs_length": 256,
    "targets_length": 256,
    "too_long": "skip",
    "cache": "data/prepared",
  }
  config.objective = {"name": "encoder_decoder", "label_smoothing": 0.1}

  config.batch_size = 96
  config.total_steps = 100_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.98, "eps": 1e-9, "weight_decay": 0.0}
  config.schedule = {
    "name": "warmup_rsqrt",
    "learning_rate": (WIDTH * WARMUP) ** -0.5,
    "warmup_steps": WARMUP,
  }

  config.checkpoint = {"every": 1_000, "keep_last": 5}
  return config
