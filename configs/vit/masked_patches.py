"""ViT, pretrained to predict the colours of corrupted patches, as BERT predicts words.

Source: Dosovitskiy et al. 2021, appendix B.1.2.

  python -m t5x_like.train --config=configs/vit/masked_patches.py --workdir=runs/vit_masked \\
      --config.task.source=folders:train=imagenet/train,validation=imagenet/val

Half of the patches are chosen: 80 % become a mask, 10 % another patch and 10 % stay. Their mean
colour is predicted, of 8 levels in each channel. A million steps at batch 4096 in the paper, of
JFT; Adam up to 2e-4 over 10,000 steps and down a cosine. Expected of B/16 after fine-tuning: 79.9 %
top-1 on ImageNet. Not run at full size here.
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
