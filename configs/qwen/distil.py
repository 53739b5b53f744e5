"""Train a Qwen 3 of 0.6B on the predictions of one of 8B (Hinton et al. 2015, arXiv:1503.02531).

  python -m t5x_like.train --config=configs/qwen/distil.py --workdir=runs/qwen_distil \\
      --config.teacher.workdir=Qwen/Qwen3-8B

The student learns from the teacher at every token. The teacher runs in every step and costs about
ten times the student's forward pass. With `distil.py:cached` the student learns from the teacher's
64 likeliest tokens, which are stored once in 512 bytes a token:

  python -m tools.cache_teacher --config=configs/qwen/distil.py --workdir=Qwen/Qwen3-8B --k=64 \\
      --output=data/qwen_taught
  python -m t5x_like.train --config=configs/qwen/distil.py:cached --workdir=runs/qwen_cached

Store and rates are the same as in `qwen3_8b.py`. The store has the vocabulary of the published
teacher. This recipe has not been run at full size.
"""

from configs.qwen import qwen3_8b


def get_config(cached: bool = False):
  config = qwen3_8b.get_config()

  if cached:
    config.teacher = {}
    config.task = {"name": "taught", "store": "data/qwen_taught"}
    config.objective = {"name": "cached_distillation", "share": 0.5}
  else:
    config.teacher = {"workdir": None, "model": config.model.to_dict() | {"remat": "none"}}
    config.objective = {"name": "token_distillation", "share": 0.5}
  config.model.variant = "qwen3-0.6b"

  config.batch_size = 256
  config.total_steps = 40_000
  config.schedule.warmup_steps = 1_000
  return config
