"""SigLIP's loss on a CLIP: each pair of an image and a text by itself (Zhai et al. 2023; arXiv:2303.15343).

  python -m t5x_like.train --config=configs/clip/siglip.py --workdir=runs/siglip_b16 \\
      --config.task.source=jsonl:train=pairs/train/*.jsonl,validation=pairs/val.jsonl \\
      --config.task.folder=pairs/images --config.task.vocabulary=clip-vit-base-patch32

`configs/clip/base.py` with ViT-B/16, the loss of algorithm 1, its initial scale of 10 and bias of -10, and b2 of 0.95
(section 4.5). The paper's encoders differ a little: theirs pool by attention, and read texts both ways. Not run at full
size here.
"""

from configs.clip import base

LAPTOP = base.LAPTOP


def get_config():
  config = base.get_config("b16")
  config.model.scale, config.model.bias = 10.0, -10.0
  config.objective = {"name": "pairwise_sigmoid"}
  config.optimizer.b2 = 0.95
  return config
