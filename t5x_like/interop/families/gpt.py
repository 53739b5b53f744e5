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
# its "gelu" is the tanh form
GPT1_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


def read_config(fields: Fields, tensor_names: set[str]):
  first = fields.values["model_type"] == "openai-gpt"
  if first:
    activation = fields.choose("afn", GPT1_ACTIVATIONS, "gelu")
    mlp = None
  else:
    activation = fields.choose("activation_function", decoders.PLAIN_ACTIVATIONS, "gelu_new")
    mlp = fields.take("n_inner", None)
    fields.require("scale_attn_weights", True)
    fields.require("scale_attn_by_inverse_layer_idx", False)
    fields.ignore("reorder_and_upcast_attn")  # the same in float32
  fields.ignore("n_ctx", "resid_pdrop", "embd_pdrop", "attn_pdrop")
  plain = gpt.GPT1 if first else gpt.GPT2
  design = dataclasses.replace(
    plain,
    activation=activation,
    norm_epsilon=fields.take("layer_norm_epsilon", 1e-5),
    position=plain.position | {"length": fields.take("n_positions", plain.position["length"])},
    tied=fields.take("tie_word_embeddings", True),
  )
  D = fields.take("n_embd", 768)
  heads = fields.take("n_head", 12)
  layers = fields.take("n_layer", 12)
  dims = Dims(D, heads, heads, D // heads, mlp or 4 * D, layers)
  tokens = (
    decoders.read_special_tokens(fields)
    if first
    else decoders.read_special_tokens(fields, start=50256, eos=50256)
  )
  return gpt.Model, {"variant": Variant(dims, design, fields.take("vocab_size"), tokens)}


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = variant.dims
  first = design.norm_position == "post"
  decoders.require_plain_decoder(
    model,
    mlp=first,
    norm="layernorm",
    norm_position=["pre", "post"],
    biases=("qkv", "out", "mlp"),
    tied=[True, False],
    activation=list((GPT1_ACTIVATIONS if first else decoders.PLAIN_ACTIVATIONS).values()),
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
  if first:
    afn = find_key(GPT1_ACTIVATIONS, design.activation)
    return {
      "architectures": ["OpenAIGPTLMHeadModel"],
      "model_type": "openai-gpt",
      "afn": afn,
      **common,
    }
  return {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_inner": dims.mlp,
    "activation_function": find_key(decoders.PLAIN_ACTIVATIONS, design.activation),
    **common,
  }


def canonical_name(name: str) -> str:
  """Add the prefix that files of the first models lack."""
  return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


def map_tensors(mapping: TensorMapping) -> None:
  first = mapping.model.variant.design.norm_position == "post"
  table, positions = ("tokens_embed", "positions_embed") if first else ("wte", "wpe")
  mapping.copy(f"transformer.{table}.weight", "embed/table")
  mapping.copy(f"transformer.{positions}.weight", "inputs/position/table")
  mapping.ignored_suffixes = ("attn.bias", "attn.masked_bias", "position_ids")
  mapping.output(f"transformer.{table}.weight")
  if not first:
    mapping.norm("transformer.ln_f", "decoder/final_norm")
  norm = "out_norm" if first else "in_norm"
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
