"""Train DeiT on ImageNet from labels and a teacher (Touvron et al. 2021, table 9).

  python -m t5x_like.train --config=configs/deit/base.py --workdir=runs/deit_b16 \\
      --config.teacher.workdir=runs/vit_l16 \\
      --config.task.source=folders:train=imagenet/train,validation=imagenet/val

Training takes 300 epochs of 1,281,167 images in batches of 1,024 at 224 x 224. Each image appears
three times in a row (repeated augmentation). Augmentations are RandAugment, erasing, mixup and
CutMix. AdamW's rate rises to 1e-3 over 5 epochs and follows a cosine to 1e-5. Weight decay is 0.05,
drop path 0.1 and label smoothing 0.1. Kernels are drawn from N(0, 0.02^2) as in the authors' code.
Distillation is hard.

The teacher is any run on the same classes or a converted Hugging Face directory. For soft
distillation by equation 2, set --config.objective.kind=soft --config.objective.share=0.1
--config.objective.temperature=3. `:small` and `:tiny16` are DeiT-S and DeiT-Ti. `:small,alone`
learns without a teacher.

Hardware: 8 accelerators or more. The plan of `:small,alone` for 8 chips of v5e
(`--topology=v5e:2x4`) uses 4.8 of 17.2 GB a chip and takes at least 0.08 s a step, or 9 hours for
300 epochs.

Expected top-1 (tables 2 and 5): B 83.4, S 81.2 and Ti 74.5 % from a RegNetY of 82.9 %; B 81.9 %
from a DeiT-B of 81.8 %; without a teacher B 81.8, S 79.8 and Ti 72.2 %. Accuracies of S after 10,
50 and 90 epochs are not published as text. The authors' logs, which end at 79.8
(facebookresearch/deit, issues 16 and 18), are outside their repository. This recipe has not been
run at full size.

Differences: each image is mixed by its own draw; timm draws once for a batch. The cosine starts at
the end of the warm-up; timm's starts at the first step, which differs by at most 3 %. The authors'
code divides the soft loss by the number of classes; equation 2 does not.
"""

from typing import Literal

from t5x_like.config import defaults

_SIZES = {"base": "deit-b16", "small": "deit-s16", "tiny16": "deit-ti16"}
_IMAGES = 1_281_167
LAPTOP = {"model.design.init_stddev": None}  # 0.02 suits widths of 192 and more


def get_config(size: Literal["base", "small", "tiny16"] = "base", alone: bool = False):
  config = defaults()

  head = {"name": "image_classification"}
  if alone:
    config.model = {"name": "vit", "variant": _SIZES[size].replace("deit", "vit"), "head": head}
    config.objective = {"name": "classification", "label_smoothing": 0.1}
  else:
    config.model = {"name": "deit", "variant": _SIZES[size], "head": {"name": "distillation"}}
    config.teacher = {"workdir": None, "model": {"name": "vit", "variant": "vit-l16", "head": head}}
    config.objective = {
      "name": "distillation",
      "kind": "hard",
      "share": 0.5,
      "label_smoothing": 0.1,
    }
  config.model.drop_path = 0.1
  config.model.design = {"init_stddev": 0.02}
  config.task = {
    "name": "image_classification",
    "source": "folders:train=imagenet/train,validation=imagenet/val",
    "resolution": 224,
    "augmentations": (
      "random_resized_crop",
      "flip",
      {"name": "randaugment", "ops": 2, "magnitude": 9.0, "deviation": 0.5, "probability": 0.5},
      {"name": "erase", "probability": 0.25},
    ),
    "mixing": {"mixup": 0.8, "cutmix": 1.0},
    "repeats": 3,
  }
  if alone:  # pixels are normalised as in the authors' code; with a teacher, as in its training
    config.task.mean = (0.485, 0.456, 0.406)
    config.task.std = (0.229, 0.224, 0.225)
  config.batch_size = 1024
  config.total_steps = 300 * _IMAGES // 1024
  config.optimizer = {
    "name": "adamw",
    "b1": 0.9,
    "b2": 0.999,
    "weight_decay": 0.05,
    "undecayed": "tables",
  }
  config.schedule = {
    "name": "cosine",
    "learning_rate": 1e-3,
    "warmup_steps": 5 * _IMAGES // 1024,
    "end": 0.01,
  }
  config.eval_every = 5_000
  config.evals = {"loss": {}, "image_classification": {}}
  config.checkpoint = {"every": 5_000, "keep_last": 3}
  return config
