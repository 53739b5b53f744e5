"""Train a small GPT on your own text: one file of half a megabyte or more is enough.

  python -m tools.train_vocabulary --source=text:input.txt --kind=bytelevel_bpe --size=1024 \\
      --extra_ids=0 --output=data/vocabulary
  python -m tools.prepare_data --source=text:input.txt --vocabulary=data/vocabulary --append_eos \\
      --output=data/text
  python -m t5x_like.train --config=configs/gpt/my_text.py --workdir=runs/text
  python -m t5x_like.chat --workdir=runs/text

The model is a Llama at a laptop's size, which exports to `transformers`. It has 0.9 M parameters in
4 layers of width 128, rotary positions, SwiGLU, RMS norms and no biases. The optimizer is Muon.
docs/tutorial.md shows the text that it writes.

Measured on Bleak House (1.9 MB) after 600 steps in 254 CPU seconds: 3.54 nats a token on the
held-out end, where the entropy of unigrams is 5.75.
"""

from t5x_like.config import defaults

LAPTOP = {"model.variant": "tiny"}


def get_config():
  config = defaults()

  config.model = {
    "name": "llama",
    "variant": {
      "dims": {"embed": 128, "heads": 4, "kv_heads": 4, "head_dim": 32, "mlp": 344, "layers": 4},
      "design": {
        "norm": "rmsnorm",
        "activation": "swiglu",
        "position": "rope",
        "init_stddev": 0.06,
      },
      "vocab_size": 1024,  # --config.model.vocab_size=auto takes the size of another vocabulary
    },
  }
  config.task = {"name": "causal_lm", "store": "data/text", "length": 128}
  config.objective = {"name": "decoder"}

  config.batch_size = 16
  config.total_steps = 600
  config.optimizer = {"name": "muon", "b1": 0.9, "b2": 0.99, "weight_decay": 0.1}
  config.schedule = {"name": "cosine", "learning_rate": 1e-2, "warmup_steps": 30, "end": 0.1}

  config.eval_every = 200
  config.evals = {"loss": {"max_examples": 256}, "samples": {}}
  config.checkpoint = {"every": 100, "minutes": 0.5, "keep_last": 2}
  return config
