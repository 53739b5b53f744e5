"""Pretrain Llama 3.1 8B as a language model (Grattafiori et al. 2024, sections 3.2 to 3.4).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/llama/8b.py --workdir=runs/llama_8b

Windows have 8,192 tokens and batches 2^22 tokens. Attention stays inside documents (section 3.2).
AdamW's learning rate rises to 3e-4 (table 3) over 8,000 steps and falls on a half cosine to a
hundredth (section 3.4.1, which describes 405B). Betas, weight decay and clipping, which the paper
does not give, follow Llama 2; eps is Adam's default. Parameters, optimizer state and batches are
split over all chips, for example 256 of v6e.

Hardware: 8B is planned on v5e 16x16 with 512 rows of 2,048 and minimal remat: 1.67 s a step, 58 %
MFU (docs/plans.json). 8B is planned on v6e 16x16 with 256 rows and attention's activations kept:
1.16 s a step, 40 % MFU (docs/plans.json). The larger models keep these activations too. 70B is
planned on v5p 8x8x8 with mesh.fsdp=64: 11.82 s a step, 68 % MFU (docs/plans.json). 405B is planned
on v5p 16x16x16 with mesh.fsdp=256 and mesh.tensor=8: 8.52 s a step, 66 % MFU (docs/plans.json).

Expected: the published model scores 66.7 on MMLU with 5 shots. This recipe has not been run at full
size.

Differences: 200,000 steps are 0.8 trillion tokens; the paper trains on 15 trillion. The vocabulary
comes from the store, not from Meta.
"""

from t5x_like.config import defaults


def get_config():
  config = defaults()

  config.model = {
    "name": "llama",
    "variant": "llama3.1-8b",
    "vocab_size": 128_256,
    "dropout": 0.0,
    "remat": "full",
  }
  config.task = {
    "name": "causal_lm",
    "store": "data/c4_en_eos",
    "length": 8192,
    "document_mask": True,
  }
  config.objective = {"name": "decoder"}

  config.batch_size = 512
  config.total_steps = 200_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
  config.schedule = {"name": "cosine", "learning_rate": 3e-4, "warmup_steps": 8_000, "end": 0.01}
  config.clip_norm = 1.0
  config.mesh = {"data": 1, "fsdp": -1}

  config.eval_every = 2_000
  config.evals = {"loss": {"max_examples": 4_096}}
  config.checkpoint = {"every": 2_000, "keep_last": 3, "keep_every": 20_000}
  return config
