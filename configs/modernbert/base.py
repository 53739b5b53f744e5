"""ModernBERT base: masked language modelling at 30% (Warner et al. 2024, arXiv:2412.13663).

  python -m tools.prepare_data --source=text:web/*.txt --vocabulary=VOCABULARY --append_eos --output=data/web
  python -m t5x_like.train --config=configs/modernbert/base.py --workdir=runs/modernbert_base

The first of the paper's phases (section 2.2): rows of 1,024 tokens in batches of 4,608, rates up to 8e-4, decay 1e-5,
30% of the tokens predicted. There the optimizer is StableAdamW and the rate stays up to the end; here they are AdamW
and a linear descent. 360,000 steps are 1.7 trillion tokens. 64 accelerators of 40 GB or more. `:tiny` learns within
minutes on a laptop, `:debug` takes two steps without data. It has not been run at full size here.
"""

from configs.roberta import base
from t5x_like.config import words
from t5x_like.laptop import FORMS, laptop


def get_config(arg: str = ""):
  options = words(arg, FORMS)
  config = base.get_config()
  config.model.name, config.model.variant = "modernbert", "modernbert-base"
  config.model.vocab_size = 50_432
  config.model.dropout = 0.0
  del config.model.tokens  # its own; rows are told apart by segments
  config.task.length, config.task.rate = 1024, 0.3
  config.batch_size = 4608
  config.total_steps = 360_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.98, "eps": 1e-6, "weight_decay": 1e-5}
  config.schedule = {"name": "linear", "learning_rate": 8e-4, "warmup_steps": 636}  # 3 * 10^9 tokens

  return laptop(config, options, "modernbert-tiny", batch_size=64, design={"init_stddev": 0.06})
