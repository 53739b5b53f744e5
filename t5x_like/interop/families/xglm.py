"""XGLM."""

import dataclasses

from t5x_like.architectures.design import Variant
from t5x_like.interop import decoders
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import xglm
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("xglm",)
MODELS = (xglm.Model,)
BODY_PREFIX = "model."
ATTENTION_NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


def read_config(fields: Fields, tensor_names: set[str]):
  fields.require("tie_word_embeddings", True)
  fields.ignore(
    "max_position_embeddings", "dropout", "attention_dropout", "activation_dropout", "layerdrop"
  )
  D = fields.take("d_model", 1024)
  heads = fields.take("attention_heads", 16)
  design = dataclasses.replace(
    xglm.DESIGN,
    activation=fields.choose("activation_function", decoders.PLAIN_ACTIVATIONS, "gelu"),
    embed_scale=fields.take("scale_embedding", True),
  )
  dims = Dims(
    D, heads, heads, D // heads, fields.take("ffn_dim", 4096), fields.take("num_layers", 24)
  )
  start = fields.values.get("decoder_start_token_id")
  tokens = decoders.read_special_tokens(fields, pad=1, eos=2)
  tokens = dataclasses.replace(tokens, start=2 if start is None else start)
  return xglm.Model, {"variant": Variant(dims, design, fields.take("vocab_size", 256_008), tokens)}


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  decoders.require_plain_decoder(
    model,
    mlp=False,
    norm="layernorm",
    norm_epsilon=1e-5,
    biases=("qkv", "out", "mlp"),
    embed_scale=[True, False],
    activation=list(decoders.PLAIN_ACTIVATIONS.values()),
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
    "activation_function": find_key(decoders.PLAIN_ACTIVATIONS, design.activation),
    "scale_embedding": design.embed_scale,
    "pad_token_id": variant.tokens.pad,
    "bos_token_id": 0,
    "eos_token_id": variant.tokens.eos,
    "decoder_start_token_id": variant.tokens.start,
  }


def map_tensors(mapping: TensorMapping) -> None:
  mapping.copy("model.embed_tokens.weight", "embed/table")
  mapping.tied["lm_head.weight"] = "model.embed_tokens.weight"
  mapping.ignored_suffixes = ("embed_positions.weights",)  # sines and cosines
  mapping.norm("model.layer_norm", "decoder/final_norm")
  for layer, (_, index) in enumerate(
    locate_layers(mapping.model.decoder, mapping.model.variant.dims.layers)
  ):
    hf_layer = f"model.layers.{layer}"
    attention = "decoder/blocks/self_attention"
    mlp = "decoder/blocks/mlp"
    mapping.norm(f"{hf_layer}.self_attn_layer_norm", f"{attention}/in_norm", index)
    mapping.norm(f"{hf_layer}.final_layer_norm", f"{mlp}/in_norm", index)
    mapping.attention(f"{hf_layer}.self_attn", f"{attention}/layer", index, names=ATTENTION_NAMES)
    mapping.linear(f"{hf_layer}.fc1", f"{mlp}/layer/wi", index)
    mapping.linear(f"{hf_layer}.fc2", f"{mlp}/layer/wo", index)
