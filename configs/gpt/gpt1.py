"""Pretrain GPT-1 (117M parameters) as a language model (Radford et al. 2018, section 4.1).

  python -m tools.prepare_data --source=text:books/*.txt --vocabulary=VOCABULARY --append_eos \\
      --output=data/books_eos
  python -m t5x_like.train --config=configs/gpt/gpt1.py --workdir=runs/gpt1

Batches have 64 windows of 512 tokens. Adam's rate rises to 2.5e-4 over 2,000 steps and falls to 0
on a half cosine. Weight decay is 0.01, except for biases and gains, and dropout is 0.1. The paper's
100 epochs of BooksCorpus are about 3,000,000 steps; set `total_steps` for another corpus.

Hardware: eight accelerators.

Expected: a perplexity of 18.4 on the paper's corpus. This recipe has not been run at full size.
"""

from t5x_like.config import defaults

# `:tiny` takes GPT-2's smallest sizes; these changes make its blocks GPT-1's. At that width, with
# post-norm and GPT-1's initial deviation of 0.02, a model learns only the frequencies of tokens.
LAPTOP = {
  "schedule.learning_rate": 1e-3,
  "model.design": {
    "norm_position": "post",
    "residual_init": False,
    "position": {"name": "learned", "length": 512},
    "init_stddev": 0.06,
  },
}


def get_config():
  config = defaults()

  # GPT-1's 40,478 ids, rounded up to a multiple of 128
  config.model = {"name": "gpt", "variant": "gpt1", "vocab_size": 40_576, "dropout": 0.1}
  config.task = {
    "name": "causal_lm",
    "store": "data/books_eos",
    "length": 512,
    "document_mask": False,
  }
  config.objective = {"name": "decoder"}

  config.batch_size = 64
  config.total_steps = 3_000_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
  config.schedule = {"name": "cosine", "learning_rate": 2.5e-4, "warmup_steps": 2_000, "end": 0.0}
  config.clip_norm = 1.0

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}, "samples": {}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
