"""RoBERTa and XLM-RoBERTa.

The classification head of `transformers` applies dropout twice in training, ours only once, after
its first layer.
"""

from t5x_like.errors import UserError
from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.encoders import Head
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import roberta

MODEL_TYPES = ("roberta", "xlm-roberta")
MODELS = (roberta.Model,)
CLASSES = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta"}

HEADS = (
  Head(
    "ForMaskedLM",
    "mlm",
    {"lm_head.dense": "dense", "lm_head.layer_norm": "norm", "lm_head.bias": "lm/bias"},
  ),
  Head(
    "ForSequenceClassification",
    "classification",
    {"classifier.dense": "pooler/dense", "classifier.out_proj": "out"},
  ),
  Head(
    "ForMultipleChoice",
    "multiple_choice",
    {"roberta.pooler.dense": "pooler/dense", "classifier": "out"},
  ),
  Head("ForTokenClassification", "tokens", {"classifier": "out"}),
  Head("ForQuestionAnswering", "spans", {"qa_outputs": "out"}),
  Head("Model", "pooled", {"pooler.dense": "pooler/dense"}),
  Head("Model", "none", {}),
)


def read_config(fields: Fields, tensor_names: set[str]):
  fields.take("pad_token_id")  # the offset of positions, see `write_config`
  # The language model head of `transformers` always applies GELU.
  activation = fields.choose("hidden_act", {"gelu": "gelu"}, "gelu")
  base = roberta.VARIANTS["roberta-base"]
  prefix = CLASSES[fields.values["model_type"]]
  return roberta.Model, {
    "variant": encoders.read_variant(
      fields, tensor_names, base, prefix, HEADS, activation=activation
    )
  }


def write_config(model, model_type: str | None) -> dict:
  if model_type not in CLASSES:
    model_type = "roberta"
  tokens = model.variant.tokens
  if tokens.pad is None:
    raise UserError(
      f"tokens.pad is None, but {model_type} counts positions from the padding id; set it"
    )
  values = encoders.write_config(
    model, model_type, CLASSES[model_type], HEADS, offset=tokens.pad + 1, activation="gelu"
  )
  return values | {"bos_token_id": tokens.start, "eos_token_id": tokens.eos}


def map_tensors(mapping: TensorMapping) -> None:
  encoders.map_tensors(mapping, "roberta", HEADS)
  mapping.tied = {
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
  }
