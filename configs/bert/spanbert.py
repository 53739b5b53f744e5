"""SpanBERT: masked spans and their boundaries, in single sequences.

Source: Joshi et al. 2020, section 4.3.

  python -m t5x_like.train --config=configs/bert/spanbert.py --workdir=runs/spanbert_base

Length 512 throughout, each sequence of one document (short ones share a row without seeing each
other), batches of 256 rows, 2,400,000 steps; AdamW to 1e-4 over 10,000 steps and linearly down, eps
1e-8, decay 0.1, dropout 0.1; clipping at 1.0 as in the authors' command (whose decay is 0.01), and
decay of biases and gains too as in their code. The paper's tables are for `:large`: 15 days on 32
V100s, SQuAD 1.1 test F1 94.6. Not run at full size here.
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
  config.schedule.decay = "after_warmup"  # fairseq's
  config.optimizer.eps = 1e-8
  config.optimizer.weight_decay = 0.1
  config.optimizer.undecayed = "nothing"
  return config
