"""gpt-oss: Llama's layout, with sinks, and with the experts of a layer in one tensor."""

import dataclasses

import numpy as np

from t5x_like.errors import UserError
from t5x_like.interop import decoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.families import llama
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import gpt_oss

MODEL_TYPES = ("gpt_oss",)
MODELS = (gpt_oss.Model,)
BODY_PREFIX = "model."
PLAIN = gpt_oss.VARIANTS["tiny"].design


def read_config(fields: Fields, tensor_names: set[str]):
  if fields.take("quantization_config", None):
    raise UserError(
      f"{fields.origin}: field 'quantization_config' is there: the experts are in 4 bits (MXFP4), "
      "which are not read; load the model in transformers with "
      "quantization_config=Mxfp4Config(dequantize=True) and save it again"
    )
  fields.ignore("experts_per_token", "initial_context_length", "num_experts")
  fields.require("hidden_act", "silu")
  fields.require("swiglu_alpha", 1.702)
  fields.require("swiglu_limit", 7.0)
  experts = fields.take("num_local_experts", 128)
  top_k = fields.take("num_experts_per_tok", 4)
  if not 2 <= top_k <= experts:  # a single normalised gate would be constant
    raise fields.refusal("num_experts_per_tok", top_k, f"2 to {experts}")
  window = decoders.take_nullable(fields, "sliding_window", 128)
  if {"rope_parameters", "rope_scaling"}.isdisjoint(fields.values):
    position = gpt_oss.DESIGN.position
  else:
    position = decoders.read_rope(fields, theta=150_000.0)
  is_local = decoders.read_local_layers(fields, lambda layer: layer % 2 == 0)
  design = dataclasses.replace(
    PLAIN,
    norm_epsilon=fields.take("rms_norm_eps", 1e-5),
    biases=("qkv", "out", "mlp") if fields.take("attention_bias", True) else ("mlp",),
    position=position,
    windows=decoders.arrange_windows(is_local, window),
    experts=dataclasses.replace(
      PLAIN.experts,
      experts=experts,
      top_k=top_k,
      balance_loss=float(fields.take("router_aux_loss_coef", 0.001)),
    ),
    tied=fields.take("tie_word_embeddings", False),
  )
  return gpt_oss.Model, {
    "variant": llama.read_variant(fields, design, kv_heads=8, head_dim=64, ids=gpt_oss.TOKENS)
  }


def write_config(model, model_type: str | None) -> dict:
  design = model.variant.design
  dims = model.variant.dims
  experts = model.variant.design.experts
  core = design.core if isinstance(design.core, dict) else {"name": design.core}
  decoders.require_plain_decoder(
    model,
    square=False,
    heads=False,
    mlp=False,
    norm="rmsnorm",
    biases=[("qkv", "out", "mlp"), ("mlp",)],
    activation="swiglu_clamped",
    core=[design.core if core.get("name") == "sinks" else "sinks"],
    experts=[experts or PLAIN.experts],
    experts_every=1,
    tied=[True, False],
    **decoders.allow_one_window(design),
  )
  decoders.require_dropless_experts(experts, normalised=True)
  sizes = llama.write_sizes(model, activation="silu")
  return {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    **sizes,
    "attention_bias": "qkv" in design.biases,
    "swiglu_limit": 7.0,
    "sliding_window": decoders.window_width(design, 128),
    "layer_types": decoders.write_layer_types(design.windows, dims.layers),
    "num_local_experts": experts.experts,
    "num_experts_per_tok": experts.top_k,
    "router_aux_loss_coef": experts.balance_loss,
  }


def map_tensors(mapping: TensorMapping) -> None:
  llama.map_decoder(mapping, _map_experts)


def _map_experts(mapping: TensorMapping, hf_layer: str, path_template: str, index: int) -> None:
  attention = path_template.format("self_attention")
  moe = path_template.format("moe")
  hf_experts = f"{hf_layer}.mlp.experts"
  mapping.copy(f"{hf_layer}.self_attn.sinks", f"{attention}/layer/core/sinks", index)
  mapping.norm(f"{hf_layer}.post_attention_layernorm", f"{moe}/in_norm", index)
  mapping.transpose(f"{hf_layer}.mlp.router.weight", f"{moe}/layer/router/kernel", index)
  mapping.copy(f"{hf_layer}.mlp.router.bias", f"{moe}/layer/router/bias", index)
  for suffix in ("", "_bias"):  # columns of the gate and of the linear factor alternate
    mapping.fuse(
      f"{hf_experts}.gate_up_proj{suffix}",
      [f"{moe}/layer/gate{suffix}", f"{moe}/layer/wi{suffix}"],
      index,
      split=lambda x: [x[..., ::2], x[..., 1::2]],
      join=lambda arrays: np.stack(arrays, -1).reshape(*arrays[0].shape[:-1], -1),
    )
    mapping.copy(f"{hf_experts}.down_proj{suffix}", f"{moe}/layer/wo{suffix}", index)
