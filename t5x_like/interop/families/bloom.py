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


def build(fields: Fields, names: set[str]):
  D = fields.take("n_embed", fields.take("hidden_size", None) or fields.values.get("n_embed", ...))
  heads = fields.take("n_head", fields.take("num_attention_heads", 8))
  layers = fields.take("n_layer", fields.take("num_hidden_layers", 2))
  fields.only("apply_residual_connection_post_layernorm", False)
  fields.only("n_inner", None, 4 * D)
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
  tokens = decoders.special_ids(fields, start=1, eos=2)
  return bloom.Model, {"variant": Variant(dims, design, fields.take("vocab_size"), tokens)}


def config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  decoders.refuse_others(
    model,
    norm="layernorm",
    activation="gelu_tanh",
    biases=("qkv", "out", "mlp"),
    embed_norm=True,
    tied=[True, False],
  )
  decoders.position_of(model, "alibi")
  return {
    "architectures": ["BloomForCausalLM"],
    "model_type": "bloom",
    "vocab_size": variant.vocab_size,
    "hidden_size": variant.dims.embed,
    "n_layer": variant.dims.layers,
    "n_head": variant.dims.heads,
    "layer_norm_epsilon": design.norm_epsilon,
    "tie_word_embeddings": design.tied,
    **decoders.ids_config(variant.tokens),
  }


def renamed(name: str) -> str:
  """Add the prefix that the oldest files lack."""
  return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


def tensors(m: TensorMapping) -> None:
  m.copy("transformer.word_embeddings.weight", "embed/table")
  m.norm("transformer.word_embeddings_layernorm", "inputs/norm")
  m.norm("transformer.ln_f", "decoder/final_norm")
  m.output("transformer.word_embeddings.weight")
  dims = m.model.variant.dims
  for layer, (_, at) in enumerate(locate_layers(m.model.decoder, dims.layers)):
    theirs = f"transformer.h.{layer}"
    attention = "decoder/blocks/self_attention"
    mlp = "decoder/blocks/mlp"
    m.norm(f"{theirs}.input_layernorm", f"{attention}/in_norm", at)
    m.norm(f"{theirs}.post_attention_layernorm", f"{mlp}/in_norm", at)
    fused_tensors.map_grouped_qkv(
      m,
      f"{theirs}.self_attention.query_key_value",
      f"{attention}/layer",
      at,
      heads=dims.heads,
      kv_heads=dims.heads,
    )
    m.linear(f"{theirs}.self_attention.dense", f"{attention}/layer/out", at)
    m.linear(f"{theirs}.mlp.dense_h_to_4h", f"{mlp}/layer/wi", at)
    m.linear(f"{theirs}.mlp.dense_4h_to_h", f"{mlp}/layer/wo", at)
