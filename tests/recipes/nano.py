"""Train a T5 of two narrow layers on the built-in corpus, with dropout.

It compiles in a second or two, which is most of the time that its run takes. Tests override
the values that they need.
"""

from configs.t5 import base
from t5x_like import laptop
from t5x_like.architectures.design import Variant
from t5x_like.models import t5
from t5x_like.nn.dims import Dims

t5.VARIANTS["nano"] = Variant(
  Dims(embed=32, heads=4, kv_heads=4, head_dim=8, mlp=64, layers=2), t5.V1_1, 32128
)


def get_config(arg: str = ""):
  config = base.get_config()
  laptop.shrink(config, "debug")
  config.model.variant = "nano"
  config.model.dropout = 0.1
  config.model.layers = "scan"
  config.task.inputs_length = 32
  config.task.targets_length = 8
  config.total_steps = 60
  config.eval_every = 60
  config.evals = {}
  config.checkpoint = {"every": 7}
  config.peak_flops = 1e11  # or every start would measure it
  return config
