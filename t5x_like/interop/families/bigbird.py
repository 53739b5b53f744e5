"""BigBird.

`attention_type` "block_sparse" becomes the bigbird core with the library's plan for evaluation,
where the first block replaces every random block; to train, choose another plan with `design.core =
{"name": "bigbird", …}`. Both plans are written as "block_sparse". For sequences that are too short,
the library switches to full attention; our core refuses them, and `design.core = "dense"` computes
full attention.
"""

from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.encoders import Head
from t5x_like.interop.families.bert import MLM, NEXT
from t5x_like.interop.hf import require_design
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import bigbird
from t5x_like.nn.cores.auto import EXACT_CORES

MODEL_TYPES = ("big_bird",)
MODELS = (bigbird.Model,)

POOLER = {"bert.pooler": "pooler/dense"}
PRETRAINING = encoders.nest_paths("mlm", MLM) | POOLER | NEXT
HEADS = (
  Head("ForPreTraining", "pretraining", PRETRAINING),
  Head("ForMaskedLM", "mlm", MLM),
  Head(
    "ForSequenceClassification",
    "classification",
    {"classifier.dense": "pooler/dense", "classifier.out_proj": "out"},
    activation="gelu_tanh",
  ),
  Head("ForMultipleChoice", "multiple_choice", POOLER | {"classifier": "out"}),
  Head("ForTokenClassification", "tokens", {"classifier": "out"}),
  Head("Model", "pooled", {"pooler": "pooler/dense"}),
  Head("Model", "none", {}),
)


def read_config(fields: Fields, tensor_names: set[str]):
  is_sparse = fields.choose(
    "attention_type", {"block_sparse": True, "original_full": False}, "block_sparse"
  )
  sparse_core = {
    "name": "bigbird",
    "block": fields.take("block_size", 64),
    "random_blocks": fields.take("num_random_blocks", 3),
    "plan": "first",
  }
  variant = encoders.read_variant(
    fields,
    tensor_names,
    bigbird.VARIANTS["bigbird-roberta-base"],
    "BigBird",
    HEADS,
    length=4096,
    activation=fields.choose(
      "hidden_act", {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}, "gelu_new"
    ),
    biases=("qkv", "out", "mlp") if fields.take("use_bias", True) else ("out", "mlp"),
    embed_scale=fields.take("rescale_embeddings", False),
    core=sparse_core if is_sparse else "auto",
  )
  return bigbird.Model, {"variant": variant}


def write_config(model, model_type: str | None) -> dict:
  design = model.variant.design
  biases = [("qkv", "out", "mlp"), ("out", "mlp")]
  values = encoders.write_config(
    model,
    "big_bird",
    "BigBird",
    HEADS,
    activation="gelu_tanh",
    biases=biases,
    embed_scale=[False, True],
    core=[design.core],
  )
  values |= {
    "bos_token_id": model.variant.tokens.start,
    "eos_token_id": model.variant.tokens.eos,
    "use_bias": "qkv" in design.biases,
    "rescale_embeddings": design.embed_scale,
  }
  core = {"name": design.core} if isinstance(design.core, str) else design.core
  if core.get("name") != "bigbird":
    require_design(model, core=[*EXACT_CORES, "bigbird"])
    return values | {"attention_type": "original_full"}
  return values | {
    "attention_type": "block_sparse",
    "block_size": core.get("block", 64),
    "num_random_blocks": core.get("random_blocks", 3),
  }


def map_tensors(mapping: TensorMapping) -> None:
  encoders.map_tensors(mapping, "bert", HEADS)
  mapping.tied = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
  }
