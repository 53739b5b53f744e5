"""Qwen 2, 2.5 and 3: Llama's layout, with biases or norms on queries and keys, and with experts."""

from typing import Any

from t5x_like.architectures.design import Variant
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Custom, Field, ModelType, Required
from t5x_like.interop.decoders import (
  FULL,
  LOCAL,
  HeadDim,
  Rope,
  RoutedExperts,
  SpecialTokens,
  arrange_windows,
  read_layer_types,
  window_width,
  write_layer_types,
)
from t5x_like.interop.families import llama
from t5x_like.interop.variant_paths import get_attribute
from t5x_like.models import qwen


def _read_windows(fields: Fields) -> dict[str, Any]:
  """Return the windows of the layers from `max_window_layers` on; with experts, of all."""
  width = fields.take_nullable("sliding_window", 4096)
  if not fields.take("use_sliding_window", False):
    width = None
  first = fields.take("max_window_layers", 28)
  if fields.values["model_type"] == "qwen3_moe":
    first = 0
  layers = fields.take("num_hidden_layers")
  default = [LOCAL if width is not None and layer >= first else FULL for layer in range(layers)]
  return {"design.windows": arrange_windows(read_layer_types(fields, default), width)}


def _write_window(variant: Variant) -> dict[str, Any]:
  width = window_width(variant, None)
  return {"use_sliding_window": width is not None, "sliding_window": width}


def _write_windows(variant: Variant) -> dict[str, Any]:
  return _write_window(variant) | write_layer_types(variant)


def _read_expert_layers(fields: Fields) -> dict[str, Any]:
  """Return the layers with experts, and their widths.

  Only every `decoder_sparse_step`-th layer may have experts. Their width is not the dense layers'.
  """
  period = fields.take("decoder_sparse_step", 1)
  layers = fields.take("num_hidden_layers")
  if period < 1 or layers % period:
    raise fields.refusal("decoder_sparse_step", period, f"a divisor of the {layers} layers")
  width = fields.take("moe_intermediate_size")
  if period == 1:
    fields.ignore("intermediate_size")
    return {"design.experts_every": 1, "dims.mlp": width, "design.experts.mlp": None}
  mlp = fields.take("intermediate_size")
  return {"design.experts_every": period, "dims.mlp": mlp, "design.experts.mlp": width}


def _write_expert_layers(variant: Variant) -> dict[str, Any]:
  values = {
    "intermediate_size": variant.dims.mlp,
    "moe_intermediate_size": get_attribute(variant, "design.experts.mlp"),
  }
  if variant.design.experts_every > 1:
    values["decoder_sparse_step"] = variant.design.experts_every
  if variant.dims.embed != variant.dims.heads * variant.dims.head_dim:
    values["head_dim"] = variant.dims.head_dim
  return values


COMMON = (
  *llama.SIZES_BUT_MLP,
  llama.ACTIVATION,
  Field("rms_norm_eps", "design.norm_epsilon", default=1e-6),
  Rope(),
  llama.UNTIED,
  SpecialTokens(start=qwen.TOKENS.start, eos=qwen.TOKENS.eos),
  Required("use_mrope", False),
)
READ_HEAD_DIM = Field("head_dim", "dims.head_dim", default=None, written=False)
MLP = Field("intermediate_size", "dims.mlp")
QWEN2 = (
  *COMMON,
  MLP,
  Field("num_key_value_heads", "dims.kv_heads", default=32, nullable=True),
  READ_HEAD_DIM,
  Custom(_read_windows, _write_windows),
)
QWEN3 = (
  *COMMON,
  MLP,
  Field("num_key_value_heads", "dims.kv_heads", default=32, nullable=True),
  HeadDim(default=128),
  llama.ATTENTION_BIAS,
  Custom(_read_windows, _write_windows),
)
QWEN3_MOE = (
  *COMMON,
  Field("num_key_value_heads", "dims.kv_heads", default=4, nullable=True),
  READ_HEAD_DIM,
  llama.ATTENTION_BIAS,
  Custom(_read_windows, _write_window),
  RoutedExperts(experts=128, top_k=8, older_name="num_experts"),
  Field("norm_topk_prob", "design.experts.normalise", default=False),
  Field("router_aux_loss_coef", "design.experts.balance_loss", default=0.001),
  Custom(_read_expert_layers, _write_expert_layers),
  Required("mlp_only_layers", [], None),
)
LAYER = {
  **llama.ATTENTION,
  **llama.GATED_MLP,
  "post_attention_layernorm": ("mlp/in_norm", "moe/in_norm"),
  "mlp.gate": "moe/layer/router",
  "mlp.experts.{expert}.gate_proj": "moe/layer/gate",
  "mlp.experts.{expert}.up_proj": "moe/layer/wi",
  "mlp.experts.{expert}.down_proj": "moe/layer/wo",
}
TENSORS = llama.TENSORS | {"tensors": llama.decoder_tensors(LAYER)}

TYPES = (
  ModelType(
    "qwen2",
    "Qwen2ForCausalLM",
    qwen.Model,
    qwen.QWEN2,
    QWEN2,
    **TENSORS,
  ),
  ModelType("qwen3", "Qwen3ForCausalLM", qwen.Model, qwen.QWEN3, QWEN3, **TENSORS),
  ModelType(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    qwen.Model,
    qwen.QWEN3_MOE,
    QWEN3_MOE,
    **TENSORS,
  ),
)
