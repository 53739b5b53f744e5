"""Train a small decoder to add two numbers from rewards: a toy for a laptop.

  python -m t5x_like.train --config=configs/finetune/sums.py:supervised --workdir=runs/sums
  python -m t5x_like.train --config=configs/finetune/sums.py --workdir=runs/sums_grpo \\
      --config.init.workdir=runs/sums

The first command trains 150 steps on answers such as `7+15=22` in bytes; the model is then wrong in
most sums. The second command shows no sum. It draws 8 answers to each of 32 prompts, and each
answer has reward 1 if it is the sum and 0 if not (`t5x_like/contrib/feedback/rewards/exact.py`).
`sums.py:dr_grpo`, `sums.py:rloo` and `sums.py:ppo` use these methods.

Measured with one seed, in 22 and 43 CPU seconds: the mean reward of the drawn completions rises
from 0.31 (steps 1 to 25) to 0.66 (steps 276 to 300). Of the 38 held-out sums, 42 % are right before
and 76 % after.
"""

from typing import Literal

from t5x_like.config import defaults

LAPTOP = {"model.variant": "tiny", "schedule.learning_rate": 1e-3}
_OBJECTIVES = {
  "grpo": {"name": "grpo", "beta": 0.0},
  "dr_grpo": {"name": "grpo", "form": "dr_grpo", "beta": 0.0},
  "rloo": {"name": "rloo", "beta": 0.0},
  "ppo": {"name": "ppo", "beta": 0.0, "updates": 2, "minibatches": 2},
}


def get_config(method: Literal["grpo", "dr_grpo", "rloo", "ppo", "supervised"] = "grpo"):
  config = defaults()
  config.model = {
    "name": "llama",
    "variant": {
      "dims": {"embed": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "mlp": 172, "layers": 2},
      "design": {
        "norm": "rmsnorm",
        "activation": "swiglu",
        "position": "rope",
        "init_stddev": 0.06,
      },
      "vocab_size": 384,
    },
  }
  if method == "supervised":
    config.task = {
      "name": "text_to_text",
      "inputs": "{a}+{b}=",
      "targets": "{sum}",
      "inputs_length": 10,
      "packed": False,
    }
    config.objective = {"name": "decoder"}
    config.batch_size = 128
    config.total_steps = 150
    config.evals = {"generation": {"max_new_tokens": 4}}
    config.schedule = {"name": "cosine", "learning_rate": 3e-3, "warmup_steps": 30, "end": 0.1}
  else:
    config.task = {
      "name": "prompts",
      "prompt": "{a}+{b}=",
      "fields": ["sum"],
      "fields_length": 32,
      "prompt_length": 8,
      "new_tokens": 4,
      "completions": 8,
    }
    config.objective = _OBJECTIVES[method] | {"reward": "exact"}
    config.batch_size = 32
    config.total_steps = 300
    config.evals = {"reward": {}}
    config.schedule = {"name": "linear", "learning_rate": 1e-3, "warmup_steps": 10}
  config.task.update({"source": "sums:19", "vocabulary": "bytes", "architecture": "decoder"})
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.99, "weight_decay": 0.0}
  config.clip_norm = 1.0
  config.eval_every = 50
  config.checkpoint = {"every": 100, "minutes": 0.5, "keep_last": 2}
  return config
