"""Train Swin Transformers on ImageNet (Liu et al. 2021, section 4.1 and appendix A2.1).

  python -m t5x_like.train --config=configs/swin/base.py --workdir=runs/swin_t \\
      --config.task.source=folders:train=imagenet/train,validation=imagenet/val

Source: arXiv:2103.14030. Training takes 300 epochs of 1,281,167 images in batches of 1,024 at 224 x
224, with RandAugment, mixup, CutMix, random erasing, label smoothing of 0.1 and drop-path rates up
to 0.2 (`:t`), 0.3 (`:s`) or 0.5 (`:b`). AdamW's rate rises to 1e-3 over 20 epochs and follows a
cosine to 1e-5. Weight decay is 0.05, and gradients are clipped to norm 5 as in the authors' code.

`:l` pretrains Swin-L on the 21,841 classes of ImageNet-22K: 90 epochs of 14,197,122 images in
batches of 4,096, with a weight decay of 0.01 (0.05 in the authors' code) and a linear schedule
after 5 epochs of warm-up. It is then fine-tuned on ImageNet for 30 epochs at 384 x 384 with windows
of 12, at a constant rate of 1e-5: --config.init.workdir=runs/swin_l --config.model.resolution=384
--config.task.resolution=384 --config.model.window=12 --config.optimizer.weight_decay=1e-8. As in
the authors' config, evaluations squeeze images to squares (--config.task.fit=squeezed).

`,v2` is Swin V2 (Liu et al. 2022, arXiv:2111.09883) at 256 x 256 with windows of 8, trained with
the same settings. `:l,v2` is trained at 192 x 192 with a weight decay of 0.1 and a cosine.

Hardware: 8 accelerators, or 16 for `:b`. The plan of `:t` for 8 chips of v5e (`--topology=v5e:2x4`)
uses 13.7 of 17.2 GB a chip and takes at least 0.30 s a step, or 32 hours for 300 epochs.

Expected top-1 (table 1): `:t` 81.3, `:s` 83.0, `:b` 83.5 %, `:l` fine-tuned 87.3 %. For V2, from
the authors' repository: `:t,v2` 81.8, `:s,v2` 83.7, `:b,v2` 84.2 %. Accuracies of Swin-T after 10,
50 and 90 epochs are not published as text: the authors' log is outside their repository
(microsoft/Swin-Transformer, issue 29). A user with its settings had 71.3 % after 65 epochs (issue
39). This recipe has not been run at full size.

Differences: mixup and CutMix draw their parameters for each image; timm draws them once per batch.
"""

from typing import Literal

from t5x_like.config import defaults

_DROP_PATH = {"t": 0.2, "s": 0.3, "b": 0.5, "l": 0.2}
_IMAGES = 1_281_167
_IMAGES_22K = 14_197_122


def get_config(size: Literal["t", "s", "b", "l"] = "t", v2: bool = False):
  config = defaults()
  large = size == "l"
  epoch = _IMAGES_22K // 4096 if large else _IMAGES // 1024

  name = "swin_v2" if v2 else "swin"
  head = {"name": "image_classification"}
  if large:
    head["labels"] = 21_841
  config.model = {"name": name, "variant": f"{name}-{size}".replace("_", "-"), "head": head}
  config.model.drop_path = _DROP_PATH[size]
  config.model.remat = "minimal" if large else "none"
  if not v2:
    config.model.resolution = 224
  elif large:
    config.model.resolution = 192
  else:
    config.model.resolution = 256
  config.task = {
    "name": "image_classification",
    "source": "folders:train=imagenet/train,validation=imagenet/val",
    "resolution": config.model.resolution,
    "augmentations": (
      "random_resized_crop",
      "flip",
      {"name": "randaugment", "ops": 2, "magnitude": 9.0, "deviation": 0.5, "probability": 0.5},
      {"name": "erase", "probability": 0.25},
    ),
    "mixing": {"mixup": 0.8, "cutmix": 1.0},
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
  }
  config.objective = {"name": "classification", "label_smoothing": 0.1}
  config.batch_size = 4096 if large else 1024
  config.total_steps = (90 if large else 300) * epoch
  if not large:
    decay = 0.05
  elif v2:
    decay = 0.1
  else:
    decay = 0.01
  config.optimizer = {
    "name": "adamw",
    "b1": 0.9,
    "b2": 0.999,
    "weight_decay": decay,
    "undecayed": "tables",
  }
  warmup = (5 if large else 20) * epoch
  config.schedule = {"name": "cosine", "learning_rate": 1e-3, "warmup_steps": warmup, "end": 0.01}
  if large and not v2:
    config.schedule = {"name": "linear", "learning_rate": 1e-3, "warmup_steps": warmup}
  config.clip_norm = 5.0
  config.eval_every = 5 * epoch
  config.evals = {"loss": {}, "image_classification": {}}
  config.checkpoint = {"every": 5 * epoch, "keep_last": 3}
  return config
