"""Train Llama 3.1 8B by GRPO on questions whose answers a program checks (Shao et al. 2024).

  python -m t5x_like.train --config=configs/finetune/grpo.py --workdir=runs/grpo \\
      --config.init.workdir=runs/chat \\
      --config.task.source=jsonl:train=gsm8k/train.jsonl,validation=gsm8k/test.jsonl

The run starts after supervised fine-tuning. Each line of the files has `question` and `answer`. A
completion whose final number equals the answer's has reward 1
(`t5x_like/contrib/feedback/rewards/number.py`). `--config.objective.reward=my_rewards:right` names
a function of your own. Watch `reward` and `groups_with_signal`.

`grpo.py:dr_grpo` is the form of Liu et al. (2025) without KL. `grpo.py:rloo` is REINFORCE with a
leave-one-out baseline (Ahmadian et al. 2024). `grpo.py:ppo` is PPO with a value head: one
completion to each of 512 prompts and 4 passes over them. `grpo.py:lora` trains adapters; the model
without them is then the reference, so no second copy is held. `grpo.py:t5` is for a T5 of 3B.

This recipe has not been run at full size. `configs/finetune/sums.py` is a toy that a laptop learns.

Differences: DeepSeekMath (section 4.2) draws 64 completions of up to 1,024 tokens to each of 16
questions, with a rate of 1e-6, a KL coefficient of 0.04 and one update from each batch. This recipe
draws 16 completions to each of 64 questions.
"""

from typing import Literal

from t5x_like.config import defaults

LAPTOP = {"schedule.learning_rate": 1e-4}
_OBJECTIVES = {
  "grpo": {"name": "grpo", "clip": 0.2, "beta": 0.04},
  "dr_grpo": {"name": "grpo", "form": "dr_grpo", "clip": 0.2, "beta": 0.0},
  "rloo": {"name": "rloo", "beta": 0.03},
  "ppo": {"name": "ppo", "beta": 0.05, "updates": 4},
}


def get_config(
  method: Literal["grpo", "dr_grpo", "rloo", "ppo"] = "grpo", lora: bool = False, t5: bool = False
):
  config = defaults()

  config.model = {
    "name": "llama",
    "variant": "llama3.1-8b",
    "vocab_size": 128_256,
    "dropout": 0.0,
    "remat": "full",
  }
  config.task = {
    "name": "prompts",
    "source": "jsonl:train=data/gsm8k/train.jsonl,validation=data/gsm8k/test.jsonl",
    "template": "llama3",
    "prompt": "{question}",
    "fields": ["answer"],
    "fields_length": 4096,
    "completions": 16,
    "prompt_length": 512,
    "new_tokens": 1024,
    "too_long": "skip",
  }
  if t5:
    config.model = {
      "name": "t5",
      "variant": "t5-v1_1-xl",
      "vocab_size": 32_128,
      "dropout": 0.0,
      "remat": "full",
    }
    config.task.update(
      {"architecture": "encoder_decoder", "template": None, "prompt": "question: {question}"}
    )
  config.objective = _OBJECTIVES[method] | {"reward": "number"}
  if lora:
    config.tuning = {"name": "lora", "rank": 64, "alpha": 64.0, "targets": ["*"]}

  config.batch_size = 64
  if method == "ppo":  # has a baseline in the value head, and needs no second completion
    config.task.completions = 1
    config.batch_size = 512
  config.accumulation_steps = 4
  config.total_steps = 500
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.99, "eps": 1e-8, "weight_decay": 0.0}
  config.schedule = {"name": "constant", "learning_rate": 2e-5 if lora else 1e-6}
  config.clip_norm = 1.0
  config.mesh = {"data": 1, "fsdp": -1}

  config.eval_every = 50
  config.evals = {"reward": {}}
  config.checkpoint = {"every": 50, "keep_last": 1}
  return config
