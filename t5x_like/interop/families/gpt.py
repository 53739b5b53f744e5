"""GPT and GPT-2."""

import dataclasses

from t5x_like.architectures.design import Variant
from t5x_like.interop import decoders, fused_tensors
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import gpt
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("openai-gpt", "gpt2")
MODELS = (gpt.Model,)
# its "gelu" is the tanh form
GPT1_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


def build(fields: Fields, names: set[str]):
  first = fields.values["model_type"] == "openai-gpt"
  if first:
    activation = fields.choose("afn", GPT1_ACTIVATIONS, "gelu")
    mlp = None
  else:
    activation = fields.choose("activation_function", decoders.PLAIN, "gelu_new")
    mlp = fields.take("n_inner", None)
    fields.only("scale_attn_weights", True)
    fields.only("scale_attn_by_inverse_layer_idx", False)
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
    decoders.special_ids(fields) if first else decoders.special_ids(fields, start=50256, eos=50256)
  )
  return gpt.Model, {"variant": Variant(dims, design, fields.take("vocab_size"), tokens)}


def config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = variant.dims
  first = design.norm_position == "post"
  decoders.refuse_others(
    model,
    mlp=first,
    norm="layernorm",
    norm_position=["pre", "post"],
    biases=("qkv", "out", "mlp"),
    tied=[True, False],
    activation=list((GPT1_ACTIVATIONS if first else decoders.PLAIN).values()),
  )
  common = {
    "vocab_size": variant.vocab_size,
    "n_positions": decoders.position_of(model, "learned", "length", "stddev").get("length", 512),
    "n_embd": dims.embed,
    "n_layer": dims.layers,
    "n_head": dims.heads,
    "layer_norm_epsilon": design.norm_epsilon,
    "tie_word_embeddings": design.tied,
    **decoders.ids_config(variant.tokens),
  }
  if first:
    afn = decoders.name_of(GPT1_ACTIVATIONS, design.activation)
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
    "activation_function": decoders.name_of(decoders.PLAIN, design.activation),
    **common,
  }


def renamed(name: str) -> str:
  """Add the prefix that files of the first models lack."""
  return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


def tensors(m: TensorMapping) -> None:
  first = m.model.variant.design.norm_position == "post"
  table, positions = ("tokens_embed", "positions_embed") if first else ("wte", "wpe")
  m.copy(f"transformer.{table}.weight", "embed/table")
  m.copy(f"transformer.{positions}.weight", "inputs/position/table")
  m.ignored = ("attn.bias", "attn.masked_bias", "position_ids")
  m.output(f"transformer.{table}.weight")
  if not first:
    m.norm("transformer.ln_f", "decoder/final_norm")
  norm = "out_norm" if first else "in_norm"
  layers = m.model.variant.dims.layers
  for layer, (_, at) in enumerate(locate_layers(m.model.decoder, layers)):
    theirs = f"transformer.h.{layer}"
    attention = "decoder/blocks/self_attention"
    mlp = "decoder/blocks/mlp"
    m.norm(f"{theirs}.ln_1", f"{attention}/{norm}", at)
    m.norm(f"{theirs}.ln_2", f"{mlp}/{norm}", at)
    fused_tensors.map_conv1d_qkv(m, f"{theirs}.attn.c_attn", f"{attention}/layer", at)
    fused_tensors.map_conv1d(m, f"{theirs}.attn.c_proj", f"{attention}/layer/out", at)
    fused_tensors.map_conv1d(m, f"{theirs}.mlp.c_fc", f"{mlp}/layer/wi", at)
    fused_tensors.map_conv1d(m, f"{theirs}.mlp.c_proj", f"{mlp}/layer/wo", at)
