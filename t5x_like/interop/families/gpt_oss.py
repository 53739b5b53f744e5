"""gpt-oss: Llama's layout, with sinks, and with the experts of a layer in one tensor."""

from typing import Any

import numpy as np

from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import (
  Choice,
  Constant,
  Custom,
  Field,
  Ignored,
  ModelType,
  Required,
)
from t5x_like.interop.decoders import (
  HeadDim,
  LayersByType,
  Rope,
  RoutedExperts,
  SpecialTokens,
  Unquantized,
)
from t5x_like.interop.families import llama
from t5x_like.interop.tensor_mapping import Layout, TensorMapping
from t5x_like.models import gpt_oss

_ROPE = Rope(theta=150_000.0)


def _read_position(fields: Fields) -> dict[str, Any]:
  """Return the rotary positions, the published ones by default."""
  if {"rope_parameters", "rope_scaling"}.isdisjoint(fields.values):
    return {"design.position": gpt_oss.DESIGN.position}
  return _ROPE.read(fields)


def map_gate_and_factor(mapping: TensorMapping, hf_name: str, path: str, *index: int) -> None:
  """Map a tensor whose columns alternate between the gate's and the linear factor's."""
  mapping.fuse(
    hf_name,
    [path, path.replace("/gate", "/wi")],
    *index,
    split=lambda x: [x[..., ::2], x[..., 1::2]],
    join=lambda arrays: np.stack(arrays, -1).reshape(*arrays[0].shape[:-1], -1),
  )


ENTRIES = (
  Unquantized(
    "the experts are in 4 bits (MXFP4), which are not read; load the model in transformers with "
    "quantization_config=Mxfp4Config(dequantize=True) and save it again"
  ),
  *llama.SIZES,
  Field("num_key_value_heads", "dims.kv_heads", default=8, nullable=True),
  HeadDim(default=64),
  Constant("hidden_act", "silu"),
  Required("swiglu_alpha", 1.702),
  Constant("swiglu_limit", 7.0),
  Field("rms_norm_eps", "design.norm_epsilon", default=1e-5),
  Choice(
    "attention_bias",
    "design.biases",
    {True: ("qkv", "out", "mlp"), False: ("mlp",)},
    default=True,
  ),
  Custom(_read_position, _ROPE.write),
  LayersByType(window=128, full_every=2),
  RoutedExperts(experts=128, top_k=4),
  Field("router_aux_loss_coef", "design.experts.balance_loss", default=0.001),
  llama.UNTIED,
  SpecialTokens(start=gpt_oss.TOKENS.start, eos=gpt_oss.TOKENS.eos),
  Ignored("experts_per_token", "initial_context_length", "num_experts"),
)
LAYER = {
  **llama.ATTENTION,
  "self_attn.sinks": "self_attention/layer/core/sinks",
  "post_attention_layernorm": "moe/in_norm",
  "mlp.router": "moe/layer/router",
  "mlp.experts.gate_up_proj": Layout("moe/layer/gate", map_gate_and_factor),
  "mlp.experts.gate_up_proj_bias": Layout("moe/layer/gate_bias", map_gate_and_factor),
  "mlp.experts.down_proj": "moe/layer/wo",
  "mlp.experts.down_proj_bias": "moe/layer/wo_bias",
}

TYPES = (
  ModelType(
    "gpt_oss",
    "GptOssForCausalLM",
    gpt_oss.Model,
    gpt_oss.VARIANTS["tiny"].design,
    ENTRIES,
    **llama.TENSORS | {"tensors": llama.decoder_tensors(LAYER)},
  ),
)
