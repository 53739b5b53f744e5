"""Pretrain SpanBERT on masked spans and their boundaries (Joshi et al. 2020, section 4.3).

  python -m t5x_like.train --config=configs/bert/spanbert.py --workdir=runs/spanbert_base

Training takes 2,400,000 steps of 256 rows of 512 tokens. Each sequence comes from one document.
AdamW's rate rises to 1e-4 over 10,000 steps and falls linearly; eps is 1e-8, weight decay 0.1 and
dropout 0.1. As in the authors' code, gradients are clipped at 1.0 and biases and gains decay too.
The authors' command has a weight decay of 0.01.

Hardware: `:large`, the size of the paper's tables, took the authors 15 days on 32 V100s.

Expected of `:large`: SQuAD 1.1 test F1 94.6. This recipe has not been run at full size.

Differences: short sequences share a row without seeing each other.
"""

from configs.bert import base


def get_config(size: base.Size = "base"):
  config = base.get_config()

  config.model.variant = f"bert-{size}-cased"
  config.model.head = "span_boundary"
  config.task.input_format = "doc_sentences"
  config.task.masking = "spans"
  config.objective = {"name": "span_boundary"}

  config.total_steps = 2_400_000
  config.phases = {}
  config.schedule.decay = "after_warmup"  # as in fairseq
  config.optimizer.eps = 1e-8
  config.optimizer.weight_decay = 0.1
  config.optimizer.undecayed = "nothing"
  return config
