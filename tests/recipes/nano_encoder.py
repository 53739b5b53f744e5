"""A BERT as small as `nano.py`, on rows of 64 bytes."""

from configs.bert import base
from t5x_like import laptop
from t5x_like.architectures.design import Variant
from t5x_like.models import bert
from t5x_like.nn.dims import Dims

bert.VARIANTS["nano"] = Variant(Dims(32, 4, 4, 8, 64, 2), bert.DESIGN, 30522, bert.TOKENS, types=2)


def get_config(arg: str = ""):
  config = base.get_config()
  laptop.shrink(config, "debug")
  config.model.variant = "nano"
  config.model.design = {"init_stddev": 0.3}
  config.phases = {}
  # The second step has the rate of a longer run, with which tests continue.
  config.schedule.decay = "after_warmup"
  config.evals = {}
  config.peak_flops = 1e11
  return config
