"""Fine-tune Llama 3.1 8B on conversations, with a loss on the assistant's turns only.

  python -m tools.convert_hf --input=Llama-3.1-8B --output=runs/llama \\
      --config=configs/llama/8b.py
  python -m t5x_like.train --config=configs/finetune/chat.py --workdir=runs/chat \\
      --config.init.workdir=runs/llama \\
      --config.task.source=jsonl:train=chats/train.jsonl,validation=chats/dev.jsonl

Each line of the files has `messages` with `role` and `content`. `init.workdir` may be any decoder.
If its vocabulary lacks the special tokens of Llama's template, set `--config.task.template=plain`.

AdamW's learning rate is 1e-5 after a warm-up over 2 % of the steps, as is usual for models of about
8B parameters. Tülu 3 (Lambert et al. 2024, table 14) has 5e-6 and two epochs in batches of 128
conversations. Rows are packed. `chat.py:lora` trains adapters on all kernels with a rate of 2e-4
(Dettmers et al. 2023, appendix B.2); the frozen parameters need no optimizer state.

Hardware: 16 accelerators of 80 GB, or 4 with `:lora`. This recipe has not been run at full size.

Differences of `:lora`: the code of Dettmers et al. has a constant rate, batches of 16, dropout of
0.1 in the adapters and gradients clipped to norm 0.3.
"""

from t5x_like.config import defaults

LAPTOP = {"schedule.learning_rate": 1e-3}


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
    "name": "chat",
    "source": "jsonl:train=data/chat/train.jsonl,validation=data/chat/validation.jsonl",
    "template": "llama3",
    "length": 4096,
    "too_long": "truncate",
  }
  config.objective = {"name": "decoder"}
  if lora:
    config.tuning = {"name": "lora", "rank": 64, "alpha": 16.0, "targets": ["*"]}

  config.batch_size = 64
  config.total_steps = 2_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
  config.schedule = {"name": "linear", "learning_rate": 2e-4 if lora else 1e-5, "warmup_steps": 40}
  config.clip_norm = 1.0
  config.mesh = {"data": 1, "fsdp": -1}

  config.eval_every = 200
  config.evals = {"loss": {"max_examples": 1_024}}
  config.checkpoint = {"every": 200, "keep_last": 1}
  return config
