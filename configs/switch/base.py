"""Switch Transformer base with 8 to 256 experts, pretrained by span corruption (Fedus et al. 2022).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --output=data/c4_en
  python -m t5x_like.train --config=configs/switch/base.py --workdir=runs/switch_base_8
  python -m t5x_like.train --config=configs/switch/base.py:128 --workdir=runs/switch_base_128

An argument is the number of experts (8 without one, 619M parameters; 128 are 7.4B), for at least as many chips as the
mesh has along `expert`: eight, or with 128 experts a TPU v3 slice of 32. Experts, and the rows of the batch, are split
over that axis. `:debug` runs two steps of a tiny model on any laptop, without data. Expected (paper, table 1, 128
experts): a negative log-perplexity of -1.534 after 100k steps with batches of 2^20 tokens, where T5 base has -1.731.
"""

from configs.t5 import base
from t5x_like.config import words

EXPERTS = ("16", "32", "64", "128", "256")


def get_config(arg: str = ""):
  options = words(arg, (*EXPERTS, "debug"))
  experts = next((int(count) for count in EXPERTS if count in options), 8)
  config = base.get_config()

  config.model = {
    "name": "switch",
    "variant": f"switch-base-{experts}",
    "vocab_size": 32128,
    "dropout": 0.0,
    "dtype": "auto",
    "layers": "auto",
    "remat": "none",
    "design": {
      "experts": {
        "experts": experts,
        "top_k": 1,
        "normalise": False,
        "dispatch": "capacity",
        "capacity_factor": 1.25,
        "balance_loss": 0.01,
        "z_loss": 1e-3,
        "jitter": 0.01,
      }
    },
  }
  config.mesh = {"expert": 8, "data": -1}

  if "debug" in options:
    base.debug(config)
    config.model.variant = "switch-tiny-8"
    config.model.design.experts.experts = 8
    config.model.layers = "scan"  # half of the compile time
    config.mesh = {"data": -1}
  return config
