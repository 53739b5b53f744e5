"""XLM, the encoder, with or without language embeddings."""

import dataclasses

from t5x_like.errors import UserError
from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.encoders import Head
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import xlm
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("xlm",)
MODELS = (xlm.Model,)
HEADS = (
  Head("WithLMHeadModel", "linear_mlm", {"pred_layer.proj.bias": "lm/bias"}),
  Head("ForTokenClassification", "tokens", {"classifier": "out"}),
  Head("ForQuestionAnsweringSimple", "spans", {"qa_outputs": "out"}),
  Head("Model", "none", {}),
)


def read_config(fields: Fields, tensor_names: set[str]):
  fields.require("sinusoidal_embeddings", False)
  fields.require("causal", False)
  fields.require("asm", False)
  fields.require("is_encoder", True)
  fields.require("tie_word_embeddings", True)
  fields.ignore(
    "dropout",
    "attention_dropout",
    "embed_init_std",
    "init_std",
    "start_n_top",
    "end_n_top",
    "share_inout",
    "unk_index",
    "mask_index",
    "bos_index",
    "eos_index",
    "pad_index",
    "n_words",
    "lang_id",
    "id2lang",
    "lang2id",
    "max_vocab",
    "min_count",
    "same_enc_dec",
  )
  D = fields.take("emb_dim", 2048)
  N = fields.take("n_heads", 16)
  design = dataclasses.replace(
    xlm.VARIANTS["xlm-xnli15"].design,
    norm_epsilon=fields.take("layer_norm_eps", 1e-12),
    activation="gelu" if fields.take("gelu_activation", True) else "relu",
    position={"name": "learned", "length": fields.take("max_position_embeddings", 512)},
  )
  num_languages = fields.take("n_langs", 1)
  if num_languages == 1 or not fields.take("use_lang_emb", True):
    num_languages = 0
  fields.ignore("use_lang_emb")
  variant = dataclasses.replace(
    xlm.VARIANTS["xlm-xnli15"],
    dims=Dims(
      embed=D,
      heads=N,
      kv_heads=N,
      head_dim=D // N,
      mlp=4 * D,
      layers=fields.take("n_layers", 12),
    ),
    design=design,
    vocab_size=fields.take("vocab_size", 30_145),
    tokens=encoders.read_special_tokens(fields, xlm.TOKENS),
    types=num_languages,
    head=encoders.read_head(fields, tensor_names, "XLM", HEADS),
  )
  return xlm.Model, {"variant": variant}


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = variant.design
  dims = variant.dims
  encoders.require_bert_design(model, activation=["gelu", "relu"])
  position = {"name": design.position} if isinstance(design.position, str) else design.position
  if not isinstance(position, dict) or position["name"] != "learned" or position.get("offset"):
    raise UserError(
      f"design.position is {design.position!r}; xlm supports only 'learned' without an offset"
    )
  sizes = (dims.kv_heads, dims.head_dim * dims.heads, dims.mlp)
  xlm_sizes = (dims.heads, dims.embed, 4 * dims.embed)
  if sizes != xlm_sizes or variant.embed or variant.types == 1:
    raise UserError(
      f"{dims} with types={variant.types}, embed={variant.embed}: xlm has heads that share the "
      "width, an MLP four times as wide, token embeddings as wide as the stack, and either no "
      "language embeddings or several"
    )
  head, head_fields = encoders.write_head("xlm", variant, HEADS)
  return {
    "architectures": [f"XLM{head.task}"],
    "model_type": "xlm",
    "vocab_size": variant.vocab_size,
    "emb_dim": dims.embed,
    "n_layers": dims.layers,
    "n_heads": dims.heads,
    "n_langs": variant.types or 1,
    "use_lang_emb": variant.types > 0,
    "gelu_activation": design.activation == "gelu",
    "max_position_embeddings": position.get("length", 512),
    "layer_norm_eps": design.norm_epsilon,
    "pad_token_id": variant.tokens.pad,
    "bos_token_id": variant.tokens.start,
    "eos_token_id": variant.tokens.eos,
    "tie_word_embeddings": True,
    **head_fields,
  }


def map_tensors(mapping: TensorMapping) -> None:
  variant = mapping.model.variant
  name = variant.head["name"] if isinstance(variant.head, dict) else variant.head
  head = next(head for head in HEADS if head.name == name)
  body = "" if head.task == "Model" else "transformer."
  mapping.ignored_suffixes = ("position_ids",)
  mapping.tied = {"pred_layer.proj.weight": "transformer.embeddings.weight"}
  mapping.copy(f"{body}embeddings.weight", "embed/table")
  mapping.copy(f"{body}position_embeddings.weight", "inputs/position/table")
  if variant.types:
    mapping.copy(f"{body}lang_embeddings.weight", "inputs/types/table")
  mapping.norm(f"{body}layer_norm_emb", "inputs/norm")
  path = "encoder/blocks"
  attention = ("q_lin", "k_lin", "v_lin", "out_lin")
  for layer, (_, index) in enumerate(locate_layers(mapping.model.encoder, variant.dims.layers)):
    mapping.attention(
      f"{body}attentions.{layer}", f"{path}/self_attention/layer", index, names=attention
    )
    mapping.norm(f"{body}layer_norm1.{layer}", f"{path}/self_attention/out_norm", index)
    mapping.linear(f"{body}ffns.{layer}.lin1", f"{path}/mlp/layer/wi", index)
    mapping.linear(f"{body}ffns.{layer}.lin2", f"{path}/mlp/layer/wo", index)
    mapping.norm(f"{body}layer_norm2.{layer}", f"{path}/mlp/out_norm", index)
  encoders.map_head(mapping, head)
