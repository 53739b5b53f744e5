"""Train a small Swin Transformer on Fashion-MNIST, on a laptop.

  python -m t5x_like.train --config=configs/swin/fashion_mnist.py --workdir=runs/swin_fashion \\
      --config.task.source=idx:train=train-images-idx3-ubyte.gz,validation=t10k-images-idx3-ubyte.gz

The files are the four of https://github.com/zalandoresearch/fashion-mnist. Grey images of 28 x 28
are cut into 14 x 14 patches of 2 x 2 with fixed positions. Patches are merged into 7 x 7 of twice
the width and 4 x 4 of four times the width. Each of these stages has two layers, with windows of 7,
RMS norms and no biases. Training is as in configs/vit/fashion_mnist.py, without mirror images, 16
images at a time, for 10 epochs.

Measured after 28 CPU minutes on a busy machine (docs/results.md): 92.4 % top-1 on the 10,000 test
images.
"""

from configs.vit import fashion_mnist


def get_config():
  config = fashion_mnist.get_config()

  head = {"name": "image_classification", "labels": 10}
  config.model = {"name": "swin", "variant": "swin-fashion", "head": head, "channels": 1}
  config.model.patch_position = "sinusoidal_2d"
  # Initial kernels have a deviation of 1/sqrt(fan in), as the paper's 0.02 suits widths from 96 on.
  config.model.design = {
    "init_stddev": None,
    "activation": "gelu_tanh",
    "norm": "rmsnorm",
    "biases": (),
  }
  config.task.augmentations = ({"name": "random_crop", "border": 1},)
  config.accumulation_steps = 4
  config.total_steps = 10 * 60_000 // config.batch_size
  return config
