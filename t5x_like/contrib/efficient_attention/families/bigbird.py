"""Configs and tensors of BigBird.

`attention_type` "block_sparse" becomes the bigbird core with Transformers' plan for evaluation, in
which the first block replaces every random block. To train, choose another plan with
`design.core = {"name": "bigbird", …}`. Both plans are written as "block_sparse". Transformers
switches to full attention for sequences that are too short; our core refuses them, and
`design.core = "dense"` computes full attention.
"""

from typing import Any

from t5x_like.architectures.design import Variant
from t5x_like.contrib.efficient_attention.models import bigbird
from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Choice, Custom, Field, ModelType
from t5x_like.interop.encoders import Classes, EncoderTensors, Head, SpecialTokens
from t5x_like.interop.families.bert import MLM, NEXT_SENTENCE, TIED

POOLER = {"bert.pooler": "pooler/dense"}
PRETRAINING = encoders.nest_paths("mlm", MLM) | POOLER | NEXT_SENTENCE
HEADS = (
  Head("ForPreTraining", "pretraining", PRETRAINING),
  Head("ForMaskedLM", "mlm", MLM),
  Head(
    "ForSequenceClassification",
    "classification",
    {"classifier.dense": "pooler/dense", "classifier.out_proj": "out"},
    arguments={"activation": "gelu_tanh"},
  ),
  Head("ForMultipleChoice", "multiple_choice", POOLER | {"classifier": "out"}),
  Head("ForTokenClassification", "tokens", {"classifier": "out"}),
  Head("Model", "pooled", {"pooler": "pooler/dense"}),
  Head("Model", "none", {}),
)
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
BIASES = {True: ("qkv", "out", "mlp"), False: ("out", "mlp")}


def _read_core(fields: Fields) -> dict[str, Any]:
  sparse_core = {
    "name": "bigbird",
    "block": fields.take("block_size", 64),
    "random_blocks": fields.take("num_random_blocks", 3),
    "plan": "first",
  }
  cores = {"block_sparse": sparse_core, "original_full": "auto"}
  return {"design.core": fields.choose("attention_type", cores, "block_sparse")}


def _write_core(variant: Variant) -> dict[str, Any]:
  core = variant.design.core
  arguments = {"name": core} if isinstance(core, str) else core
  if "name" not in arguments or arguments["name"] != "bigbird":
    return {"attention_type": "original_full"}
  return {
    "attention_type": "block_sparse",
    "block_size": arguments.get("block", 64),
    "num_random_blocks": arguments.get("random_blocks", 3),
  }


BIG_BIRD = (
  *encoders.BODY,
  Field("max_position_embeddings", "design.position.length", default=4096),
  Choice("hidden_act", "design.activation", ACTIVATIONS, default="gelu_new"),
  Choice("use_bias", "design.biases", BIASES, default=True),
  Field("rescale_embeddings", "design.embed_scale", default=False),
  Custom(_read_core, _write_core),
  SpecialTokens(bigbird.TOKENS, "bos_token_id", "eos_token_id"),
  Classes("BigBird", HEADS),
)
TYPES = (
  ModelType(
    "big_bird",
    "",
    bigbird.Model,
    bigbird.VARIANTS["bigbird-roberta-base"],
    BIG_BIRD,
    EncoderTensors("bert", HEADS, encoders.TENSORS),
    tied=TIED,
    **encoders.FILES,
  ),
)
