"""A GPT as small as `nano.py`, on windows of 64 bytes."""

from configs.gpt import gpt2_124m
from t5x_like import laptop
from t5x_like.architectures.design import Variant
from t5x_like.models import gpt
from t5x_like.nn.dims import Dims

gpt.VARIANTS["nano"] = Variant(
  Dims(embed=32, heads=4, kv_heads=4, head_dim=8, mlp=64, layers=2), gpt.GPT2, 50257
)


def get_config(arg: str = ""):
  config = gpt2_124m.get_config()
  laptop.shrink(config, "debug")
  config.model.variant = "nano"
  config.model.design = {"position": {"name": "learned", "length": 64}, "init_stddev": 0.3}
  config.evals = {}
  config.peak_flops = 1e11
  return config
