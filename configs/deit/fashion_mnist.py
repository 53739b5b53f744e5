"""Train a small DeiT on Fashion-MNIST by distillation from a ViT, on a laptop.

  python -m t5x_like.train --config=configs/vit/fashion_mnist.py --workdir=runs/teacher …
  python -m t5x_like.train --config=configs/deit/fashion_mnist.py --workdir=runs/student \\
      --config.teacher.workdir=runs/teacher \\
      --config.task.source=idx:train=train-images-idx3-ubyte.gz,validation=t10k-images-idx3-ubyte.gz

The student is half as wide as its teacher and has a distillation token. Distillation is soft,
because the likeliest class of a teacher that knows the training images carries little information.
The student has LayerNorm and trains for 3 epochs. The rest is as in configs/vit/fashion_mnist.py.
`:alone` trains the same student without a teacher.
"""

from configs.vit import fashion_mnist

_EPOCHS = 3


def get_config(alone: bool = False):
  config = fashion_mnist.get_config()

  teacher = config.model.to_dict()
  config.model = {
    "name": "deit",
    "variant": "deit-fashion",
    "channels": 1,
    "head": {"name": "distillation", "labels": 10},
    "design": {"position": "sinusoidal_2d", "activation": "gelu_tanh"},
  }
  if alone:
    config.objective = {"name": "classification", "label_smoothing": 0.1}
  else:
    config.teacher = {"workdir": None, "model": teacher}
    config.objective = {
      "name": "distillation",
      "kind": "soft",
      "share": 0.7,
      "temperature": 2.0,
      "label_smoothing": 0.1,
    }
  config.total_steps = _EPOCHS * fashion_mnist._IMAGES // config.batch_size
  return config
