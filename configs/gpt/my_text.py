"""A small GPT on a text of your own: one file is enough.

  python -m tools.train_vocabulary --source=text:input.txt --size=1024 --output=data/vocabulary
  python -m tools.prepare_data --source=text:input.txt --vocabulary=data/vocabulary --append_eos --output=data/text
  python -m t5x_like.train --config=configs/gpt/my_text.py --workdir=runs/text

A modern block at the size of a laptop: 4 layers of 128, rotary positions, RMS norms and no biases, trained with Muon
(0.9 M parameters). Minutes on two CPU cores; see docs/tutorial.md.
"""

from t5x_like.config import defaults


def get_config():
  config = defaults()

  config.model = {
    "name": "gpt",
    "variant": {
      "dims": {"embed": 128, "heads": 4, "kv_heads": 4, "head_dim": 32, "mlp": 512, "layers": 4},
      "design": {
        "norm": "rmsnorm",
        "activation": "gelu_tanh",
        "position": "rope",
        "init_stddev": 0.06,
        "embed_norm": True,
      },
      "vocab_size": 1024,
    },
    "vocab_size": "auto",
  }
  config.task = {"name": "causal_lm", "store": "data/text", "length": 128}
  config.objective = {"name": "decoder"}

  config.batch_size = 16
  config.total_steps = 600
  config.optimizer = {"name": "muon", "b1": 0.9, "b2": 0.99, "weight_decay": 0.1}
  config.schedule = {"name": "cosine", "learning_rate": 1e-2, "warmup_steps": 30, "end": 0.1}

  config.eval_every = 200
  config.evals = {"loss": {"max_examples": 256}}
  config.checkpoint = {"every": 100, "minutes": 0.5, "keep_last": 2}
  return config
