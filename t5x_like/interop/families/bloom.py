"""BLOOM."""

import dataclasses

from t5x_like.architectures.design import Variant
from t5x_like.interop import decoders, fused_tensors
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import bloom
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("bloom",)
MODELS = (bloom.Model,)


def read_config(fields: Fields, tensor_names: set[str]):
  D = fields.take("n_embed", fields.take("hidden_size", None) or fields.values.get("n_embed", ...))
  heads = fields.take("n_head", fields.take("num_attention_heads", 8))
  layers = fields.take("n_layer", fields.take("num_hidden_layers", 2))
  fields.require("apply_residual_connection_post_layernorm", False)
  fields.require("n_inner", None, 4 * D)
  fields.ignore(
    "hidden_dropout",
    "attention_dropout",
    "slow_but_exact",
    "attention_softmax_in_fp32",
    "seq_length",
    "bias_dropout_fusion",
    "masked_softmax_fusion",
    "offset_alibi",
    "skip_bias_add",
    "skip_bias_add_qkv",
  )
  design = dataclasses.replace(
    bloom.DESIGN,
    norm_epsilon=fields.take("layer_norm_epsilon", 1e-5),
    tied=fields.take("tie_word_embeddings", True),
  )
  dims = Dims(D, heads, heads, D // heads, 4 * D, layers)
  tokens = decoders.read_special_tokens(fields, start=1, eos=2)
  return bloom.Model, {"variant": Variant(dims, design, fields.take("vocab_size"), tokens)}


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  decoders.require_plain_decoder(
    model,
    norm="layernorm",
    activation="gelu_tanh",
    biases=("qkv", "out", "mlp"),
    embed_norm=True,
    tied=[True, False],
  )
  decoders.require_position(model, "alibi")
  return {
    "architectures": ["BloomForCausalLM"],
    "model_type": "bloom",
    "vocab_size": variant.vocab_size,
    "hidden_size": variant.dims.embed,
    "n_layer": variant.dims.layers,
    "n_head": variant.dims.heads,
    "layer_norm_epsilon": design.norm_epsilon,
    "tie_word_embeddings": design.tied,
    **decoders.special_token_fields(variant.tokens),
  }


def canonical_name(name: str) -> str:
  """Add the prefix that the oldest files lack."""
  return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


def map_tensors(mapping: TensorMapping) -> None:
  mapping.copy("transformer.word_embeddings.weight", "embed/table")
  mapping.norm("transformer.word_embeddings_layernorm", "inputs/norm")
  mapping.norm("transformer.ln_f", "decoder/final_norm")
  mapping.output("transformer.word_embeddings.weight")
  dims = mapping.model.variant.dims
  for layer, (_, index) in enumerate(locate_layers(mapping.model.decoder, dims.layers)):
    hf_layer = f"transformer.h.{layer}"
    attention = "decoder/blocks/self_attention"
    mlp = "decoder/blocks/mlp"
    mapping.norm(f"{hf_layer}.input_layernorm", f"{attention}/in_norm", index)
    mapping.norm(f"{hf_layer}.post_attention_layernorm", f"{mlp}/in_norm", index)
    fused_tensors.map_grouped_qkv(
      mapping,
      f"{hf_layer}.self_attention.query_key_value",
      f"{attention}/layer",
      index,
      heads=dims.heads,
      kv_heads=dims.heads,
    )
    mapping.linear(f"{hf_layer}.self_attention.dense", f"{attention}/layer/out", index)
    mapping.linear(f"{hf_layer}.mlp.dense_h_to_4h", f"{mlp}/layer/wi", index)
    mapping.linear(f"{hf_layer}.mlp.dense_4h_to_h", f"{mlp}/layer/wo", index)
