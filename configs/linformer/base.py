"""Linformer base: RoBERTa with keys and values projected to 256 positions.

Source: Wang et al. 2020, arXiv:2006.04768.

  python -m tools.prepare_data --source=text:web/*.txt --vocabulary=VOCABULARY --append_eos \\
      --output=data/web
  python -m t5x_like.train --config=configs/linformer/base.py --workdir=runs/linformer_base

250,000 steps on RoBERTa's objective at length 512 (section 5.1); other settings are RoBERTa's. 64
accelerators of 16 GB or more. The heads of a layer share projections; keys and values share them
too with `--config.model.variant=linformer-base-256-kv`, and so do all layers with
`linformer-base-256-layerwise`. The laptop forms project 128 positions to 64, which start as pairs
of neighbours. Not run at full size here.
"""

from configs.roberta import base

LAPTOP = {"model.design.core": {"name": "linformer", "k": 64, "length": 128, "start": "pooling"}}


def get_config():
  config = base.get_config()

  config.model.name = "linformer"
  config.model.variant = "linformer-base-256"
  config.task.segment_ids = False  # the core takes none; a row of full sentences is one sequence

  config.total_steps = 250_000
  return config
