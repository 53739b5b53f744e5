"""BigBird base: masked language modelling of 4,096 tokens by block-sparse attention.

Source: Zaheer et al. 2020.

  python -m tools.prepare_data --source=text:web/*.txt --vocabulary=VOCABULARY --append_eos \\
      --output=data/web
  python -m t5x_like.train --config=configs/bigbird/base.py --workdir=runs/bigbird_base

Batches of 256 rows of 4,096, short documents joined, AdamW up to 1e-4 over 10,000 steps and
linearly down, dropout 0.1, blocks of 64 tokens and three random ones (appendix E.1, table 8); masks
of whole words, b2 of 0.999 and decay of 0.01 are the authors' code's. The paper starts from
RoBERTa's published weights; this starts from scratch, for RoBERTa's 500,000 steps. 64 accelerators
of 16 GB or more. Not run at full size here.
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
