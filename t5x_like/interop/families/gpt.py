"""GPT and GPT-2."""

import dataclasses

from t5x_like.architectures.design import Variant
from t5x_like.interop import decoders, fused_tensors
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import gpt
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("openai-gpt", "gpt2")
MODELS = (gpt.Model,)
# The "gelu" of GPT is the approximation by tanh.
GPT1_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


def read_config(fields: Fields, tensor_names: set[str]):
  is_gpt1 = fields.values["model_type"] == "openai-gpt"
  if is_gpt1:
    activation = fields.choose("afn", GPT1_ACTIVATIONS, "gelu")
    mlp = None
  else:
    activation = fields.choose("activation_function", decoders.PLAIN_ACTIVATIONS, "gelu_new")
    mlp = fields.take("n_inner", None)
    fields.require("scale_attn_weights", True)
    fields.require("scale_attn_by_inverse_layer_idx", False)
    fields.ignore("reorder_and_upcast_attn")  # the same in float32
  fields.ignore("n_ctx", "resid_pdrop", "embd_pdrop", "attn_pdrop")
  published = gpt.GPT1 if is_gpt1 else gpt.GPT2
  length = fields.take("n_positions", published.position["length"])
  design = dataclasses.replace(
    published,
    activation=activation,
    norm_epsilon=fields.take("layer_norm_epsilon", 1e-5),
    position=published.position | {"length": length},
    tied=fields.take("tie_word_embeddings", True),
  )
  D = fields.take("n_embd", 768)
  heads = fields.take("n_head", 12)
  layers = fields.take("n_layer", 12)
  dims = Dims(D, heads, heads, D // heads, mlp or 4 * D, layers)
  default = None if is_gpt1 else 50256
  tokens = decoders.read_special_tokens(fields, start=default, eos=default)
  return gpt.Model, {"variant": Variant(dims, design, fields.take("vocab_size"), tokens)}


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = variant.dims
  is_gpt1 = design.norm_position == "post"
  activations = GPT1_ACTIVATIONS if is_gpt1 else decoders.PLAIN_ACTIVATIONS
  decoders.require_plain_decoder(
    model,
    mlp=is_gpt1,
    norm="layernorm",
    norm_position=["pre", "post"],
    biases=("qkv", "out", "mlp"),
    tied=[True, False],
    activation=list(activations.values()),
  )
  common = {
    "vocab_size": variant.vocab_size,
    "n_positions": decoders.require_position(model, "learned", "length", "stddev").get(
      "length", 512
    ),
    "n_embd": dims.embed,
    "n_layer": dims.layers,
    "n_head": dims.heads,
    "layer_norm_epsilon": design.norm_epsilon,
    "tie_word_embeddings": design.tied,
    **decoders.special_token_fields(variant.tokens),
  }
  activation = find_key(activations, design.activation)
  if is_gpt1:
    return {
      "architectures": ["OpenAIGPTLMHeadModel"],
      "model_type": "openai-gpt",
      "afn": activation,
      **common,
    }
  return {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_inner": dims.mlp,
    "activation_function": activation,
    **common,
  }


def canonical_name(name: str) -> str:
  """Add the prefix that files of the first models lack."""
  return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


def map_tensors(mapping: TensorMapping) -> None:
  is_gpt1 = mapping.model.variant.design.norm_position == "post"
  table = "tokens_embed" if is_gpt1 else "wte"
  positions = "positions_embed" if is_gpt1 else "wpe"
  mapping.copy(f"transformer.{table}.weight", "embed/table")
  mapping.copy(f"transformer.{positions}.weight", "inputs/position/table")
  mapping.ignored_suffixes = ("attn.bias", "attn.masked_bias", "position_ids")
  mapping.output(f"transformer.{table}.weight")
  if not is_gpt1:
    mapping.norm("transformer.ln_f", "decoder/final_norm")
  norm = "out_norm" if is_gpt1 else "in_norm"
  layers = mapping.model.variant.dims.layers
  for layer, (_, index) in enumerate(locate_layers(mapping.model.decoder, layers)):
    hf_layer = f"transformer.h.{layer}"
    attention = "decoder/blocks/self_attention"
    mlp = "decoder/blocks/mlp"
    mapping.norm(f"{hf_layer}.ln_1", f"{attention}/{norm}", index)
    mapping.norm(f"{hf_layer}.ln_2", f"{mlp}/{norm}", index)
    fused_tensors.map_conv1d_qkv(mapping, f"{hf_layer}.attn.c_attn", f"{attention}/layer", index)
    fused_tensors.map_conv1d(mapping, f"{hf_layer}.attn.c_proj", f"{attention}/layer/out", index)
    fused_tensors.map_conv1d(mapping, f"{hf_layer}.mlp.c_fc", f"{mlp}/layer/wi", index)
    fused_tensors.map_conv1d(mapping, f"{hf_layer}.mlp.c_proj", f"{mlp}/layer/wo", index)
