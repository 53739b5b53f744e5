"""A REALM as small as `nano.py`, on the facts of ten people, with an index of every three steps."""

from configs.realm import facts
from t5x_like import laptop
from t5x_like.architectures.design import Variant
from t5x_like.contrib.retrieval.models import realm
from t5x_like.contrib.retrieval.retriever_reader import RetrievalVariant
from t5x_like.models import bert, t5
from t5x_like.nn.dims import Dims

DIMS = Dims(embed=32, heads=4, kv_heads=4, head_dim=8, mlp=64, layers=1)
NANO = RetrievalVariant(Variant(DIMS, bert.DESIGN, 384), Variant(DIMS, t5.V1_1, 384), 16)
realm.VARIANTS["nano"] = NANO


def get_config(arg: str = ""):
  config = facts.get_config()
  data = config.task.to_dict() | {"source": "facts:30", "passages": "facts:30", "retrieved": 2}
  laptop.shrink(config, "debug", facts.LAPTOP)
  config.task = data
  config.train_split = "train"
  config.eval_split = "validation"
  config.model.variant = "nano"
  config.objective.refresh_every = 3
  config.schedule = {"name": "constant", "learning_rate": 1e-2}
  config.evals = {"open_qa": {"name": "open_qa"}}
  config.peak_flops = 1e11
  return config
