"""Command R and Aya 23."""

import dataclasses

from t5x_like.architectures.heads.lm import hidden_scale
from t5x_like.interop import decoders
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.families import llama
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import command_r

MODEL_TYPES = ("cohere",)
MODELS = (command_r.Model,)
BODY_PREFIX = "model."


def read_config(fields: Fields, tensor_names: set[str]):
  fields.require("tie_word_embeddings", True)
  design = dataclasses.replace(
    command_r.DESIGN,
    norm_epsilon=fields.take("layer_norm_eps", 1e-5),
    activation=fields.choose("hidden_act", decoders.GATED_ACTIVATIONS, "silu"),
    biases=("qkv", "out") if fields.take("attention_bias", False) else (),
    position=decoders.read_rope(fields, theta=5e5) | {"interleaved": True},
    qk_norm=fields.take("use_qk_norm", False),
    logits_scale=fields.take("logit_scale", 0.0625),
  )
  variant = llama.read_variant(fields, design, kv_heads=None)
  ids = {"pad": 0, "start": 5, "eos": 255_001}
  return command_r.Model, {
    "variant": dataclasses.replace(variant, tokens=decoders.read_special_tokens(fields, **ids))
  }


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  decoders.require_plain_decoder(
    model,
    heads=False,
    mlp=False,
    norm="layernorm_no_bias",
    parallel="one_norm",
    biases=[(), ("qkv", "out")],
    qk_norm=[True, False],
    activation=list(decoders.GATED_ACTIVATIONS.values()),
    logits_scale=[design.logits_scale],
  )
  position = decoders.require_position(
    model, "rope", "theta", *decoders.ROPE_SCALINGS, "interleaved"
  )
  if not position.get("interleaved"):
    decoders.require_design(model, position=[{**position, "interleaved": True}])
  scale = hidden_scale(design, dims.embed)
  return {
    "architectures": ["CohereForCausalLM"],
    "model_type": "cohere",
    "vocab_size": variant.vocab_size,
    "hidden_size": dims.embed,
    "intermediate_size": dims.mlp,
    "num_hidden_layers": dims.layers,
    "num_attention_heads": dims.heads,
    "num_key_value_heads": dims.kv_heads,
    "hidden_act": find_key(decoders.GATED_ACTIVATIONS, design.activation),
    "layer_norm_eps": design.norm_epsilon,
    "attention_bias": bool(design.biases),
    "use_qk_norm": design.qk_norm,
    "logit_scale": scale,
    **decoders.add_older_rope_fields(decoders.write_rope(position)),
    "tie_word_embeddings": True,
    **decoders.special_token_fields(variant.tokens),
  }


def map_tensors(mapping: TensorMapping) -> None:
  llama.map_table(mapping)
  mapping.norm("model.norm", "decoder/final_norm")
  block = "decoder/blocks/parallel"
  for layer, (_, index) in enumerate(
    locate_layers(mapping.model.decoder, mapping.model.variant.dims.layers)
  ):
    hf_layer = f"model.layers.{layer}"
    attention = f"{block}/layer/self_attention"
    mapping.norm(f"{hf_layer}.input_layernorm", f"{block}/in_norm", index)
    mapping.attention(f"{hf_layer}.self_attn", attention, index, names=llama.ATTENTION_NAMES)
    if mapping.model.variant.design.qk_norm:
      mapping.norm(f"{hf_layer}.self_attn.q_norm", f"{attention}/q_norm", index)
      mapping.norm(f"{hf_layer}.self_attn.k_norm", f"{attention}/k_norm", index)
    llama.map_gated_mlp(mapping, f"{hf_layer}.mlp", f"{block}/layer/mlp", index)
