"""XGLM."""

import dataclasses

from t5x_like.architectures.design import Variant
from t5x_like.interop import decoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import xglm
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("xglm",)
MODELS = (xglm.Model,)
BODY_PREFIX = "model."
NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


def build(fields: Fields, names: set[str]):
  fields.only("tie_word_embeddings", True)
  fields.ignore(
    "max_position_embeddings", "dropout", "attention_dropout", "activation_dropout", "layerdrop"
  )
  D = fields.take("d_model", 1024)
  heads = fields.take("attention_heads", 16)
  design = dataclasses.replace(
    xglm.DESIGN,
    activation=fields.choose("activation_function", decoders.PLAIN, "gelu"),
    embed_scale=fields.take("scale_embedding", True),
  )
  dims = Dims(
    D, heads, heads, D // heads, fields.take("ffn_dim", 4096), fields.take("num_layers", 24)
  )
  start = fields.values.get("decoder_start_token_id")
  tokens = decoders.special_ids(fields, pad=1, eos=2)
  tokens = dataclasses.replace(tokens, start=2 if start is None else start)
  return xglm.Model, {"variant": Variant(dims, design, fields.take("vocab_size", 256_008), tokens)}


def config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  decoders.refuse_others(
    model,
    mlp=False,
    norm="layernorm",
    norm_epsilon=1e-5,
    biases=("qkv", "out", "mlp"),
    embed_scale=[True, False],
    activation=list(decoders.PLAIN.values()),
    position=[xglm.DESIGN.position],
  )
  return {
    "architectures": ["XGLMForCausalLM"],
    "model_type": "xglm",
    "vocab_size": variant.vocab_size,
    "d_model": dims.embed,
    "ffn_dim": dims.mlp,
    "num_layers": dims.layers,
    "attention_heads": dims.heads,
    "activation_function": decoders.name_of(decoders.PLAIN, design.activation),
    "scale_embedding": design.embed_scale,
    "pad_token_id": variant.tokens.pad,
    "bos_token_id": 0,
    "eos_token_id": variant.tokens.eos,
    "decoder_start_token_id": variant.tokens.start,
  }


def tensors(m: TensorMapping) -> None:
  m.copy("model.embed_tokens.weight", "embed/table")
  m.copies["lm_head.weight"] = "model.embed_tokens.weight"
  m.ignored = ("embed_positions.weights",)  # sines and cosines
  m.norm("model.layer_norm", "decoder/final_norm")
  for layer, (_, at) in enumerate(locate_layers(m.model.decoder, m.model.variant.dims.layers)):
    theirs = f"model.layers.{layer}"
    attention = "decoder/blocks/self_attention"
    mlp = "decoder/blocks/mlp"
    m.norm(f"{theirs}.self_attn_layer_norm", f"{attention}/in_norm", at)
    m.norm(f"{theirs}.final_layer_norm", f"{mlp}/in_norm", at)
    m.attention(f"{theirs}.self_attn", f"{attention}/layer", at, names=NAMES)
    m.linear(f"{theirs}.fc1", f"{mlp}/layer/wi", at)
    m.linear(f"{theirs}.fc2", f"{mlp}/layer/wo", at)
