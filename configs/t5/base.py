"""Pretrain T5 1.1 by span corruption (Raffel et al. 2020, sections 3.1 and 3.3).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --output=data/c4_en
  python -m t5x_like.train --config=configs/t5/base.py --workdir=runs/t5_base

Training takes 2^19 steps of 2^16 tokens. Other sizes have the same hyper-parameters: `:mini`
(version 1.0: 31M parameters, Tay et al. 2021, table 2), `:small` (77M), `:large` (783M), `:xl`
(2.85B) and `:xxl` (11.1B). `:v1_0` is the original T5, with dropout and tied embeddings.

Hardware: base took the authors about a day on a TPU v3 slice of 16 chips. Large is planned on v5p
2x2x1 with 256 rows: 0.46 s a step, 45 % MFU (docs/plans.json). XXL is planned on v5p 4x4x4 with
1,024 rows, minimal remat, planes of 16: 1.02 s a step, 71 % MFU (docs/plans.json).

Expected after fine-tuning (table 1, the baseline of version 1.0): GLUE 83.28, SuperGLUE 71.36,
SQuAD EM 80.88.

Differences: the paper does not mention the z-loss of 1e-4, which is in the authors' code for both
versions (Mesh TensorFlow's `Unitransformer`).
"""

from typing import Literal

from t5x_like.config import defaults

Size = Literal["mini", "small", "base", "large", "xl", "xxl"]


def get_config(size: Size = "base", v1_0: bool = False):
  config = defaults()

  # 32,000 pieces and 100 sentinels, rounded up to a multiple of 128; dropout is off in pretraining
  # since version 1.1.
  config.model = {"name": "t5", "variant": f"t5-v1_1-{size}", "vocab_size": 32_128, "dropout": 0.0}
  config.task = {
    "name": "span_corruption",
    "store": "data/c4_en",
    "inputs_length": 512,
    "targets_length": 114,
    "noise_density": 0.15,
    "mean_noise_span_length": 3.0,
  }
  config.objective = {"name": "encoder_decoder", "z_loss": 1e-4}
  config.batch_size = 128
  config.total_steps = 2**19
  config.optimizer = {"name": "adafactor", "decay_rate": 0.8}
  config.schedule = {"name": "rsqrt", "warmup_steps": 10_000}
  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 16_384}, "span_infilling": {"max_examples": 128}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 50_000}
  if size in ("xl", "xxl"):
    # parameters and optimizer state split over all chips
    config.model.remat = "full"
    config.mesh = {"fsdp": -1}
  if v1_0:
    config.model.variant = {"xl": "t5-3b", "xxl": "t5-11b"}.get(size, f"t5-{size}")
    config.model.dropout = 0.1
  return config
