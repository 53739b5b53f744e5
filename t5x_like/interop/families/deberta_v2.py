"""DeBERTa v3, whose files have the type of v2; v2 with its convolution or unshared projections is
not read."""

import dataclasses

from t5x_like.errors import UserError
from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.encoders import Head
from t5x_like.interop.families import bert
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import deberta
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("deberta-v2",)
MODELS = (deberta.Model,)
ATTENTION_NAMES = ("self.query_proj", "self.key_proj", "self.value_proj", "output.dense")
HEADS = (
  Head("ForMaskedLM", "mlm", bert.MLM),
  Head(
    "ForSequenceClassification",
    "classification",
    {"pooler.dense": "pooler/dense", "classifier": "out"},
    activation="gelu",
  ),
  Head("ForTokenClassification", "tokens", {"classifier": "out"}),
  Head("ForQuestionAnswering", "spans", {"qa_outputs": "out"}),
  Head("Model", "none", {}),
)


def read_config(fields: Fields, tensor_names: set[str]):
  for name, *values in (
    ("relative_attention", True),
    ("share_att_key", True),
    ("position_biased_input", False),
    ("norm_rel_ebd", "layer_norm"),
    ("type_vocab_size", 0),
    ("conv_kernel_size", 0, None),
    ("legacy", True),
    ("pooler_hidden_act", "gelu"),
    ("tie_word_embeddings", True),
    ("pos_att_type", ["p2c", "c2p"], ["c2p", "p2c"], "p2c|c2p", "c2p|p2c"),
    ("embedding_size", fields.values.get("hidden_size")),
    ("attention_head_size", None),
  ):
    fields.require(name, *values)
  for name in (
    "relative_attention",
    "share_att_key",
    "position_biased_input",
    "norm_rel_ebd",
    "pos_att_type",
  ):
    fields.take(name)  # required: their defaults are of other models
  fields.ignore(
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "pooler_dropout",
    "pooler_hidden_size",
    "cls_dropout",
  )
  D = fields.take("hidden_size")
  N = fields.take("num_attention_heads")
  dims = Dims(D, N, N, D // N, fields.take("intermediate_size"), fields.take("num_hidden_layers"))
  design = dataclasses.replace(
    deberta.DESIGN,
    norm_epsilon=fields.take("layer_norm_eps", 1e-7),
    activation=fields.choose("hidden_act", encoders.ACTIVATIONS, "gelu"),
    attention_scale=(3 * dims.head_dim) ** -0.5,
    init_stddev=fields.values.get("initializer_range", 0.02),
  )
  positions = fields.take("max_position_embeddings", 512)
  distance = fields.take("max_relative_positions", -1)
  variant = deberta.DebertaVariant(
    dims,
    design,
    fields.take("vocab_size"),
    encoders.read_special_tokens(fields, deberta.TOKENS),
    head=encoders.read_head(fields, tensor_names, "DebertaV2", HEADS),
    buckets=fields.take("position_buckets"),
    max_distance=distance if distance > 0 else positions,
  )
  return deberta.Model, {"variant": variant}


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  encoders.require_bert_design(model, attention_scale=(3 * dims.head_dim) ** -0.5)
  if (
    dims.kv_heads != dims.heads
    or dims.head_dim * dims.heads != dims.embed
    or variant.types
    or variant.embed
  ):
    raise UserError(
      f"{dims} with types={variant.types}: deberta-v2 has heads that share the "
      "width, and no token types"
    )
  head, head_fields = encoders.write_head("deberta-v2", variant, HEADS)
  return {
    "architectures": [f"DebertaV2{head.task}"],
    "model_type": "deberta-v2",
    "vocab_size": variant.vocab_size,
    "hidden_size": dims.embed,
    "num_hidden_layers": dims.layers,
    "num_attention_heads": dims.heads,
    "intermediate_size": dims.mlp,
    "hidden_act": find_key(encoders.ACTIVATIONS, design.activation),
    "max_position_embeddings": variant.max_distance,
    "max_relative_positions": variant.max_distance,
    "position_buckets": variant.buckets,
    "type_vocab_size": 0,
    "layer_norm_eps": design.norm_epsilon,
    "initializer_range": design.init_stddev or 0.02,
    "relative_attention": True,
    "share_att_key": True,
    "position_biased_input": False,
    "norm_rel_ebd": "layer_norm",
    "pos_att_type": ["p2c", "c2p"],
    "pad_token_id": variant.tokens.pad,
    "tie_word_embeddings": True,
    **head_fields,
  }


def map_tensors(mapping: TensorMapping) -> None:
  body = encoders.map_embeddings_and_head(mapping, "deberta", HEADS)
  mapping.copy(f"{body}encoder.rel_embeddings.weight", "encoder/distances")
  mapping.norm(f"{body}encoder.LayerNorm", "encoder/distance_norm")
  mapping.tied = {
    "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
  }
  mapping.ignored_suffixes += (
    "position_embeddings.weight",
    "mask_predictions.dense.weight",
    "mask_predictions.dense.bias",
  )
  for layer, (_, index) in enumerate(
    locate_layers(mapping.model.encoder, mapping.model.variant.dims.layers)
  ):
    encoders.map_layer(mapping, f"{body}encoder.layer.{layer}", index, ATTENTION_NAMES)
