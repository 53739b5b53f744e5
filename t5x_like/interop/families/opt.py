"""OPT."""

import dataclasses

from t5x_like.architectures.design import Variant
from t5x_like.interop import decoders
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import opt
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("opt",)
MODELS = (opt.Model,)
ATTENTION_NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


def read_config(fields: Fields, tensor_names: set[str]):
  fields.require("enable_bias", True)
  fields.require("layer_norm_elementwise_affine", True)
  fields.require("_remove_final_layer_norm", False)
  fields.require("tie_word_embeddings", True)
  fields.ignore("dropout", "attention_dropout", "activation_dropout", "layerdrop")
  D = fields.take("hidden_size", 768)
  heads = fields.take("num_attention_heads", 12)
  design = dataclasses.replace(
    opt.DESIGN,
    norm_position="pre" if fields.take("do_layer_norm_before", True) else "post",
    activation=fields.choose("activation_function", decoders.PLAIN_ACTIVATIONS, "relu"),
    position={
      "name": "learned",
      "length": fields.take("max_position_embeddings", 2048),
      "offset": 2,
    },
  )
  dims = Dims(
    D, heads, heads, D // heads, fields.take("ffn_dim", 3072), fields.take("num_hidden_layers", 12)
  )
  table = fields.take("word_embed_proj_dim", D)
  tokens = decoders.read_special_tokens(fields, pad=1, start=2, eos=2)
  variant = Variant(
    dims, design, fields.take("vocab_size", 50272), tokens, embed=None if table == D else table
  )
  return opt.Model, {"variant": variant}


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  decoders.require_plain_decoder(
    model,
    mlp=False,
    norm="layernorm",
    norm_epsilon=1e-5,
    norm_position=["pre", "post"],
    biases=("qkv", "out", "mlp"),
    activation=list(decoders.PLAIN_ACTIVATIONS.values()),
  )
  position = decoders.require_position(model, "learned", "length", "offset")
  if position.get("offset", 0) != 2:
    decoders.require_design(model, position=[{**position, "offset": 2}])
  return {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "vocab_size": variant.vocab_size,
    "hidden_size": dims.embed,
    "word_embed_proj_dim": variant.embed or dims.embed,
    "ffn_dim": dims.mlp,
    "num_hidden_layers": dims.layers,
    "num_attention_heads": dims.heads,
    "max_position_embeddings": position.get("length", 512),
    "do_layer_norm_before": design.norm_position == "pre",
    "activation_function": find_key(decoders.PLAIN_ACTIVATIONS, design.activation),
    **decoders.special_token_fields(variant.tokens),
  }


def canonical_name(name: str) -> str:
  """Add the prefix that older files lack."""
  return f"model.{name}" if name.startswith("decoder.") else name


def map_tensors(mapping: TensorMapping) -> None:
  variant = mapping.model.variant
  inputs = "inputs/inner" if variant.embed else "inputs"
  mapping.copy("model.decoder.embed_tokens.weight", "embed/table")
  mapping.copy("model.decoder.embed_positions.weight", f"{inputs}/position/table")
  mapping.tied["lm_head.weight"] = "model.decoder.embed_tokens.weight"
  if variant.embed:
    mapping.linear("model.decoder.project_in", "inputs/project")
    mapping.linear("model.decoder.project_out", "head/project")
  is_pre_norm = variant.design.norm_position == "pre"
  if is_pre_norm:
    mapping.norm("model.decoder.final_layer_norm", "decoder/final_norm")
  norm = "in_norm" if is_pre_norm else "out_norm"
  for layer, (_, index) in enumerate(locate_layers(mapping.model.decoder, variant.dims.layers)):
    hf_layer = f"model.decoder.layers.{layer}"
    attention = "decoder/blocks/self_attention"
    mlp = "decoder/blocks/mlp"
    mapping.norm(f"{hf_layer}.self_attn_layer_norm", f"{attention}/{norm}", index)
    mapping.norm(f"{hf_layer}.final_layer_norm", f"{mlp}/{norm}", index)
    mapping.attention(f"{hf_layer}.self_attn", f"{attention}/layer", index, names=ATTENTION_NAMES)
    mapping.linear(f"{hf_layer}.fc1", f"{mlp}/layer/wi", index)
    mapping.linear(f"{hf_layer}.fc2", f"{mlp}/layer/wo", index)
