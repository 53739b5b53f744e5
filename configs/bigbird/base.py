"""Pretrain BigBird base on masked words in rows of 4,096 tokens (Zaheer et al. 2020, appendix E.1).

  python -m tools.prepare_data --source=text:web/*.txt --vocabulary=VOCABULARY --append_eos \\
      --output=data/web
  python -m t5x_like.train --config=configs/bigbird/base.py --workdir=runs/bigbird_base

Attention is block-sparse, with blocks of 64 tokens and three random blocks. Batches have 256 rows,
and short documents are joined. AdamW's rate rises to 1e-4 over 10,000 steps and falls linearly;
dropout is 0.1 (table 8). Masks of whole words, b2 of 0.999 and weight decay of 0.01 are from the
authors' code.

Hardware: 64 accelerators of 16 GB or more.

This recipe has not been run at full size.

Differences: the paper starts from RoBERTa's published weights. This recipe starts from scratch and
trains for RoBERTa's 500,000 steps.
"""

from configs.roberta import base

LAPTOP = {"model.design.core": {"name": "bigbird", "block": 4, "random_blocks": 1}}


def get_config():
  config = base.get_config()

  config.model.name = "bigbird"
  config.model.variant = "bigbird-roberta-base"
  config.model.vocab_size = 50_432  # 50,358 rounded up to a multiple of 128
  config.task.length = 4096
  config.task.masking = "words"
  config.task.segment_ids = False  # the core takes none; a row of full sentences is one sequence

  config.batch_size = 256
  config.optimizer.b2 = 0.999
  config.optimizer.undecayed = "vectors"
  config.schedule = {
    "name": "linear",
    "learning_rate": 1e-4,
    "warmup_steps": 10_000,
    "decay": "from_start",
  }
  return config
