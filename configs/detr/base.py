"""Train DETR on COCO (Carion et al. 2020, section 4 and appendix A.4).

  python -m t5x_like.train --config=configs/detr/base.py --workdir=runs/detr_r50 \\
      --config.task.source=coco:train=annotations/instances_train2017.json,validation=annotations/instances_val2017.json

Source: https://arxiv.org/abs/2005.12872. Training takes 500 epochs of 118,287 images in batches of
64. The shorter side has 480 to 800 pixels and the longer at most 1,333; images are mirrored and
cropped at random. AdamW's rate is 1e-4, and 1e-5 for the backbone; both fall to a tenth after 400
epochs. Weight decay is 1e-4, dropout 0.1, and gradients are clipped to norm 0.1.

Batch norm, the stem and the first stage are frozen, so a run begins with a trained ResNet:
--config.init.workdir=runs/imported, a workdir with the weights of a DETR from Hugging Face.
`:resnet101` is the larger model. As in the authors' code, all parameters decay, and the
Transformer's kernels have Xavier's deviations, computed for queries, keys and values as one matrix.

Hardware: 300 epochs took the authors 3 days on 16 V100s.

Expected (table 1): AP 42.0 with ResNet-50, 43.5 with ResNet-101. This recipe has not been run at
full size.

Differences: the projection of the backbone and the heads of classes and boxes begin with normal
kernels of variance 1 / fan-in and without biases. In the authors' code they have PyTorch's uniform
kernels.
"""

from typing import Literal

from t5x_like.config import defaults

_SIZES = {"resnet50": "detr-resnet50", "resnet101": "detr-resnet101"}
_IMAGES = 118_287
LAPTOP = {"tuning": {"name": "all"}}


def get_config(size: Literal["resnet50", "resnet101"] = "resnet50"):
  config = defaults()

  config.model = {"name": "detr", "variant": _SIZES[size], "dropout": 0.1}
  config.model.design = {"kernel_scales": (0.5, 1.0, 2 / 9, 16 / 9)}
  config.task = {
    "name": "object_detection",
    "source": "coco:train=annotations/instances_train2017.json,"
    "validation=annotations/instances_val2017.json",
    "resolution": 1333,
    "shortest": 800,
    "boxes": 100,
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "augmentations": ("flip", "crop", "resize"),
  }
  config.objective = {"name": "detection", "l1": 5.0, "giou": 2.0, "no_object": 0.1}
  config.batch_size = 64
  epoch = _IMAGES // 64
  config.total_steps = 500 * epoch
  config.optimizer = {"name": "adamw", "weight_decay": 1e-4, "undecayed": "nothing"}
  config.schedule = {"name": "drops", "learning_rate": 1e-4, "steps": (400 * epoch,)}
  config.tuning = {
    "name": "by_part",
    "rates": {"backbone/*": 0.1, "backbone/stem/*": 0.0, "backbone/stages/0/*": 0.0},
  }
  config.clip_norm = 0.1
  config.eval_every = 10 * epoch
  config.evals = {"loss": {}, "detection": {}}
  config.checkpoint = {"every": epoch, "keep_last": 3}
  return config
