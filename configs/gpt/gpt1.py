"""GPT-1 (117M parameters), pretrained as a language model (Radford et al. 2018, section 4.1).

  python -m tools.prepare_data --source=text:books/*.txt --vocabulary=VOCABULARY --output=data/books
  python -m t5x_like.train --config=configs/gpt/gpt1.py --workdir=runs/gpt1

Windows of 512 tokens, batches of 64, Adam up to 2.5e-4 over 2,000 steps and down to 0 by a half cosine, decay 0.01 of
what is not bias or gain, dropout 0.1. The paper's 100 epochs of BooksCorpus are about 3,000,000 steps, here rounded so;
set `total_steps` for another corpus. Eight accelerators. `:tiny` learns within minutes on a laptop, `:debug` takes two
steps without data. The paper reports a perplexity of 18.4 on its corpus. It has not been run at full size here.
"""

from configs.gpt import gpt2_124m
from t5x_like.config import words
from t5x_like.laptop import FORMS, laptop

# GPT-1's blocks on the tiny size of GPT-2. So narrow, post-norm blocks of deviation 0.02 stay at the unigram entropy.
TINY = {
  "norm_position": "post",
  "residual_init": False,
  "position": {"name": "learned", "length": 512},
  "init_stddev": 0.06,
}


def get_config(arg: str = ""):
  options = words(arg, FORMS)
  config = gpt2_124m.get_config()

  config.model.variant = "gpt1"
  config.model.vocab_size = 40576  # 40,478 rounded up to a multiple of 128
  config.task = {"name": "causal_lm", "store": "data/books", "length": 512, "document_mask": False}

  config.batch_size = 64
  config.total_steps = 3_000_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
  config.schedule = {"name": "cosine", "learning_rate": 2.5e-4, "warmup_steps": 2_000, "end": 0.0}
  config.clip_norm = 1.0

  return laptop(config, options, "gpt2-tiny", learning_rate=1e-3, design=TINY)
