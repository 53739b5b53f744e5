"""Command R and Aya 23."""

import dataclasses

from t5x_like.architectures.heads.lm import hidden_scale
from t5x_like.interop import decoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.families import llama
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import command_r

MODEL_TYPES = ("cohere",)
MODELS = (command_r.Model,)
BODY_PREFIX = "model."


def build(fields: Fields, names: set[str]):
  fields.only("tie_word_embeddings", True)
  design = dataclasses.replace(
    command_r.DESIGN,
    norm_epsilon=fields.take("layer_norm_eps", 1e-5),
    activation=fields.choose("hidden_act", decoders.GATED, "silu"),
    biases=("qkv", "out") if fields.take("attention_bias", False) else (),
    position=decoders.rope(fields, theta=5e5) | {"interleaved": True},
    qk_norm=fields.take("use_qk_norm", False),
    logits_scale=fields.take("logit_scale", 0.0625),
  )
  variant = llama.variant_of(fields, design, kv_heads=None)
  ids = {"pad": 0, "start": 5, "eos": 255_001}
  return command_r.Model, {
    "variant": dataclasses.replace(variant, tokens=decoders.special_ids(fields, **ids))
  }


def config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  decoders.refuse_others(
    model,
    heads=False,
    mlp=False,
    norm="layernorm_no_bias",
    parallel="one_norm",
    biases=[(), ("qkv", "out")],
    qk_norm=[True, False],
    activation=list(decoders.GATED.values()),
    logits_scale=[design.logits_scale],
  )
  position = decoders.position_of(model, "rope", "theta", *decoders.SCALINGS, "interleaved")
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
    "hidden_act": decoders.name_of(decoders.GATED, design.activation),
    "layer_norm_eps": design.norm_epsilon,
    "attention_bias": bool(design.biases),
    "use_qk_norm": design.qk_norm,
    "logit_scale": scale,
    **decoders.rope_fields(decoders.rope_config(position)),
    "tie_word_embeddings": True,
    **decoders.ids_config(variant.tokens),
  }


def tensors(m: TensorMapping) -> None:
  llama.map_table(m)
  m.norm("model.norm", "decoder/final_norm")
  block = "decoder/blocks/parallel"
  for layer, (_, at) in enumerate(locate_layers(m.model.decoder, m.model.variant.dims.layers)):
    theirs = f"model.layers.{layer}"
    attention = f"{block}/layer/self_attention"
    m.norm(f"{theirs}.input_layernorm", f"{block}/in_norm", at)
    m.attention(f"{theirs}.self_attn", attention, at, names=llama.NAMES)
    for name in ("q_norm", "k_norm") if m.model.variant.design.qk_norm else ():
      m.norm(f"{theirs}.self_attn.{name}", f"{attention}/{name}", at)
    llama.gated(m, f"{theirs}.mlp", f"{block}/layer/mlp", at)
