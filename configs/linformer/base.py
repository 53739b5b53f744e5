"""Pretrain Linformer base: RoBERTa with projected keys and values (Wang et al. 2020).

  python -m tools.prepare_data --source=text:web/*.txt --vocabulary=VOCABULARY --append_eos \\
      --output=data/web
  python -m t5x_like.train --config=configs/linformer/base.py --workdir=runs/linformer_base

Source: arXiv:2006.04768. Keys and values are projected to 256 positions. Training takes 250,000
steps of RoBERTa's objective at length 512 (section 5.1); the other settings are RoBERTa's. The
heads of a layer share projections. With `--config.model.variant=linformer-base-256-kv` keys and
values share them too, and with `linformer-base-256-layerwise` all layers do. The laptop forms
project 128 positions to 64, which start as pairs of neighbours.

Hardware: 64 accelerators of 16 GB or more. This recipe has not been run at full size.
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
