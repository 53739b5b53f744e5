"""Fine-tune Mistral 7B on preferences in one stage (ORPO, Hong et al. 2024, arXiv:2403.07691).

  python -m t5x_like.train --config=configs/finetune/orpo.py --workdir=runs/orpo \\
      --config.init.workdir=runs/mistral_7b \\
      --config.task.source=jsonl:train=pairs/train.jsonl,validation=pairs/dev.jsonl

Each line of the files has `prompt`, `chosen` and `rejected`. The run starts from pretrained
weights. It needs neither supervised fine-tuning before it nor a reference model. The lambda
(`beta`) of 0.1 and the rate of 5e-6 are the paper's for this model. Batches of 32 pairs of up to
2,048 tokens, 200 steps of warm-up and the inverse square root are from the authors' script
(run_mistral_orpo_beta.sh of xfactlab/orpo). Its five epochs are about 9,500 steps on the authors'
61,000 pairs. Watch `log_odds_ratio` and `accuracy`.

This recipe has not been run at full size.
"""

from t5x_like.config import defaults

LAPTOP = {"schedule.learning_rate": 1e-4, "model.design.windows": [16]}


def get_config():
  config = defaults()

  config.model = {
    "name": "llama",
    "variant": "mistral-7b-v0.1",
    "vocab_size": 32_000,
    "dropout": 0.0,
    "remat": "full",
  }
  config.task = {
    "name": "preferences",
    "source": "jsonl:train=data/preferences/train.jsonl,"
    "validation=data/preferences/validation.jsonl",
    "length": 2048,
    "too_long": "truncate",
  }
  config.objective = {"name": "orpo", "beta": 0.1}

  config.batch_size = 32
  config.total_steps = 9_500
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
  config.schedule = {"name": "warmup_rsqrt", "learning_rate": 5e-6, "warmup_steps": 200}
  config.clip_norm = 1.0
  config.mesh = {"data": 1, "fsdp": -1}

  config.eval_every = 500
  config.evals = {"loss": {"max_examples": 1_024}}
  config.checkpoint = {"every": 500, "keep_last": 1}
  return config
