"""Pretrain ModernBERT base on masked tokens (Warner et al. 2024, section 2.2).

  python -m tools.prepare_data --source=text:web/*.txt --vocabulary=VOCABULARY --append_eos \\
      --output=data/web
  python -m t5x_like.train --config=configs/modernbert/base.py --workdir=runs/modernbert_base

Source: arXiv:2412.13663. This is the first of the paper's phases, with the values of
modernbert-base-pretrain.yaml of AnswerDotAI/ModernBERT. It reads 1.719 trillion tokens in rows of
1,024, and 30 % of the tokens are predicted. Batches grow from 768 to 4,608 rows over 50 billion
tokens. The rate is constant at 8e-4 after a warm-up over 3 billion tokens. Betas are 0.9 and 0.98,
eps is 1e-6, and 10 % of attention's outputs are dropped. The rotary base is 10,000 in all layers;
the base of 160,000 of the global layers comes with longer rows. The optimizer is StableAdamW. The
authors' weight decay of 1e-5 is a share of a step at the full rate, which is 1.25 % of that rate.

Hardware: 64 accelerators of 40 GB or more. This recipe has not been run at full size.

Differences: batches grow in five steps here, and by one row at a time in the paper.
"""

from t5x_like.config import defaults

# Batch sizes of the first 50 billion tokens, each for the same number of steps.
_RAMP = range(768, 4_608, 768)
LAPTOP = {
  "model.design": {"init_stddev": 0.06},  # positions are rotary already
  "phases": {f"batch_{size}": {"until": n, "batch_size": 8} for n, size in enumerate(_RAMP, 1)},
}


def get_config():
  config = defaults()

  config.model = {
    "name": "modernbert",
    "variant": "modernbert-base",
    "vocab_size": 50_432,
    "head": "mlm",
    "dropout": 0.1,
    "design": {"position": {"name": "rope", "theta": 10_000.0}},
  }
  config.task = {
    "name": "mlm",
    "store": "data/web",
    "length": 1024,
    "input_format": "full_sentences",
    "masking": "tokens",
    "rate": 0.3,
  }
  config.objective = {"name": "mlm"}

  config.batch_size = 4608
  config.phases = {
    f"batch_{size}": {"until": 4_239 * n, "batch_size": size} for n, size in enumerate(_RAMP, 1)
  }
  config.total_steps = 374_900
  config.optimizer = {
    "name": "stable_adamw",
    "b1": 0.9,
    "b2": 0.98,
    "eps": 1e-6,
    "weight_decay": 1e-5 / 8e-4,
  }
  # 3 * 10^9 tokens
  config.schedule = {"name": "drops", "learning_rate": 8e-4, "warmup_steps": 3_815}

  config.eval_every = 10_000
  config.evals = {"loss": {"max_examples": 16_384}, "samples": {}}
  config.checkpoint = {"every": 10_000, "keep_last": 3, "keep_every": 100_000}
  return config
