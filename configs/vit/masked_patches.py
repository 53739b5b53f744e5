"""Pretrain ViT to predict colours of corrupted patches (Dosovitskiy et al. 2021, B.1.2).

  python -m t5x_like.train --config=configs/vit/masked_patches.py --workdir=runs/vit_masked \\
      --config.task.source=folders:train=imagenet/train,validation=imagenet/val

The task resembles BERT's masked words (appendix B.1.2). Half of the patches are chosen: 80 % of
them become a mask, 10 % become another patch and 10 % stay. The model predicts their mean colour,
as one of 8 levels in each channel. Training takes a million steps in batches of 4,096. Adam's rate
rises to 2e-4 over 10,000 steps and follows a cosine.

Expected of B/16 after fine-tuning: 79.9 % top-1 on ImageNet. This recipe has not been run at full
size.

Differences: the paper pretrains on JFT.
"""

from t5x_like.config import defaults

LAPTOP = {"task.patch": 4, "evals.few_shot.shots": 2}


def get_config():
  config = defaults()

  config.model = {"name": "vit", "variant": "vit-b16", "head": {"name": "patch_colours"}}
  config.task = {
    "name": "corrupted_images",
    "source": "folders:train=imagenet/train,validation=imagenet/val",
    "resolution": 224,
    "patch": 16,
    "rate": 0.5,
  }
  config.objective = {"name": "patch_colours"}
  config.batch_size = 4096
  config.total_steps = 1_000_000
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.999, "weight_decay": 0.0}
  config.schedule = {"name": "cosine", "learning_rate": 2e-4, "warmup_steps": 10_000}
  config.eval_every = 10_000
  config.evals = {"loss": {}, "few_shot": {"shots": 10}}
  config.checkpoint = {"every": 5_000, "keep_last": 3}
  return config
