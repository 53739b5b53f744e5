"""Pretrain T5's prefix LM (Raffel et al. 2020, sections 3.2.1 and 3.2.4).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --append_eos \\
      --output=data/c4_en_eos
  python -m t5x_like.train --config=configs/t5/prefix_lm.py --workdir=runs/t5_prefix_lm

One stack of T5 base's blocks reads the prefix bidirectionally. Windows of 512 tokens are cut at a
random place. The hyper-parameters follow the paper's baseline (section 3.1): 2^19 steps of 128
sequences. `:encoder_decoder` trains T5 base with the same objective on the store of `base.py`;
its encoder reads the prefix.

Expected: table 2 has the scores after fine-tuning, below the scores of the same models trained
by denoising. This recipe has not been run at full size.
"""

from configs.t5 import base


def get_config(encoder_decoder: bool = False):
  config = base.get_config()

  if encoder_decoder:
    name = "t5"
    variant = "t5-base"
    architecture = "encoder_decoder"
    store = "data/c4_en"
  else:
    name = "t5_lm"
    variant = "prefix-base"
    architecture = "decoder"
    store = "data/c4_en_eos"
  config.model = {"name": name, "variant": variant, "vocab_size": 32_128, "dropout": 0.1}
  config.task = {"name": "prefix_lm", "store": store, "length": 512, "architecture": architecture}
  config.objective = {"name": architecture, "z_loss": 1e-4}

  config.evals = {"loss": {"max_examples": 16_384}}
  return config
