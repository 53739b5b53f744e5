"""Train Llama 3.1 8B on preferences between answers (DPO, Rafailov et al. 2023, appendix B).

  python -m t5x_like.train --config=configs/finetune/preferences.py --workdir=runs/dpo \\
      --config.init.workdir=runs/chat \\
      --config.task.source=jsonl:train=pairs/train.jsonl,validation=pairs/dev.jsonl

Each line of the files has `prompt`, `chosen` and `rejected`. `init.workdir` is the run of
`configs/finetune/chat.py`, a supervised fine-tuning, and its weights are the reference. Beta of
0.1, batches of 64 pairs and a rate of 1e-6 after 150 steps of warm-up are the paper's. Gradients
are clipped to norm 10 as in the authors' code. `preferences.py:lora` trains adapters; the model
without them is then the reference, so no second copy of the parameters is held. Watch `margin` and
`accuracy`.

This recipe has not been run at full size.

Differences: Adam without momentum replaces RMSProp. The two differ by Adam's correction of the
first steps.
"""

from t5x_like.config import defaults

LAPTOP = {"schedule.learning_rate": 1e-4}


def get_config(lora: bool = False):
  config = defaults()

  config.model = {
    "name": "llama",
    "variant": "llama3.1-8b",
    "vocab_size": 128_256,
    "dropout": 0.0,
    "remat": "full",
  }
  config.task = {
    "name": "preferences",
    "source": "jsonl:train=data/preferences/train.jsonl,"
    "validation=data/preferences/validation.jsonl",
    "template": "llama3",
    "length": 1024,
    "too_long": "truncate",
  }
  config.objective = {"name": "dpo", "beta": 0.1}
  if lora:
    config.tuning = {"name": "lora", "rank": 64, "alpha": 64.0, "targets": ["*"]}

  config.batch_size = 64
  config.total_steps = 1_000
  config.optimizer = {"name": "adamw", "b1": 0.0, "b2": 0.99, "eps": 1e-8, "weight_decay": 0.0}
  config.schedule = {"name": "drops", "learning_rate": 5e-6 if lora else 1e-6, "warmup_steps": 150}
  config.clip_norm = 10.0
  config.mesh = {"data": 1, "fsdp": -1}

  config.eval_every = 100
  config.evals = {"loss": {"max_examples": 1_024}}
  config.checkpoint = {"every": 100, "keep_last": 1}
  return config
