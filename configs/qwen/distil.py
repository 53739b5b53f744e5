"""A Qwen 3 of 0.6B that learns from one of 8B at every token.

Source: Hinton et al. 2015, arXiv:1503.02531.

  python -m t5x_like.train --config=configs/qwen/distil.py --workdir=runs/qwen_distil \\
      --config.teacher.workdir=Qwen/Qwen3-8B

The teacher runs in every step, about ten times the student's forward pass. `distil.py:cached`
learns instead from its 64 likeliest tokens, which are stored once, 512 bytes a token:

  python -m tools.cache_teacher --config=configs/qwen/distil.py --workdir=Qwen/Qwen3-8B \\
      --k=64 --output=data/qwen_taught
  python -m t5x_like.train --config=configs/qwen/distil.py:cached --workdir=runs/qwen_cached

Store, vocabulary and rates are those of `qwen3_8b.py`; the store has the vocabulary of the
published teacher. Not run at full size here.
"""

from configs.qwen import qwen3_8b


def get_config(cached: bool = False):
  config = qwen3_8b.get_config()

  config.teacher = (
    {} if cached else {"workdir": None, "model": config.model.to_dict() | {"remat": "none"}}
  )
  config.model.variant = "qwen3-0.6b"
  config.objective = {
    "name": "cached_distillation" if cached else "token_distillation",
    "share": 0.5,
  }
  if cached:
    config.task = {"name": "taught", "store": "data/qwen_taught"}

  config.batch_size = 256
  config.total_steps = 40_000
  config.schedule.warmup_steps = 1_000
  return config
